"""Which files of the docs are made from the code, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ratchet import answers, explained
from ratchet.reference import commands, fields
from ratchet.telemetry import measures

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES: Mapping[str, Callable[[], str]] = {
    "command.md": commands.document,
    "spec.md": fields.document,
    "errors.md": explained.document,
    "metrics.md": measures.document,
    **{f"schemas/{command}.json": partial(answers.document, command) for command in sorted(answers.answers())},
}
