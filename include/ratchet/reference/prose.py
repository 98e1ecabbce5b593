"""Docstrings as lines and cells of a page."""

from __future__ import annotations

import re

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")


def sentences(doc: str | None) -> list[str]:
    """The sentences of a docstring, each for a line of its own."""
    return _SENTENCE.split(" ".join((doc or "").split()))


def row(*cells: str) -> str:
    """A row of a table."""
    said = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(said)} |"


def table(*columns: str) -> list[str]:
    """The head of a table."""
    return [row(*columns), row(*("---" for _ in columns))]
