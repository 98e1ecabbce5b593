"""The page docs/command.md: every command with its arguments and options, as the parser has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.main import get_command

from ratchet.answers import EXITS
from ratchet.cli import app
from ratchet.reference.prose import row, sentences, table

_HEAD = (
    "# Commands",
    "",
    "Every command of `ratchet`, with its arguments, options and defaults; made from the code.",
    "[Operations](operations.md#what-you-do-with-the-command) says when to use which, and how the servers are named.",
    "`ratchet COMMAND --help` prints what this page says of one command.",
    "",
)
_WORDS: dict[Any, str] = {int: "INTEGER", float: "NUMBER", Path: "FILE"}
"""What stands for a value of a type; of every other one it is TEXT."""


def every_command() -> dict[str, TyperCommand]:
    """{name, as it is typed behind `ratchet`: command}, in alphabetical order."""
    return dict(sorted(_below(get_command(app), "")))


def document() -> str:
    """docs/command.md."""
    commands = every_command()
    lines = [*_HEAD, *table("command", "does")]
    lines += [
        row(f"[`{name}`](#ratchet-{name.replace(' ', '-')})", sentences(command.help)[0])
        for name, command in commands.items()
    ]
    lines += ["", "## Exit status", "", *table("status", "means")]
    lines += [row(str(status), means) for status, means in EXITS.items()]
    for name, command in commands.items():
        lines += ["", f"## ratchet {name}", "", *sentences(command.help), "", *_usage(name, command)]
    return "\n".join(lines) + "\n"


def _below(command: Any, name: str) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for word, inner in command.commands.items():
            yield from _below(inner, f"{name} {word}".strip())
    else:
        yield name, command


def _usage(name: str, command: TyperCommand) -> list[str]:
    # typer's own class of both has no `help`.
    params: list[Any] = command.params
    needed = [_typed(param) for param in params if param.required]
    left = [_typed(param) for param in params if isinstance(param, TyperArgument) and not param.required]
    optional = any(not isinstance(param, TyperArgument) and not param.required for param in params)
    parts = ["ratchet", name, *needed, *(f"[{word}]" for word in left), *(["[OPTIONS]"] if optional else [])]
    lines = ["```sh elsewhere", " ".join(parts), "```"]
    if params:
        lines += ["", *table("argument or option", "default", "meaning")]
        lines += [row(f"`{_typed(param)}`", _default(param), param.help) for param in params]
    return lines


def _typed(param: Any) -> str:
    """An argument or option as it is typed, with a word for its value."""
    if isinstance(param, TyperArgument):
        return param.metavar or str(param.name).upper()
    value = param.metavar or _WORDS.get(param.type_descriptor.annotation, "TEXT")
    return param.opts[0] if param.is_flag else f"{param.opts[0]} {value}"


def _default(param: Any) -> str:
    if param.required:
        return "must be given"
    if isinstance(param.show_default, str):
        return param.show_default
    return "–" if param.default is None or param.is_flag else f"`{param.default}`"
