"""The tokens of a statement in Spark's SQL as its lexer tells them apart, without comments and spaces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ratchet.errors import SpecError

_TOKEN = re.compile(
    r"""
    (?P<space> \s+ | --(?:\\\n|[^\r\n])* )
    | (?P<comment> /\* )
    | (?P<string> [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<quoted> `(?:[^`]|``)*` )
    | (?P<word> \w+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


@dataclass(frozen=True)
class Token:
    """A word, a name in backquotes, a string, or one character of anything else, from `start` to `end` of its text."""

    kind: str
    text: str
    start: int
    depth: int
    """How many parentheses are open around it; those that open and close have that of what is around them."""

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + len(self.text)

    @property
    def name(self) -> str | None:
        """What it names, without backquotes; None where it is no name."""
        if self.kind == "quoted":
            return self.text[1:-1].replace("``", "`")
        return self.text if self.kind == "word" else None

    @property
    def keyword(self) -> str:
        """Its text as a keyword; "" where it can be none."""
        return self.text.upper() if self.kind == "word" else ""


def tokens_of(text: str) -> tuple[Token, ...]:
    """All tokens; SpecError, with the place, where a string, a comment or a parenthesis is not closed."""
    return tuple(_tokens(text))


def place(text: str, at: int) -> str:
    """A place in a text as errors name it, from line 1 and character 1."""
    line = text.count("\n", 0, at) + 1
    return f"line {line}, character {at - text.rfind(chr(10), 0, at)}"


def _tokens(text: str) -> Iterator[Token]:
    at, opened = 0, list[int]()
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None
        kind, said = str(found.lastgroup), found.group()
        if kind == "comment":
            at = _behind_comment(text, at)
            continue
        if kind == "other" and said in "'\"`":
            raise SpecError(f"{place(text, at)}: the {said} is not closed")
        if said == ")":
            if not opened:
                raise SpecError(f"{place(text, at)}: nothing is open that this ) closes")
            opened.pop()
        if kind != "space":
            yield Token(kind, said, at, len(opened))
        if said == "(":
            opened.append(at)
        at = found.end()
    if opened:
        raise SpecError(f"{place(text, opened[-1])}: the ( is not closed")


def _behind_comment(text: str, start: int) -> int:
    """Where a comment ends, which may have others within it."""
    if text.startswith("/*+", start):
        raise SpecError(f"{place(text, start)}: a hint may move rows away from their record's others; leave it out")
    depth, at = 1, start + 2
    while depth:
        edge = _COMMENT_EDGE.search(text, at)
        if edge is None:
            raise SpecError(f"{place(text, start)}: the comment is not closed")
        depth += 1 if edge.group() == "/*" else -1
        at = edge.end()
    return at
