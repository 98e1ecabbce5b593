"""What a reader of a schedule's ledger and sinks sees in one snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ratchet.ledger.states import State
from tests.proof.simulate.logs import Names


@dataclass(frozen=True)
class Seen:
    """What one snapshot shows."""

    head: int
    last_txid: int
    paused_behind: int | None
    names: Names
    """The line's topics, by number."""
    joined: frozenset[str]
    """Those that were not there when the line began."""
    left: frozenset[str]
    """Those that a person has said are left."""
    transactions: dict[tuple[int, int], tuple]
    """{(txid, revision): its row}."""
    ranges: dict[int, list[tuple[int, int, int]]]
    """{txid: [(partition, from_offset, until_offset)]}."""
    starts: dict[int, int]
    """{partition: where the line begins}."""
    votes: dict[tuple[int, int, int], tuple]
    """{(txid, epoch, slice): (try, what it voted)}."""
    tries: dict[tuple[int, int, int], int]
    """{(txid, epoch, slice): its latest try}."""
    cuts: dict[tuple[int, int], list]
    """{(txid, epoch): the ranges of each slice}."""
    replays: set[int]
    """The txids of which a revision is asked for and not begun."""
    expired: dict[str, int]
    """{sink: up to which txid its rows have expired}."""
    clock: datetime
    contents: dict[str, list[tuple]]
    """{sink: rows}, sorted."""

    @property
    def reached(self) -> dict[int, int]:
        """{partition: up to where it is planned}; AssertionError where ranges do not follow one another."""
        at = dict(self.starts)
        for txid, plan in sorted(self.ranges.items()):
            for partition, start, until in plan:
                assert start == at.get(partition), f"{txid} takes {partition} from {start}, its plans had ended at {at}"
                at[partition] = until
        return at

    def newest(self) -> dict[int, tuple]:
        """{txid: the row of its newest revision}."""
        return {txid: row for (txid, _), row in sorted(self.transactions.items())}

    def halted(self) -> int | None:
        """The txid at which the line is halted; None if it is not."""
        at = (txid for (txid, revision), row in self.transactions.items() if not revision and row.halted_at is not None)
        return min(at, default=None)

    def revisions_going_on(self) -> list[tuple[int, int]]:
        """(txid, revision) of those that are neither final nor given up."""
        rows = [row for row in self.newest().values() if row.revision > 0 and row.halted_at is None]
        return [(row.txid, row.revision) for row in rows if row.state not in (State.COMMITTED, State.VOIDED)]


NOTHING = Seen(0, 0, None, (), frozenset(), frozenset(), {}, {}, {}, {}, {}, {}, set(), {}, datetime.min, {})
