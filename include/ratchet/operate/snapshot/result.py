"""What readers see of a transaction: the first result or that of a replay, and what releases have added to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.ledger.rows import Transaction
from ratchet.ledger.states import State
from ratchet.spec.pipeline import DEAD_LETTERS


@dataclass(frozen=True)
class Result:
    """A revision, 0 being the original, with the releases that were added to it since.

    `records` are all that were read, `rows` those of the deltas by sink, with those of the releases.
    """

    revision: int
    releases: tuple[int, ...]
    records: int
    rows: Mapping[str, int]


def rows_of(row: Transaction) -> dict[str, int]:
    """{sink: how many rows of it a commit has brought}."""
    return {sink: int(str(of.get("rows", 0))) for sink, of in (row.applied or {}).items()}


def result_of(rows: Iterable[Transaction]) -> Result | None:
    """What readers see of the transaction whose rows these are, itself and its revisions; None where they see none."""
    shown = _shown(rows)
    if not shown:
        return None
    return Result(shown[0].revision, tuple(row.revision for row in shown[1:]), shown[0].records or 0, _sum(shown))


def letters_before(row: Transaction, rows: Iterable[Transaction]) -> int | None:
    """How many dead letters a transaction with these rows had before a release of some; None of what is no release."""
    if row.releases is None:
        return None
    return _sum(_shown(of for of in rows if of.revision < row.revision)).get(DEAD_LETTERS, 0)


def _shown(rows: Iterable[Transaction]) -> list[Transaction]:
    """The newest committed revision that is no release, and the releases that were committed after it."""
    # A void that was replayed is COMMITTED, too, and has applied nothing.
    done = [row for row in rows if row.state == State.COMMITTED and row.applied is not None]
    done.sort(key=lambda row: row.revision)
    whole = max((n for n, row in enumerate(done) if row.releases is None), default=0)
    return done[whole:]


def _sum(shown: Iterable[Transaction]) -> dict[str, int]:
    """{sink: rows}, without the dead letters that releases have taken away."""
    found: dict[str, int] = {}
    for row in shown:
        for sink, count in rows_of(row).items():
            of: Mapping[str, Any] = (row.applied or {})[sink]
            found[sink] = found.get(sink, 0) + count - (of["taken"]["rows"] if "taken" in of else 0)
    return found
