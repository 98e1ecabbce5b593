"""Wrong versions of the protocol, each a small change of the code, as a tired developer could make it."""

from __future__ import annotations

from dataclasses import dataclass

LEDGER = ("schedules", "ledger")
"""What may catch a mistake in the ledger's code."""
SPARK = ("spark",)
"""What may catch one in the code that Spark runs, or that asks Kafka."""


@dataclass(frozen=True)
class Change:
    """In one file below `include/ratchet`, `old`, which is there once, becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Plant:
    """A mistake, and the layers of tests that are asked whether they see it."""

    name: str
    changes: tuple[Change, ...]
    layers: tuple[str, ...] = LEDGER


def plant(name: str, file: str, old: str, new: str, *more: tuple[str, str, str], layers=LEDGER) -> Plant:
    """A mistake of one change, or of several."""
    return Plant(name, tuple(Change(*change) for change in ((file, old, new), *more)), layers)
