"""Gates: what a spec demands of staged data before it may be committed, asked once an epoch."""

from __future__ import annotations

import statistics

from sqlalchemy import Connection, Row, literal_column, select, update
from sqlalchemy.exc import DBAPIError, OperationalError

from ratchet.errors import Refused
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import is_row, move, notify, read_transaction
from ratchet.ledger.work import name_of
from ratchet.protocol.votes import Voted, read_votes
from ratchet.sinks import stage
from ratchet.spec.pipeline import DEAD_LETTERS, Condition, Gate, MaxChange, MaxDeadLetters, Pipeline


def judge(ledger: Ledger, spec: Pipeline, row: Row) -> None:
    """Ask every gate about a PREPARED epoch and store what they said; a no aborts the transaction.

    An epoch that has its verdict is not asked again. Raises Refused with the numbers of the gate that said no.
    """
    if row.state != State.PREPARED or is_passed(spec, row):
        return
    with ledger.snapshot() as conn:
        now = read_transaction(conn, row.pipeline, row.txid, row.revision)
        if _is_over(now, row):
            return
        votes = read_votes(conn, spec.name, row.txid, row.epoch)
        said = {gate.name: _ask(conn, spec, gate, row, votes) for gate in spec.gates}
    noes = [f"gate {name!r}: {numbers['why']}" for name, numbers in said.items() if not numbers["yes"]]
    with ledger.begin() as conn:
        now = read_transaction(conn, row.pipeline, row.txid, row.revision, lock=True)
        if _is_over(now, row):
            return
        if noes:
            move(conn, now, State.ABORTED, who=row.run_id, why=noes[0], detail={"gates": said}, reason="; ".join(noes))
        else:
            conn.execute(update(transactions).where(is_row(now)).values(verdict=said))
            history.record(conn, now, who=row.run_id, move="verdict", detail={"gates": said})
            notify(conn, row.pipeline)
    if noes:
        raise Refused(f"{row.pipeline}: {name_of(row.txid, row.revision)} is aborted: {'; '.join(noes)}")


def _is_over(now: Row, row: Row) -> bool:
    """Whether somebody was quicker, and perhaps the stages are gone; whoever goes on looks at the state again."""
    return now.state != State.PREPARED or now.epoch != row.epoch


def is_passed(spec: Pipeline, row: Row) -> bool:
    """Whether nothing is left to ask about the row's epoch: it has its verdict, or the spec has no gates."""
    return not spec.gates or row.verdict is not None


def _ask(conn: Connection, spec: Pipeline, gate: Gate, row: Row, votes: list[Voted]) -> dict:
    """`{"yes": bool, "why": a line, and the numbers}`."""
    match gate:
        case MaxDeadLetters():
            return _dead_letters(gate, row, votes)
        case MaxChange():
            return _change(conn, gate, row, votes)
        case Condition():
            return _condition(conn, spec, gate, row, votes)


def _dead_letters(gate: MaxDeadLetters, row: Row, votes: list[Voted]) -> dict:
    dead = sum(sinks[DEAD_LETTERS].rows for _, _, sinks in votes)
    ratio = dead / row.records if row.records else 0.0
    why = f"{dead:,} of {row.records:,} records are dead letters, {ratio:.4g}; the limit is {gate.ratio:.4g}"
    return {"yes": ratio <= gate.ratio, "why": why, "dead_letters": dead, "records": row.records, "ratio": ratio}


def _change(conn: Connection, gate: MaxChange, row: Row, votes: list[Voted]) -> dict:
    rows = sum(sinks[gate.sink].rows for _, _, sinks in votes)
    now = rows / row.records if row.records else 0.0
    before = _rows_per_record(conn, gate, row)
    numbers = {"rows": rows, "records": row.records, "rows_per_record": now}
    if not before or not row.records:
        return {"yes": True, "why": "there is nothing to compare with", **numbers}
    usual = statistics.median(before)
    least, greatest = usual / gate.factor, usual * gate.factor
    why = (
        f"{gate.sink} has {rows:,} rows of {row.records:,} records, {now:.4g} each; the median of the last "
        f"{len(before)} transactions is {usual:.4g}, so {least:.4g} to {greatest:.4g} may pass"
    )
    return {"yes": least <= now <= greatest, "why": why, "median": usual, "transactions": len(before), **numbers}


def _rows_per_record(conn: Connection, gate: MaxChange, row: Row) -> list[float]:
    c = transactions.c
    found = conn.execute(
        select(c.applied, c.records)
        .where(c.pipeline == row.pipeline, c.txid != row.txid, c.revision == 0, c.state == State.COMMITTED)
        .where(c.records > 0)
        .order_by(c.txid.desc())
        .limit(gate.over)
    )
    return [applied[gate.sink]["rows"] / records for applied, records in found if gate.sink in (applied or {})]


def _condition(conn: Connection, spec: Pipeline, gate: Condition, row: Row, votes: list[Voted]) -> dict:
    relations = stage.relations(conn, spec.name, row.txid, row.epoch)
    tables = []
    for sink in [*spec.sinks, None]:
        name = sink.name if sink else DEAD_LETTERS
        staged = stage.table(relations[name], sink)
        of_sink = [(number, attempt, sinks[name]) for number, attempt, sinks in votes]
        shown = [c for c in staged.columns if c.name not in {tag.name for tag in stage.TAGS}]
        tables.append(stage.voted(staged, of_sink, *shown).cte(name.replace(".", "_")))
    try:
        # The expression is the spec's, which is code.
        with conn.begin_nested():
            answer = conn.execute(select(literal_column(f"({gate.sql})")).add_cte(*tables)).scalar_one()
    except OperationalError:
        raise
    except DBAPIError as error:
        return {"yes": False, "why": f"it cannot be evaluated: {str(error.orig).splitlines()[0]}"}
    return {"yes": answer is True, "why": f"{gate.sql} is {'null' if answer is None else str(answer).lower()}"}
