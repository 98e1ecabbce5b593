"""Until when the deletions of a compacted topic are there to be read; what was read only later may lack some.

Kafka's cleaner does not touch what is beyond the last stable offset, and from when it has first cleaned a tombstone it
leaves that for `delete.retention.ms`. So a tombstone that lay beyond the last stable offset at a look is there for so
long from that look on, on every replica. Who starts at the beginning of a log, and has no such look yet, has Kafka's
promise to readers: it sees every tombstone whose key it has read a value of, if it gets to the end in that time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, select, update

from ratchet.errors import RecordsLost, TombstonesLost, TopicChanged
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line, Transaction
from ratchet.ledger.schema import sources as source_rows
from ratchet.ledger.schema import transactions
from ratchet.ledger.transactions import is_row, is_unfinished, lock_pipeline, read_line
from ratchet.ledger.work import utc
from ratchet.protocol import membership, sources
from ratchet.protocol.plan import Course, check_readable, course_of
from ratchet.source.offsets import KnownLogs, TopicOffsets
from ratchet.spec.pipeline import Pipeline

SURE = 0.99
"""So much of the time counts: the ledger's clock and a broker's, each slewed by 0.05 % at most, differ by less."""
FRESH = 0.1
"""A look is fresh for so much of the time that tombstones are kept."""
_MOST_LOOKS = 32
"""So many looks are kept; with fewer, one that is older than needed may count, which is the safe side."""


Asked = Callable[[None, KnownLogs], TopicOffsets]
"""Asks Kafka for the offsets of the line's topics, of whose logs so much is known."""


@dataclass(frozen=True)
class Look:
    """What Kafka said at a begin: the last stable offset of each partition, and how long it keeps a tombstone.

    `at` is a time of the ledger's clock from before Kafka was asked.
    """

    at: datetime
    kept: timedelta
    stable: Mapping[int, int]

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Look:
        """From the form in which the ledger has it."""
        stable = {int(partition): at for partition, at in said["stable"].items()}
        return cls(datetime.fromisoformat(said["at"]), timedelta(milliseconds=said["kept"]), stable)

    @property
    def stored(self) -> dict[str, Any]:
        """As the ledger has it."""
        kept = self.kept // timedelta(milliseconds=1)
        return {"at": self.at.isoformat(), "kept": kept, "stable": {str(p): at for p, at in self.stable.items()}}


@dataclass(frozen=True)
class Term:
    """Since when unread tombstones may have been cleaned, and how long they are there from then on."""

    since: datetime
    kept: timedelta

    @property
    def until(self) -> datetime:
        """Until then all of them are there."""
        return self.since + self.kept * SURE


def look(at: datetime | None, offsets: TopicOffsets) -> Look:
    """The look at a compacted topic for which that time was taken."""
    assert at is not None and offsets.kept_tombstones is not None, "it is compacted"
    return Look(at, offsets.kept_tombstones, dict(offsets.stable))


def now(ledger: Ledger, spec: Pipeline) -> datetime | None:
    """The ledger's time, for a look at a topic that is compacted; None for another one."""
    if not spec.source.compacted:
        return None
    with ledger.begin() as conn:
        return _now(conn)


def noted(conn: Connection, line: Line) -> list[Look]:
    """The looks that still count, the oldest first; none where the source was not read as a compacted topic."""
    said = conn.execute(select(source_rows.c.looks).where(*_source(line))).scalar_one()
    return [Look.read(each) for each in said or ()]


def note(conn: Connection, line: Line, looks: Sequence[Look]) -> None:
    """Keep these looks and no others."""
    conn.execute(update(source_rows).where(*_source(line)).values(looks=[each.stored for each in looks]))


def with_look(looks: Sequence[Look], new: Look, previous: Mapping[int, int]) -> list[Look]:
    """The looks that count where plans have ended at `previous`: those since all partitions were planned to their ends.

    Where these are too many, a look goes, and the one behind it answers for how long tombstones were kept then.
    """
    kept = sorted((*looks, new), key=lambda each: each.at)
    kept = kept[min((_since(kept, p, at) for p, at in previous.items()), default=0) :]
    if len(kept) > _MOST_LOOKS:
        first, *middle = kept
        pairs = zip(middle[::2], middle[1::2], strict=False)
        thinned = [replace(after, kept=min(before.kept, after.kept)) for before, after in pairs]
        kept = [first, *thinned, *(middle[-1:] if len(middle) % 2 else ())]
    return kept


def term(looks: Sequence[Look], starts: Mapping[int, int]) -> Term:
    """Until when all that is unread from these offsets on can be read: the partition whose time is over first says."""
    firsts = {_since(looks, partition, at) for partition, at in starts.items()}
    terms = [Term(looks[first].at, min(each.kept for each in looks[first:])) for first in firsts]
    return min(terms, key=lambda each: each.until)


def hear(conn: Connection, line: Line, new: Look, course: Course) -> list[Look] | TombstonesLost:
    """Keep a look, and give all that count; the caller holds the pipeline's lock.

    TombstonesLost, not raised, where deletions may be missing of what is unread: that Kafka was heard to keep them for
    a shorter time must stay known when it keeps them for longer again.
    """
    before, why = noted(conn, line), missing(conn, line, new, course)
    looks = with_look(before, new, course.previous)
    if before or why is None:
        note(conn, line, looks)
    if any(new.kept < each.kept for each in before):
        # What is planned is being read, and has no more time than that.
        c = transactions.c
        longer = (c.pipeline == line.pipeline, is_unfinished(), c.tombstones_kept > new.kept)
        conn.execute(update(transactions).where(*longer).values(tombstones_kept=new.kept))
    return (
        looks if why is None else TombstonesLost(f"{line.pipeline}: {why}; nothing was planned; {_on(line.pipeline)}")
    )


def attend(ledger: Ledger, spec: Pipeline, kafka_offsets: Asked) -> None:
    """Look at a compacted topic of which the last look is no longer fresh, for a line that no run begins for long.

    Else the first record that comes after a quiet day would be one that may be read too late. Of a topic that is
    another one, or has lost records, a begin says so.
    """
    with ledger.begin() as conn:
        line = read_line(conn, spec.name)
        looks = noted(conn, line) if line else []
        if line is None or not looks or _now(conn) < looks[-1].at + looks[-1].kept * FRESH:
            return
        known = sources.known(conn, line)
    asked_at = now(ledger, spec)
    offsets = kafka_offsets(None, known.logs)
    with ledger.begin() as conn, suppress(RecordsLost, TopicChanged):
        line = lock_pipeline(conn, spec.name)
        if line is None or not sources.known(conn, line).has_logs_of(known):
            return
        membership.check(spec, line.topics, offsets.topics)
        course = course_of(conn, line)
        check_readable(spec.name, course, offsets)
        hear(conn, line, look(asked_at, offsets), course)


def missing(conn: Connection, line: Line, new: Look, course: Course) -> str | None:
    """Why deletions may be missing of what is unread, in a line; None where they are all there.

    They may be, too, where the line has read records of the source and no look at it is known.
    """
    starts = {p: at for p, at in course.left.items() if new.stable.get(p, 0) > at}
    if not starts:
        return None
    before = noted(conn, line)
    found = term(with_look(before, new, course.previous), starts)
    is_unknown = not before and line.last_txid > 0
    if not is_unknown and _now(conn) <= found.until:
        return None
    since = "while it was compacted" if is_unknown else f"since {utc(found.since)}"
    return (
        f"{line.topics.title} was not read to its end {since}, and Kafka keeps a tombstone for {found.kept} only: "
        "deletions may be gone, and rows of their keys would stay for ever"
    )


def of(row: Transaction) -> Term | None:
    """Until when a transaction's records have to be read; None where its topic is not compacted, or of a revision."""
    if row.tombstones_since is None or row.tombstones_kept is None:
        return None
    return Term(row.tombstones_since, row.tombstones_kept)


def overdue(conn: Connection, spec: Pipeline, row: Transaction, kept: timedelta | None = None) -> TombstonesLost | None:
    """The error that a transaction's records are read too late, if so; `kept` is what Kafka says of tombstones now.

    Where that is less than before, the ledger keeps it. So is one that was planned before the spec said that the topic
    is compacted. The caller holds the transaction's lock.
    """
    mine = of(row)
    if mine is None:
        return unknown(spec, row) if row.revision == 0 else None
    if kept is not None and kept < mine.kept:
        mine = replace(mine, kept=kept)
        conn.execute(update(transactions).where(is_row(row)).values(tombstones_kept=kept))
    if _now(conn) <= mine.until:
        return None
    return TombstonesLost(
        f"{row.pipeline}: {row}: its topic is compacted, and its records had to be read before {utc(mine.until)}: "
        f"since then deletions may be gone, and rows of their keys would stay; nothing was voted; {_on(row.pipeline)}"
    )


def unknown(spec: Pipeline, row: Transaction) -> TombstonesLost | None:
    """The error that nothing says until when a transaction of a compacted topic has to be read."""
    if not spec.source.compacted or of(row) is not None:
        return None
    return TombstonesLost(
        f"{row.pipeline}: {row}: its topic is compacted, and was not when it was planned: deletions may be gone, and "
        f"rows of their keys would stay; nothing was voted; {_on(row.pipeline)}"
    )


def _on(pipeline: str) -> str:
    return (
        f"`ratchet accept-loss {pipeline} --reason …` goes on and accepts that, a new pipeline with new tables reads "
        "from the beginning; run more often, or raise the topic's delete.retention.ms"
    )


def _since(looks: Sequence[Look], partition: int, at: int) -> int:
    """The place of the newest look that found nothing from that offset on, else that of the first."""
    found = (n for n, each in enumerate(looks) if partition in each.stable and each.stable[partition] <= at)
    return max(found, default=0)


def _now(conn: Connection) -> datetime:
    return conn.execute(select(func.clock_timestamp())).scalar_one()


def _source(line: Line) -> tuple[Any, ...]:
    c = source_rows.c
    return c.pipeline == line.pipeline, c.source == line.source
