"""`ratchet erase`: delete the rows of one key from an Append, so that the ledger, and whoever verifies, knows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError

from ratchet.errors import IllegalMove, SettingsError
from ratchet.ledger import history, steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line
from ratchet.ledger.schema import transactions
from ratchet.ledger.transactions import is_unfinished, lock_pipeline, lock_rows, read_line, read_transaction
from ratchet.ledger.work import counted
from ratchet.operate.naming import TOPIC, key_in_line
from ratchet.protocol import replays
from ratchet.protocol.applied import voted
from ratchet.sinks import erasures, layout
from ratchet.sinks.kept import Kept
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Stretch
from ratchet.sinks.types import TXID
from ratchet.spec.pipeline import Pipeline

MOVE = "erase"
"""The name of it in the history."""


@dataclass(frozen=True)
class Erased:
    """What was erased or, when `dry_run`, would be: {txid: how many rows}; `beyond` the head are so many others."""

    pipeline: str
    sink: str
    columns: tuple[str, ...]
    rows: dict[int, int]
    head: int
    beyond: int
    dry_run: bool = False


def lines_of(done: Erased) -> list[str]:
    """What a person reads of it; the values are not repeated."""
    of = f"{done.pipeline}: {done.sink}"
    if done.rows:
        first, last = min(done.rows), max(done.rows)
        of_which = (
            f"transaction {first}"
            if first == last
            else f"{counted(len(done.rows), 'transaction')} from {first} to {last}"
        )
        number = sum(done.rows.values())
        rows = counted(number, "row")
        said = [
            f"{of}: {rows} of {of_which} {'is' if number == 1 else 'are'} erased; none of these is revised any more"
        ]
    else:
        said = [f"{of}: up to transaction {done.head} no row has these values in {', '.join(done.columns)}"]
    if done.beyond:
        said.append(
            f"{counted(done.beyond, 'transaction or revision is', 'transactions and revisions are')} not committed "
            "yet, and not looked at; erase once more after them"
        )
    return [*said, "this was a dry run: nothing was changed"] if done.dry_run else said


def key_given(said: Sequence[str]) -> dict[str, str]:
    """{column: value} of `column=value`; SettingsError where it is not so."""
    key: dict[str, str] = {}
    for part in said:
        column, sign, value = part.partition("=")
        if not sign or not column or column in key:
            # The value may be a person's.
            raise SettingsError(f"{column!r}: give each column once, with its value, as customer_id=17")
        key[column] = value
    return key


def erase(
    ledger: Ledger,
    spec: Pipeline,
    sink: str,
    key: Mapping[str, str],
    reason: str,
    who: str,
    say: Callable[[str], None] = lambda _: None,
    *,
    dry_run: bool = False,
) -> Erased:
    """Delete the visible rows of a sink in which each column of `key` has its value, in one database transaction.

    Their number and checksum by transaction, without the values, are noted, so that what stays can be verified. A
    transaction of which rows are erased is not revised any more: they would come back. Raises SettingsError where the
    sink keeps no rows, a column is not its own, a value is none of its type, or a partition is named without its topic
    where there are several; IllegalMove where there is no line.
    """
    of = _sink(spec, sink, key)
    with ledger.begin(dry_run=dry_run) as conn:
        # A revision comes before, or finds that it is not to be applied any more; readers and commits are not held up.
        lock_rows(conn, spec.name)
        # What is decided meanwhile must not lose rows before a destination has them.
        line = lock_pipeline(conn, spec.name) if of.destinations else read_line(conn, spec.name)
        if line is None:
            raise IllegalMove(f"the ledger has nothing of pipeline {spec.name}")
        misfit = layout.misfit(conn, spec)
        if misfit:
            raise SettingsError(f"{spec.name}: {misfit}; nothing was erased")
        if of.destinations and steps.is_behind(conn, spec.name):
            raise IllegalMove(
                f"{spec.name}: a destination has still to get some of the rows, as `ratchet status {spec.name}` says; "
                "erase once it has them; nothing was erased"
            )
        # A moment without a zone is the same one everywhere.
        conn.execute(text("set local timezone to 'UTC'"))
        gone = _gone(conn, spec, of, key_in_line(spec.name, line.topics, key), line, say)
        # Last, since a begin that revises one of these waits for its row.
        for txid in sorted(txid for txid in gone if txid > line.pruned):
            row = read_transaction(conn, spec.name, txid, lock=True)
            detail = {"why": reason, "sink": of.name, "columns": sorted(key), "rows": gone[txid][0]}
            history.record(conn, row, who=who, move=MOVE, detail=detail)
        erasures.note(conn, spec.name, of.table, gone, who, reason)
        beyond = conn.execute(select(func.count()).select_from(transactions).where(*_under_way(spec.name)))
        waiting = replays.waiting(conn, spec.name)
        rows = {txid: rows for txid, (rows, _) in sorted(gone.items())}
        return Erased(spec.name, of.name, tuple(key), rows, line.head, beyond.scalar_one() + waiting, dry_run)


def _gone(
    conn: Connection, spec: Pipeline, of: Kept, key: Mapping[str, str], line: Line, say: Callable[[str], None]
) -> dict[int, erasures.Sum]:
    try:
        found = of.txids_with(conn, spec.name, key, line.head)
        if not found:
            return {}
        stretch = Stretch(spec.name, found[0], found[-1], line.compacted, say)
        return of.erase(conn, stretch, voted(conn, spec.name, of, found[0], found[-1]), key)
    except (DataError, ProgrammingError, IntegrityError) as error:
        raise SettingsError(f"{spec.name}: {of.name}: {_without_values(error)}; nothing was erased") from None


def _under_way(pipeline: str) -> tuple[ColumnElement[bool], ...]:
    """What may still bring rows: transactions behind the head, and revisions that are not given up."""
    c = transactions.c
    return c.pipeline == pipeline, is_unfinished(), (c.revision == 0) | c.halted_at.is_(None)


def _sink(spec: Pipeline, name: str, key: Mapping[str, str]) -> Kept:
    sinks = {sink.name: sink for sink in sinks_of(spec)}
    if name not in sinks:
        raise SettingsError(f"{spec.name}: there is no sink {name!r}; it has {', '.join(sinks)}")
    of = sinks[name]
    if not isinstance(of, Kept):
        raise SettingsError(
            f"{spec.name}: {name} keeps no rows of their own, but a state for each key; a tombstone takes an Upsert's "
            "key away, and its deltas are merged after keep_deltas"
        )
    columns = [*(column.name for column in (*of.written, TXID)), TOPIC]
    for column in key:
        if column not in columns:
            raise SettingsError(f"{spec.name}: {name} has no column {column!r}; it has {', '.join(columns)}")
    return of


def _without_values(error: DBAPIError) -> str:
    sqlstate, names = getattr(error.orig, "sqlstate", None) or "", getattr(error.orig, "diag", None)
    if isinstance(error, IntegrityError):
        return f"constraint {getattr(names, 'constraint_name', None)} of a table that refers to such rows ({sqlstate})"
    return f"a value is none of its column's type, or PostgreSQL does not compare that type ({sqlstate})"
