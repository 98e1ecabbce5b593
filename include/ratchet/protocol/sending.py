"""What destinations get: the rows of a step, the keys that steps have touched, or all that readers see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, and_, exists, func, select

from ratchet.destinations.content import Change, Content, Puts
from ratchet.destinations.port import Destination, Mark, Owner
from ratchet.errors import StageMismatch
from ratchet.ledger import schema, steps
from ratchet.ledger.connection import driver_of
from ratchet.ledger.rows import DestinationRow, Line, StepRow, Transaction
from ratchet.ledger.schema import slices, transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_line, read_transaction
from ratchet.ledger.work import counted
from ratchet.protocol.applied import voted_of
from ratchet.protocol.votes import SinkVote, read_votes, rows_of, vote_from_json
from ratchet.sinks import delta
from ratchet.sinks.port import Sink
from ratchet.spec.columns import Column
from ratchet.spec.pipeline import Pipeline


def owner_of(spec: Pipeline, sink: Sink) -> Owner:
    """Whose the rows are that a destination gets."""
    return Owner(spec.name, sink.name, sink.declared, sink.renamed, spec.private, sink.sent, sink.key_columns)


def whole(conn: Connection, sink: Sink, head: int) -> Content:
    """All rows of a sink that readers see, as a destination that is made anew gets them."""
    relation = sink.table if sink.key_columns else sink.home
    return Content(driver_of(conn), relation, head, sink.declared, added=sink.sent, key=sink.key_columns)


def next_of(
    conn: Connection, of: DestinationRow, sink: Sink, destination: Destination, at: Mark
) -> tuple[Mark, Change | Puts] | None:
    """What comes after a mark, and the mark that it leads to; None where nothing does. `conn` is a snapshot.

    Of rows that are kept each it is the next step. Of keys it is all steps at once: the state is that after the last
    one of them. StageMismatch where it is not there any more.
    """
    step, line = steps.step_of(conn, of.pipeline, at.step + 1), read_line(conn, of.pipeline)
    if step is None or line is None:
        if line is not None and at.step < line.step:
            raise _gone(of, at.step, line)
        return None
    if not sink.key_columns:
        return Mark(step.step, step.token), _change(conn, step, sink, destination)
    last = steps.step_of(conn, of.pipeline, line.step)
    if last is None or not steps.are_there(conn, of.pipeline, at.step, line.step):
        raise _gone(of, at.step, line)
    return Mark(last.step, last.token), _puts(conn, of, sink, line, at.step, last)


def _change(conn: Connection, step: StepRow, sink: Sink, destination: Destination) -> Change:
    row = read_transaction(conn, step.pipeline, step.txid, step.revision)
    votes = read_votes(conn, step.pipeline, row.txid, row.epoch)
    # One of a spec that did not have the sink has no rows for it, and takes none away.
    of_sink = [vote for vote in votes if sink.name in vote[2]]
    rows = rows_of(of_sink, sink.name, sink.home, row.txid)
    if _is_superseded(conn, row, sink):
        # While it was detached a later revision has taken their place, whose step brings what came of them.
        rows = replace(rows, writers=(), count=0)
    is_whole = row.revision > 0 and row.releases is None and sink.name in (row.applied or {})
    # What cannot give way was not sent: of a transaction that was voided.
    replaces = is_whole and (destination.can_revise or steps.has_earlier(conn, step))
    written = driver_of(conn), rows.relation, row.txid, _fields(conn, step, sink)
    return Change(*written, row.revision, replaces, rows.count, rows.writers)


def _puts(conn: Connection, of: DestinationRow, sink: Sink, line: Line, after: int, last: StepRow) -> Puts:
    touching = _touching(conn, of.pipeline, sink, after, last.step)
    lost = min((one.txid for one in touching if one.txid <= line.compacted), default=None)
    if lost is not None:
        raise StageMismatch(
            f"{of.pipeline}: {of.destination} has step {after} of {last.step}, and which keys transaction {lost} has "
            f"touched nobody knows any more: the deltas up to {line.compacted} are merged into a base; nothing was "
            f"sent; `ratchet attach {of.pipeline} {of.destination} --anew` sends the whole state"
        )
    newest = {one.txid: one.revision for one in touching if not one.is_release}
    # Of what a later revision has replaced the keys are noted beside the deltas.
    there = [one for one in touching if one.revision >= newest.get(one.txid, 0)]
    writers = tuple(writer for one in there for vote in one.votes for writer in vote.writers)
    txids = tuple({one.txid: None for one in there})
    _check_deltas(conn, of, sink, txids, writers, sum(vote.rows for one in there for vote in one.votes))
    noted = voted_of(conn, of.pipeline, sink, touching[-1].txid) if touching else None
    fields = (noted and noted.columns) or sink.declared
    return Puts(
        driver_of(conn),
        sink.table,
        last.txid,
        fields,
        delta=sink.home,
        txids=txids,
        writers=writers,
        pipeline=of.pipeline,
        steps=(after, last.step),
        added=sink.sent,
        key=sink.key_columns,
    )


@dataclass(frozen=True)
class _Touching:
    """A step that has touched keys of a sink."""

    txid: int
    revision: int
    is_release: bool
    votes: Sequence[SinkVote]


def _touching(conn: Connection, pipeline: str, sink: Sink, after: int, last: int) -> list[_Touching]:
    """The steps behind `after` up to the last that were decided by a spec that has the sink, in their order."""
    t, s = transactions.c, slices.c
    of_epoch = (s.pipeline == t.pipeline, s.txid == t.txid, s.epoch == t.epoch, s.voted_at.is_not(None))
    votes = select(func.jsonb_agg(s.sinks[sink.name])).where(*of_epoch).scalar_subquery()
    n = schema.steps.c
    same = and_(t.pipeline == n.pipeline, t.txid == n.txid, t.revision == n.revision)
    query = select(t.txid, t.revision, t.releases, votes.label("votes")).join_from(transactions, schema.steps, same)
    mine = (n.pipeline == pipeline, n.step > after, n.step <= last, t.applied.has_key(sink.name))
    return [
        _Touching(row.txid, row.revision, row.releases is not None, [*map(vote_from_json, row.votes or ())])
        for row in conn.execute(query.where(*mine).order_by(n.step))
    ]


def _check_deltas(
    conn: Connection, of: DestinationRow, sink: Sink, txids: Sequence[int], writers: Sequence[int], rows: int
) -> None:
    """StageMismatch where deltas have not as many rows as their votes say: a key that is not heard of would stay as it
    was.
    """
    found = delta.number_of(conn, sink, txids, writers)
    if found != rows:
        raise StageMismatch(
            f"{of.pipeline}: {of.destination}: {'.'.join(sink.home)} has {counted(found, 'row')} of what it lacks, and "
            f"votes say {rows:,}, as `ratchet verify` tells; nothing was sent; `ratchet attach --anew` sends the state "
            "as it is, `ratchet detach` lets the line go on"
        )


def _fields(conn: Connection, step: StepRow, sink: Sink) -> tuple[Column, ...]:
    """The columns that rows were written with, whatever columns the spec of this very process has."""
    noted = voted_of(conn, step.pipeline, sink, step.txid)
    return (noted and noted.columns) or sink.declared


def _gone(of: DestinationRow, step: int, line: Line) -> StageMismatch:
    return StageMismatch(
        f"{of.pipeline}: {of.destination} has step {step} of {line.step}, and a later one is gone from "
        f"ratchet.steps; `ratchet attach {of.pipeline} {of.destination} --anew` makes it anew"
    )


def _is_superseded(conn: Connection, row: Transaction, sink: Sink) -> bool:
    """Whether a later revision of the whole has taken the place of what this one has brought."""
    c = transactions.c
    later = (c.pipeline == row.pipeline, c.txid == row.txid, c.revision > row.revision, c.releases.is_(None))
    # One of a spec without the sink has left there what it had.
    is_applied = c.state == State.COMMITTED, c.applied.has_key(sink.name)
    return conn.execute(select(exists().where(*later, *is_applied))).scalar_one()
