"""Every sink of the package in the suite, and one that is no part of it."""

from __future__ import annotations

from sqlalchemy import select

from ratchet import Accumulate, Append, Upsert

from .conformance import Case, Conformance, Given
from .seen import Seen


def appended(given: Given) -> list[tuple]:
    return [(r["k"], r["a"], "t", r["_partition"], r["_offset"], 0, txid) for txid, r in given]


def by_key(given: Given) -> dict:
    of: dict = {}
    for txid, row in given:
        of.setdefault(row["k"], []).append((txid, row))
    return of


def summed(given: Given) -> list[tuple]:
    found = []
    for key, rows in by_key(given).items():
        there = [r["a"] for _, r in rows if r["a"] is not None]
        measures = (sum(there), min(there), max(there)) if there else (None, None, None)
        found.append((key, *measures, len(rows), max(txid for txid, _ in rows)))
    return found


def latest(given: Given) -> list[tuple]:
    last = {}
    for txid, r in sorted(given, key=lambda one: (one[0], one[1]["_offset"])):
        last[r["k"]] = (r["k"], r["a"], r["_partition"], r["_offset"], txid)
    return list(last.values())


def newest(given: Given) -> list[tuple]:
    best: dict = {}
    for txid, r in given:
        rank = (r["a"] is not None, r["a"] or 0, txid, r["_offset"], r["_partition"])
        if r["k"] not in best or rank > best[r["k"]][0]:
            best[r["k"]] = rank, (r["k"], r["a"], r["_partition"], r["_offset"], txid)
    return [row for _, row in best.values()]


def seen(given: Given) -> list[tuple]:
    return [(key, len(rows), max(txid for txid, _ in rows)) for key, rows in by_key(given).items()]


class TestAppend(Conformance):
    case = Case(Append("rows", columns="k string, a bigint"), appended)


class TestAppendToATableOfTheUsersOwn(Conformance):
    case = Case(Append("mine", columns="k string, a bigint", existing=True), appended)
    brings = (
        "create table mine (k text, a bigint, more text default 'by the user', _topic text not null, "
        "_partition int not null, _offset bigint not null, _n int not null, _txid bigint not null)"
    )

    def shown(self, ledger):
        with ledger.begin() as conn:
            found = conn.execute(select(self.sink.target)).all()
            assert set(conn.exec_driver_sql("select more from mine").scalars()) <= {"by the user"}
        return sorted(map(tuple, found), key=repr)


class TestAppendWithIndexes(Conformance):
    case = Case(Append("rows", columns="k string, a bigint", indexes=["k, a", "a"]), appended)

    def test_its_indexes_are_those_of_the_table_behind_the_view(self, ledger):
        with ledger.begin() as conn:
            found = conn.exec_driver_sql("select indexdef from pg_indexes where tablename = 'public.rows'").scalars()
            columns = sorted(said.partition(" USING ")[2] for said in found)
        assert columns == ["brin (_txid int8_minmax_multi_ops)", "btree (a)", "btree (k, a)"]


class TestAccumulate(Conformance):
    sink = Accumulate("totals", key="k string", sum="a bigint", min="a bigint", max="a bigint", count="n")
    case = Case(sink, summed)


class TestUpsert(Conformance):
    case = Case(Upsert("latest", key="k string", columns="a bigint"), latest)


class TestUpsertByOrder(Conformance):
    case = Case(Upsert("newest", key="k string", columns="a bigint", order="a"), newest)


class TestASinkThatIsNoPartOfThePackage(Conformance):
    case = Case(Seen("seen", key="k string"), seen)
