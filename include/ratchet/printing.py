"""How the command prints what people read: lines, and tables, which become records where the terminal is too narrow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

_COMMANDS_AND_WORDS = re.compile(r"(?:`ratchet [^`\n]*`|\S)+")


def print_lines(lines: Iterable[str | Text], *, err: bool = False) -> None:
    """Print lines, wrapped at words where a terminal shows them."""
    _print(Console(stderr=err, highlight=False), lines)


def print_parts(parts: Iterable[str | Text | Table]) -> None:
    """Print lines and tables."""
    _print(Console(highlight=False), parts)


def _print(console: Console, parts: Iterable[str | Text | Table]) -> None:
    # Whoever searches what a pipe gives wants whole lines, also where FORCE_COLOR has colours in it.
    width = console.width if console.file.isatty() else None
    for part in parts:
        if isinstance(part, Table):
            console.print(part if _fits(console, part) else _records(part))
            continue
        # Rich breaks within words and commands, and has spaces for tabs.
        for line in _wrapped(Text(part) if isinstance(part, str) else part, width):
            console.print(Segments(line.render(console, "\n")), soft_wrap=True)


def _wrapped(text: Text, width: int | None) -> Iterator[Text]:
    """Lines of whole words and whole commands, which can be copied; the terminal breaks one that is wider than it."""
    for line in text.split(allow_blank=True):
        lines = line.divide([] if width is None else _breaks(line.plain, width))
        for part in lines[:-1]:
            part.rstrip()
        yield from lines


def _breaks(line: str, width: int) -> list[int]:
    """Where parts of a line that are so wide at most begin."""
    begun, found = 0, []
    for word in _COMMANDS_AND_WORDS.finditer(line):
        if line[begun : word.start()].strip() and cell_len(line[begun : word.end()]) > width:
            begun = word.start()
            found.append(begun)
    return found


def _fits(console: Console, table: Table) -> bool:
    """Whether each word of a table has its place; broken ones cannot be told."""
    unlimited = console.options.update_width(1_000_000)
    return Measurement.get(console, unlimited, table).minimum <= console.width


def _records(table: Table) -> Group:
    """Each row of a table as lines of a column and its value."""
    names = [Text(column.header) if isinstance(column.header, str) else column.header for column in table.columns]
    title = [Text(table.title) if isinstance(table.title, str) else table.title] if table.title else []
    parts: list[RenderableType] = [*title]
    for number, cells in enumerate(zip(*(column.cells for column in table.columns), strict=True)):
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, cell in zip(names, cells, strict=True):
            grid.add_row(name, cell)
        parts += [Text(""), grid] if number else [grid]
    return Group(*parts)
