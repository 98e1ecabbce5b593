"""Commits in the order of each line, from the moment at which somebody began to follow them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import func, select, true

from ratchet.errors import Fenced
from ratchet.ledger.connection import Ledger
from ratchet.ledger.history import IS_COMMIT
from ratchet.ledger.schema import events, heads
from ratchet.operate.snapshot.transaction import Whole, transaction

AT_ONCE = 100
"""Of each line so many commits are followed in one go."""


@dataclass(frozen=True)
class Commit:
    """A commit of a transaction or of a revision, by the number of its event, with all that the ledger has of it."""

    event: int
    whole: Whole
    revision: int


class Commits:
    """What was committed since it was made. Kept in memory: what is committed while nobody follows is not followed.

    Events are followed line by line: within a line their numbers ascend as commits do, and across lines they need not.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] | None = None

    def since(self, ledger: Ledger) -> Iterator[Commit]:
        """What is new, in each line's order; it is new until it is `told`."""
        newest = _newest(ledger)
        if self._seen is None:
            self._seen = dict(newest)
        c = events.c
        for pipeline, last in newest.items():
            # A ledger that was restored gives numbers again: what is followed is what comes from now on.
            seen = self._seen[pipeline] = min(self._seen.get(pipeline, 0), last)
            if seen == last:
                continue
            mine = select(c.id, c.txid, c.revision).where(c.pipeline == pipeline, IS_COMMIT, c.id > seen)
            with ledger.begin() as conn:
                found = conn.execute(mine.order_by(c.id).limit(AT_ONCE)).all()
            for event, txid, revision in found:
                try:
                    yield Commit(event, transaction(ledger, pipeline, txid), revision)
                except Fenced:
                    # It is pruned, or its line dropped, since.
                    self._seen[pipeline] = event

    def told(self, commit: Commit) -> None:
        """It is not new any more."""
        if self._seen is not None:
            self._seen[commit.whole.pipeline] = commit.event


def _newest(ledger: Ledger) -> dict[str, int]:
    """{pipeline: the number of its latest commit}, in the order of names."""
    c = events.c
    mine = select(func.max(c.id).label("id")).where(c.pipeline == heads.c.pipeline, IS_COMMIT).lateral("newest")
    with ledger.begin() as conn:
        found = conn.execute(select(heads.c.pipeline, mine.c.id).join(mine, true()).order_by(heads.c.pipeline))
        return {pipeline: newest or 0 for pipeline, newest in found}
