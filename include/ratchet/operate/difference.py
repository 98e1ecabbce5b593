"""What a replay would change: today's rows of committed transactions beside those that are there. Nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from ratchet.errors import IllegalMove, NotRevisable, RecordsLost, Refused, TopicChanged, TransformError
from ratchet.ledger.connection import Ledger, be_patient
from ratchet.ledger.states import State
from ratchet.ledger.transactions import newest_revision, read_line
from ratchet.ledger.work import SliceWork
from ratchet.operate import replay
from ratchet.protocol.applied import newest_applied, newest_whole
from ratchet.protocol.failures import first_line
from ratchet.protocol.revise import check
from ratchet.protocol.votes import work_of
from ratchet.sinks import comparison, layout
from ratchet.sinks.comparison import SinkDifference
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.spec.pipeline import Pipeline

Take = Callable[[Sink, Iterator[bytes]], None]
"""Is given what a sink would keep, as rows of a binary COPY, in parts."""
Again = Callable[[Sequence[SliceWork], Take], None]
"""Processes slices once more; the taker is called for each sink that is given anything."""


@dataclass(frozen=True)
class Difference:
    """What a replay of one transaction would change; or why there would be no result."""

    txid: int
    sinks: tuple[SinkDifference, ...]
    fails: str | None = None


def lines_of(found: Difference) -> list[str]:
    """What a person reads of it."""
    if found.fails:
        return [f"transaction {found.txid}: a revision would fail: {found.fails}"]
    said: list[str] = []
    for of in found.sinks:
        said.append(f"transaction {found.txid}: {of}")
        said += [f"    {example}" for example in of.examples]
    return said


def differences(
    ledger: Ledger, spec: Pipeline, again: Again, first: int, last: int, *, voided: bool = False
) -> Iterator[Difference | tuple[int, str]]:
    """What a replay of the transactions `first` to `last` would change, one after the other; nothing is written.

    Those that a replay would leave out are given as (txid, why). Rows that a task sends are held in temporary tables
    of the database, so memory is bounded by what one of Spark's tasks keeps. Gates, and rules that hold across
    transactions, are not asked. Raises NotRevisable and IllegalMove, as a replay would.
    """
    with ledger.begin() as conn:
        layout.probe(conn, spec)
        line = read_line(conn, spec.name)
        if line is None:
            raise IllegalMove(f"the ledger has nothing of pipeline {spec.name} yet")
        wanted, left_out = replay.revisable(conn, spec, line, first, last, voided=voided)
    yield from left_out
    for txid in wanted:
        try:
            yield _of(ledger, spec, again, txid)
        except NotRevisable as error:
            yield txid, str(error)
        except (RecordsLost, Refused, TopicChanged, TransformError) as error:
            yield Difference(txid, (), str(error))
        except DataError as error:
            yield Difference(txid, (), first_line(error, spec))


def _of(ledger: Ledger, spec: Pipeline, again: Again, txid: int) -> Difference:
    with ledger.begin(dry_run=True) as conn:
        be_patient(conn)
        applied = newest_applied(conn, spec.name, txid)
        row = newest_whole(conn, spec.name, txid, State.COMMITTED) or newest_revision(conn, spec.name, txid)
        work = work_of(conn, spec, row)
        sinks = sinks_of(spec)
        tried = {sink.name: comparison.make(conn, sink, txid) for sink in sinks}
        again(work, lambda sink, parts: comparison.copy(conn, tried[sink.name], sink, parts))
        found = [comparison.compare(conn, spec.name, sink, tried[sink.name], txid) for sink in sinks]
        _check_same(conn, spec, txid, applied)
        if spec.private:
            found = [replace(of, examples=tuple(example.withheld for example in of.examples)) for of in found]
        return Difference(txid, tuple(found))


def _check_same(conn: Connection, spec: Pipeline, txid: int, applied: int | None) -> None:
    """NotRevisable where the deltas are not those of before any more: merged, expired, or revised meanwhile."""
    line = read_line(conn, spec.name)
    assert line is not None, "a line that has begun stays"
    check(conn, spec, line, txid)
    if newest_applied(conn, spec.name, txid) != applied:
        raise NotRevisable(f"{spec.name}: transaction {txid} was revised meanwhile; look again")
