"""The proof: every sink of the demo, row by row, against what pandas makes of the same CSV files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
from sqlalchemy import Connection, select

from ratchet.dev.demo.content import Content
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import dead_letters, ranges, transactions
from ratchet.ledger.states import State
from ratchet.sinks.lookup import sink_of
from ratchet.spec.pipeline import Pipeline

Rows = Iterable[tuple]


@dataclass(frozen=True)
class Check:
    """One comparison of multisets: how many rows each side has, and up to three rows that differ."""

    name: str
    found: int
    expected: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether the two are the same multiset."""
        return not self.differences


def prove(ledger: Ledger, flights: tuple[Pipeline, Content], planes: tuple[Pipeline, Content]) -> list[Check]:
    """Compare every sink, the dead letters and the txids of all rows, in one snapshot of the database."""
    with ledger.snapshot() as conn:
        spec, content = flights
        good = content.records[content.records["kind"] == "ordinary"]
        bad = content.records[content.records["kind"] != "ordinary"]
        checks = [
            _same("flights: (partition, offset)", _positions(conn, spec), _expected(good, "_partition", "_offset")),
            _same("flights: all columns", _read(conn, spec, "flights", *FLIGHTS), _expected(good, *FLIGHTS)),
            _same(
                "delay_by_carrier_month: per key",
                _read(conn, spec, "delay_by_carrier_month", *DELAYS),
                _delays(good),
            ),
            _same(
                "last_flight: per key",
                _read(conn, spec, "last_flight", *LAST),
                _expected(_last(good), *LAST),
            ),
            _same(
                "dead_letters: original bytes",
                _dead_letters(conn, spec),
                _expected(bad, "_partition", "_offset", "key", "fixed"),
            ),
        ]
        spec, content = planes
        register = ("tailnum", *content.fields)
        checks += [
            _same(
                "aircraft: per key",
                _read(conn, spec, "aircraft", *register),
                _expected(_register(content.records), *register),
            ),
            _same("aircraft: dead letters", _dead_letters(conn, spec), []),
        ]
        checks.append(_same("flights: rows outside the range of their txid", _strays(conn, flights[0]), []))
    return checks


PLACE = ("_partition", "_offset")
FLIGHTS = (
    *PLACE,
    "scheduled",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "dep_delay",
    "arr_delay",
    "air_time",
    "distance",
)
DELAYS = ("carrier", "month", "delay_sum", "delay_min", "delay_max", "departures")
LAST = ("tailnum", "scheduled", "carrier", "flight", "origin", "dest", *PLACE)


def _delays(good: pd.DataFrame) -> Rows:
    departed = good[good["dep_delay"].notna()]
    by_key = departed.groupby(["carrier", "month"])["dep_delay"].agg(["sum", "min", "max", "count"])
    return _expected(by_key.reset_index(), "carrier", "month", "sum", "min", "max", "count")


def _last(good: pd.DataFrame) -> pd.DataFrame:
    """Each aircraft's row with the greatest scheduled departure; of equal ones that with the greatest offset."""
    known = good[good["tailnum"].notna()]
    return known.sort_values(["scheduled", "_offset"]).groupby("tailnum").tail(1)


def _register(records: pd.DataFrame) -> pd.DataFrame:
    """Each tail number's last entry, unless it is a tombstone."""
    last = records.groupby("tailnum").tail(1)
    return last[last["kind"] != "tombstone"]


def _expected(frame: pd.DataFrame, *columns: str) -> Rows:
    plain = frame[list(columns)].astype(object)
    for column in plain.columns.intersection(["scheduled"]):
        # The same instants as Python's own datetimes, which hash many times faster.
        plain[column] = pd.Series(pd.DatetimeIndex(frame[column]).to_pydatetime(), plain.index, dtype=object)
    plain = plain.where(plain.notna(), None)  # pyright: ignore[reportArgumentType]: stubs lack None
    return plain.itertuples(index=False, name=None)


def _read(conn: Connection, spec: Pipeline, sink: str, *columns: str) -> Rows:
    table = sink_of(spec, sink).tables[0]
    return map(tuple, conn.execute(select(*(table.c[c] for c in columns))))


def _positions(conn: Connection, spec: Pipeline) -> Rows:
    return _read(conn, spec, "flights", *PLACE)


def _dead_letters(conn: Connection, spec: Pipeline) -> Rows:
    d = dead_letters.c
    query = select(d.partition, d.offset, d.key, d.value).where(d.pipeline == spec.name, d.error != "")
    return map(tuple, conn.execute(query))


def _strays(conn: Connection, spec: Pipeline) -> Rows:
    """Rows whose txid is not committed, or whose offset is not in that transaction's range."""
    table = sink_of(spec, "flights").tables[0]
    home = (
        select(ranges)
        .join(
            transactions,
            (transactions.c.pipeline == ranges.c.pipeline)
            & (transactions.c.txid == ranges.c.txid)
            & (transactions.c.state == State.COMMITTED),
        )
        .where(ranges.c.pipeline == spec.name)
        .subquery()
    )
    at_home = (
        (table.c._txid == home.c.txid)
        & (table.c._partition == home.c.partition)
        & table.c._offset.between(home.c.from_offset, home.c.until_offset - 1)
    )
    query = select(table.c._txid, table.c._partition, table.c._offset).where(
        ~select(1).select_from(home).where(at_home).exists()
    )
    return map(tuple, conn.execute(query))


def _same(name: str, found: Rows, expected: Rows) -> Check:
    have, want = Counter(found), Counter(expected)
    differences: list[str] = []
    if dict(have) != dict(want):
        differences = [f"missing {row}" for row in want - have] + [f"surplus {row}" for row in have - want]
    return Check(name, have.total(), want.total(), tuple(differences[:3]))
