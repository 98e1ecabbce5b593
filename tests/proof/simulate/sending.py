"""A destination of a schedule's rows: a table of the same server, which whoever sends must treat as another's."""

from __future__ import annotations

from contextlib import AbstractContextManager

from psycopg import sql

from ratchet import Append, Table
from ratchet.destinations.port import Destination, Mark, Outside, Owner
from ratchet.protocol.follow import Open
from tests.proof.reference import ROWS
from tests.proof.simulate.shapes import NAME, SENT

TABLES = {"rich_sent": sql.Identifier("elsewhere", "rich_sent"), "marks": sql.Identifier("ratchet_marks", "marks")}
"""Those of the destination."""
TOLD = (r"^line: rich_rows: elsewhere:elsewhere\.rich_sent: .*; what is committed waits for it",)
"""What whoever sends may be told, when it loses its connection there."""
_STEPS = "select s.step from ratchet.steps s where s.pipeline = 'line' and s.txid = r._txid and s.step"
_COLUMNS = "a, _partition, _offset, _n, _txid"
# Asked in a snapshot of the ledger: of what the destination has taken wholly it has what readers see here; of other
# transactions what it had before, and nothing of those of which it has taken no step.
FAULTS = f"""
    with mark as (select coalesce(max(step), 0) as step from ratchet_marks.marks),
    here as (
        select {_COLUMNS} from {ROWS} r where not exists ({_STEPS} > (select step from mark))
    ),
    there as (select {_COLUMNS} from elsewhere.rich_sent),
    whole as (select * from there r where not exists ({_STEPS} > (select step from mark)))
    select 'it lacks ' || t::text from (select * from here except all select * from whole) t
    union all select 'it has ' || t::text from (select * from whole except all select * from here) t
    union all select 'it has, of no step, ' || r::text from there r
        where not exists ({_STEPS} <= (select step from mark))
    union all select 'it is ahead' from ratchet.destinations d, mark
        where d.pipeline = 'line' and mark.step > (select step from ratchet.pipelines where pipeline = 'line')
    union all select 'it is said to have what it has not' from ratchet.destinations d, mark
        where d.pipeline = 'line' and d.step > mark.step
"""  # noqa: S608


PLACE = """
    select p.step as decided, d.step as reached
    from ratchet.pipelines p join ratchet.destinations d using (pipeline) where pipeline = 'line'
"""
"""(the last step that is decided, the one up to which the ledger knows that the destination has come)."""


def opener(url: str) -> Open:
    """Opens the destination in the database of the schedules."""

    def opens(destination: Destination, owner: Owner) -> AbstractContextManager[Outside]:
        return destination.open(owner, url)

    return opens


def make(url: str) -> None:
    """Make its tables, as the first that sends would."""
    (sink,) = SENT
    (to,) = sink.destinations
    assert isinstance(to, Table) and isinstance(sink, Append)
    with to.open(Owner(NAME, sink.name, sink.fields), url) as outside:
        outside.start(Mark(0, 1))
