"""Progress of long work, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

EVERY_SECONDS = 10.0
"""How often a line comes where there is no terminal."""


class Told:
    """How far a work is, as it tells it by `at`; `step` says that one more of its parts is done."""

    def __init__(self, console: Console, what: str, parts: int | None):
        self._console, self._parts, self._done = console, parts, 0
        self._line, self._last = what, monotonic()
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            *([BarColumn(bar_width=20), MofNCompleteColumn()] if parts else []),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            # What goes to another place than the bar goes there still.
            redirect_stdout=sys.stdout.isatty(),
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task(what, total=parts)

    def at(self, line: str) -> None:
        """The work is here now."""
        self._line = line
        self.bar.update(self._task, description=line)
        self._tell()

    def step(self) -> None:
        """Another part is done."""
        self._done += 1
        self.bar.advance(self._task)
        self._tell()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _tell(self) -> None:
        if self._console.is_terminal or monotonic() - self._last < EVERY_SECONDS:
            return
        self._last = monotonic()
        self.say(f"{self._line}: {self._done} of {self._parts} done" if self._parts else self._line)


@contextmanager
def progress(what: str, parts: int | None = None) -> Iterator[Told]:
    """Tell of a work while the block does it; of so many `parts`, if they can be counted."""
    told = Told(Console(stderr=True), what, parts)
    with told.bar:
        yield told
