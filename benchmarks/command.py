"""The command line and the servers of what is measured by name: works, and curves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from benchmarks.bench import Bench
from ratchet.dev.stack import CHECKOUT, Stack

HOME = CHECKOUT / ".state" / "bench"
"""Where the servers are, with their topics, and what was found."""


@dataclass(frozen=True)
class Asked:
    """What is to be measured, how large a backlog is, and how often each is measured."""

    names: list[str]
    records: int
    runs: int


def asked(description: str | None, noun: str, known: Collection[str]) -> Asked:
    """What the command line asks for: some of `known` by `--noun`, else all of them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(f"--{noun}", default=",".join(known), help=f"some of {','.join(known)}")
    chosen = parser.parse_args()
    names = getattr(chosen, noun).split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no {', '.join(unknown)} among the {noun}: {', '.join(known)}")
    return Asked(names, chosen.records, chosen.runs)


def console() -> Console:
    """Wide enough for its tables, also where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 120)


@contextmanager
def bench_of(
    chosen: Asked, servers: Iterable[frozenset[str]], tell: Callable[[str], None]
) -> Iterator[tuple[Stack, Bench]]:
    """The servers that any of them needs, and the bench upon them."""
    with Stack(HOME, frozenset[str]().union(*servers), lasting=True) as stack:
        with Bench(stack, chosen.records, chosen.runs, tell) as bench:
            yield stack, bench
