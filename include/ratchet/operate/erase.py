"""`ratchet erase`: delete the rows of one key from an Append, so that the ledger, and whoever verifies, knows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DataError, DBAPIError, ProgrammingError

from ratchet.errors import IllegalMove, SettingsError
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import lock_rows, read_line, read_transaction
from ratchet.operate.verify import voted
from ratchet.sinks import erasures
from ratchet.sinks.kept import Kept
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Stretch
from ratchet.spec.pipeline import Pipeline

MOVE = "erase"
"""The name of it in the history."""
_TOLD_EVERY = 100


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
            f"transaction {first}" if first == last else f"{len(done.rows):,} transactions from {first} to {last}"
        )
        said = [f"{of}: {sum(done.rows.values()):,} rows of {of_which} are erased; none of these is revised any more"]
    else:
        said = [f"{of}: up to transaction {done.head} no row has these values in {', '.join(done.columns)}"]
    if done.beyond:
        said.append(
            f"{done.beyond} transactions are not committed yet, and were not looked at; erase once more after that"
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
    sink keeps no rows, a column is not its own, or a value is none of its type; IllegalMove where there is no line.
    """
    of = _sink(spec, sink, key)
    with ledger.begin(dry_run=dry_run) as conn:
        # A revision comes before, or finds that it is not to be applied any more; readers and commits are not held up.
        lock_rows(conn, spec.name)
        line = read_line(conn, spec.name)
        if line is None:
            raise IllegalMove(f"the ledger has nothing of pipeline {spec.name}")
        found = _found(conn, spec, of, key, line.head)
        gone: dict[int, erasures.Sum] = {}
        for number, txid in enumerate(found, 1):
            committed = voted(conn, spec.name, of.name, txid, txid)
            gone[txid] = of.erase(conn, Stretch(spec.name, txid, txid, line.compacted, say), committed, key)
            if txid > line.pruned:
                row = read_transaction(conn, spec.name, txid, lock=True)
                detail = {"why": reason, "sink": of.name, "columns": sorted(key), "rows": gone[txid][0]}
                history.record(conn, row, who=who, move=MOVE, detail=detail)
            if not number % _TOLD_EVERY:
                say(f"{spec.name}: {of.name}, {number:,} of {len(found):,} transactions")
        erasures.note(conn, spec.name, of.table, gone, who, reason)
    rows = {txid: rows for txid, (rows, _) in gone.items()}
    return Erased(spec.name, of.name, tuple(key), rows, line.head, line.in_flight, dry_run)


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
    columns = [column.name for column in of.written]
    for column in key:
        if column not in columns:
            raise SettingsError(f"{spec.name}: {name} has no column {column!r}; it has {', '.join(columns)}")
    return of


def _found(conn: Connection, spec: Pipeline, of: Kept, key: Mapping[str, str], head: int) -> list[int]:
    try:
        return of.txids_with(conn, spec.name, key, head)
    except (DataError, ProgrammingError) as error:
        raise SettingsError(f"{spec.name}: {of.name}: {_without_values(error)}") from None


def _without_values(error: DBAPIError) -> str:
    said = getattr(error.orig, "sqlstate", None) or ""
    return f"a value is none of its column's type, or PostgreSQL does not compare that type ({said})"
