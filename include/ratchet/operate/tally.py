"""tally: whether destinations have as many rows of each transaction as were committed, by counting them there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from psycopg import sql
from sqlalchemy import Connection

from ratchet.destinations.port import Mark, Undecided
from ratchet.errors import RatchetError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger, driver_of
from ratchet.ledger.faults import Faults
from ratchet.ledger.rows import Line
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import counted
from ratchet.protocol.applied import voted
from ratchet.protocol.follow import Open, look, opened
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.port import Check, Sink
from ratchet.spec.pipeline import Pipeline

_TRIES = 3
"""So often a destination is counted that gets steps meanwhile."""

Say = Callable[[str], None]
"""Told how far it has come, in a line."""


def tally(ledger: Ledger, spec: Pipeline, opens: Open, since: int = 1, say: Say = lambda _: None) -> Iterator[Check]:
    """Count the rows of each destination where it is, and hold them against the ledger, transaction by transaction.

    Of sinks with keys a row counts for the transaction that has changed its key last. Transactions before `since` are
    left out, those that are pruned, and those whose rows have not come by a step of their own: from before there was
    the destination, or before it was last attached `--anew` or `--from-here`. A destination that cannot be asked is a
    fault; one that is detached is none.
    """
    with ledger.snapshot() as conn:
        known = steps.destinations_of(conn, spec.name)
    for of in known:
        if not of.is_attached:
            yield Check(f"{of.destination}: it is detached, and not counted", 0, ())
            continue
        say(f"{spec.name}: {of.destination}")
        try:
            yield _tally(ledger, spec, opens, of.destination, since)
        except RatchetError as error:
            yield Check(f"{of.destination}: rows", 0, (str(error),))


def _tally(ledger: Ledger, spec: Pipeline, opens: Open, address: str, since: int) -> Check:
    for _ in range(_TRIES):
        with ledger.snapshot() as conn:
            line, of = read_line(conn, spec.name), steps.destination(conn, spec.name, address)
            if line is None or of is None or not of.started:
                return Check(f"{address}: nothing was sent yet", 0, ())
            if of.step < line.step:
                # That is a fault of its own, where steps are looked at.
                return Check(f"{address}: it lacks steps, and is not counted", 0, ())
            first = max(since, line.pruned + 1, of.since + 1)
            wanted = _wanted(conn, sink_of(spec, of.sink), line, first)
        try:
            # Not within the snapshot: to count takes a while.
            if look(ledger, spec, opens, of) != Mark(of.step, of.token):
                continue
            with opened(spec, opens, of) as (_, _, outside):
                found = outside.counted()
                if found is None:
                    return Check(f"{address}: rows there cannot be counted", 0, ())
                there = _sum(found)
                if outside.look() != Mark(of.step, of.token):
                    continue
        except Undecided:
            continue
        return _compared(address, first, line, wanted, there)
    return Check(f"{address}: it takes one step after the other, and was not counted", 0, ())


def _wanted(conn: Connection, sink: Sink, line: Line, first: int) -> Counter[int]:
    """{txid: how many rows of it a destination has}, from the first transaction on."""
    if not sink.key_columns:
        return Counter({one.txid: one.rows for one in voted(conn, line.pipeline, sink, first, line.head)})
    query = sql.SQL("select _txid, count(*) from {} where _txid between {} and {} group by 1")
    asked = query.format(sql.Identifier(*sink.table), first, line.head)
    return Counter(dict(driver_of(conn).execute(asked).fetchall()))


def _sum(found: Iterable[tuple[int, int]]) -> Counter[int]:
    there = Counter[int]()
    for txid, rows in found:
        there[txid] += rows
    return there


def _compared(address: str, first: int, line: Line, wanted: Counter[int], found: Counter[int]) -> Check:
    faults = Faults()
    for txid in sorted(wanted.keys() | found.keys()):
        if first <= txid and wanted[txid] != found[txid]:
            has = f"{counted(found[txid], 'row')} of transaction {txid}"
            faults.add(f"{address} has {has}, and {wanted[txid]:,} are committed")
    left_out = f"; 1 to {first - 1} are left out" if first > 1 else ""
    said = f"{address}: rows of transactions {first} to {line.head}{left_out}"
    return Check(said, wanted.total(), tuple(faults.lines))
