"""A spec that changes over time: what `migrate` does to tables with rows, what it refuses, and that all stays true."""

from __future__ import annotations

import threading

import psycopg
import pytest
from sqlalchemy import text

from ratchet import Accumulate, Append, Upsert
from ratchet.errors import NotMigrated, OtherCode
from ratchet.ledger.work import Run
from ratchet.operate.migrate import lines_of, migrate
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.lookup import sink_of
from ratchet.spec.pipeline import Pipeline

from .staging import SPEC, a_try, always_active, do, prepare, rows_of, start, vote_of, write_all

WIDER = SPEC.model_copy(
    update={
        "sinks": [
            Append("rows", columns="a bigint, b string", indexes=["b"]),
            Accumulate("totals", key="k string", sum="a bigint", min="a bigint, c int", max="a bigint", count="n"),
            Upsert("latest", key="k string", columns="a bigint, b string"),
        ]
    }
)


def wider_rows(work) -> dict[str, list[dict]]:
    rows = rows_of(WIDER, work)
    for sink, more in {"rows": {"b": "x"}, "totals": {"c_min": 7}, "latest": {"b": "y"}}.items():
        rows[sink] = [{**row, **more} for row in rows[sink]]
    return rows


def wider_rows_of(spec: Pipeline):
    """The rows of WIDER, as far as the spec has their columns."""

    def of(work) -> dict[str, list[dict]]:
        known = {sink.name: {c.name for c in sink_of(spec, sink.name).written} for sink in spec.sinks}
        made = wider_rows(work)
        return {name: [{n: v for n, v in row.items() if n in known[name]} for row in made[name]] for name in made}

    return of


def faults(ledger, spec: Pipeline) -> list[str]:
    return [fault for check in verify(ledger, spec) for fault in check.faults]


def one(ledger, log, spec: Pipeline, run: str, rows) -> int:
    begun = start(ledger, spec, log, run)
    for part in begun.slices:
        work = a_try(ledger, begun, part.number, spec)
        cast_vote(ledger, spec, work.token, vote_of(spec, work, write_all(ledger, spec, work, rows(work))))
    assert commit(ledger, spec, begun.claim).txids == (begun.claim.txid,)
    settle(ledger, spec, Run("dag", run), succeeded=True)
    return begun.claim.txid


def test_columns_measures_and_indexes_that_a_spec_gains_are_added_and_all_stays_verified(ledger, log):
    one(ledger, log, SPEC, "a", lambda work: rows_of(SPEC, work))
    with pytest.raises(NotMigrated, match="column .*b.* does not exist; nothing was begun; `ratchet migrate`"):
        begin(ledger, WIDER, Run("dag", "b"), log.offsets, always_active)
    assert lines_of(migrate(ledger.url, [WIDER]))[1:] == [
        "line: rows: added b to ratchet_delta.public.rows, added index public.rows_by_b to ratchet_delta.public.rows",
        "line: totals: added c_min to public.totals, added c_min to ratchet_delta.public.totals",
        "line: latest: added b to public.latest, added b to ratchet_delta.public.latest",
    ]
    assert faults(ledger, WIDER) == []
    one(ledger, log, WIDER, "b", wider_rows)
    assert faults(ledger, WIDER) == []
    with ledger.begin() as conn:
        assert set(conn.execute(text("select b, _txid from rows"))) == {(None, 1), ("x", 2)}
        # The new columns come behind those that readers know.
        shown = conn.execute(text("select * from rows limit 0")).keys()
        assert list(shown) == ["a", "_topic", "_partition", "_offset", "_n", "_txid", "b"]
    # Damage is found in both, by the columns that each was written with.
    with ledger.begin() as conn:
        conn.execute(text("update ratchet_delta.\"public.rows\" set b = 'z' where _txid = 2 and _offset = 13"))
        conn.execute(text('update ratchet_delta."public.latest" set a = a + 1 where _txid = 1'))
    found = faults(ledger, WIDER)
    assert "rows: transaction 2 has other contents than its votes say" in found
    assert "latest: the delta of transaction 1 is not the one that was committed" in found


def test_columns_that_an_append_loses_stay_and_may_come_back(ledger, log):
    migrate(ledger.url, [WIDER])
    one(ledger, log, WIDER, "a", wider_rows)
    less = WIDER.model_copy(update={"sinks": [SPEC.sinks[0], *WIDER.sinks[1:]]})
    assert lines_of(migrate(ledger.url, [less]))[1:] == [f"line: {name}: fits" for name in ("rows", "totals", "latest")]
    one(ledger, log, less, "b", wider_rows_of(less))
    assert faults(ledger, less) == []
    with ledger.begin() as conn:
        assert set(conn.execute(text("select b, _txid from rows"))) == {("x", 1), (None, 2)}
    migrate(ledger.url, [WIDER])
    assert faults(ledger, WIDER) == []


@pytest.mark.parametrize(("place", "column"), [(1, "c_min"), (2, "b")])
def test_a_column_that_a_state_would_keep_from_another_transaction_is_not_lost(ledger, log, place, column):
    migrate(ledger.url, [WIDER])
    one(ledger, log, WIDER, "a", wider_rows)
    sinks = [*WIDER.sinks]
    sinks[place] = SPEC.sinks[place]
    with pytest.raises(NotMigrated, match=f"its column {column} is not in the spec, and a key's row would keep it"):
        migrate(ledger.url, [SPEC.model_copy(update={"sinks": sinks})])
    assert faults(ledger, WIDER) == []


def test_a_sink_that_was_revised_without_and_comes_back_is_what_it_was(ledger, log):
    one(ledger, log, SPEC, "a", lambda work: rows_of(SPEC, work))
    less = SPEC.model_copy(update={"sinks": SPEC.sinks[1:]})
    migrate(ledger.url, [less])
    again = start(ledger, less, log, "a", 1)
    for part in again.slices:
        work = a_try(ledger, again, part.number, less)
        rows = {name: of for name, of in rows_of(less, work).items() if name != "rows"}
        cast_vote(ledger, less, work.token, vote_of(less, work, write_all(ledger, less, work, rows)))
    commit(ledger, less, again.claim)
    assert faults(ledger, less) == []
    migrate(ledger.url, [SPEC])
    assert faults(ledger, SPEC) == []


def test_what_was_begun_before_a_sink_came_to_mean_something_else_is_begun_anew(ledger, log):
    ordered = SPEC.model_copy(update={"sinks": [*SPEC.sinks[:2], MEANINGS[0][0]]})
    begun = start(ledger, SPEC, log, "a")
    # Nothing is in the table yet.
    migrate(ledger.url, [ordered])
    prepare(ledger, SPEC, begun)
    with pytest.raises(OtherCode, match="its order was a and is none in the spec, since a migration"):
        commit(ledger, SPEC, begun.claim)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="other code")
    again = start(ledger, ordered, log, "b")
    assert (again.how, again.claim.epoch) == ("adopted", 2)
    prepare(ledger, ordered, again)
    assert commit(ledger, ordered, again.claim).txids == (1,)
    assert faults(ledger, ordered) == []


def test_a_column_that_may_not_be_null_cannot_be_added_to_rows(ledger, log):
    one(ledger, log, SPEC, "a", lambda work: rows_of(SPEC, work))
    strict = SPEC.model_copy(update={"sinks": [Append("rows", columns="a bigint, b string not null"), *SPEC.sinks[1:]]})
    with pytest.raises(NotMigrated, match="has rows, which have no b; declare it without not null"):
        migrate(ledger.url, [strict])
    assert faults(ledger, SPEC) == []


MEANINGS = [
    (Upsert("latest", key="k string", columns="a bigint", order="a"), "its order was none and is a in the spec"),
    (Accumulate("totals", key="k bigint", count="n"), "its key was k string and is k bigint in the spec"),
    (Upsert("totals", key="k string", columns="n bigint"), "its kind was accumulate and is upsert in the spec"),
]


@pytest.mark.parametrize(("sink", "said"), MEANINGS, ids=lambda of: getattr(of, "name", ""))
def test_another_order_key_or_kind_is_refused_once_there_are_rows(ledger, log, sink, said):
    other = SPEC.model_copy(update={"sinks": [sink if each.name == sink.name else each for each in SPEC.sinks]})
    prepare(ledger, SPEC, begun := start(ledger, SPEC, log, "a"))
    with pytest.raises(NotMigrated, match=f"{said}.*; nothing was begun"):
        begin(ledger, other, Run("dag", "b"), log.offsets, always_active)
    with pytest.raises(NotMigrated, match=f"{said}, and what is there was written with the old one"):
        migrate(ledger.url, [other])
    assert commit(ledger, SPEC, begun.claim).txids == (1,)
    assert faults(ledger, SPEC) == []


def test_before_there_are_rows_a_sink_may_mean_something_else(ledger, log):
    ordered = SPEC.model_copy(update={"sinks": [*SPEC.sinks[:2], MEANINGS[0][0]]})
    assert "line: latest: created public.latest, created ratchet_delta.public.latest" in lines_of(
        migrate(ledger.url, [ordered])
    )
    one(ledger, log, ordered, "a", lambda work: rows_of(ordered, work))
    assert faults(ledger, ordered) == []


def test_indexes_of_one_name_are_several_indexes(ledger):
    sink = Append("ix", columns="a bigint, b bigint, a_b bigint, txid bigint", indexes=["a, b", "a_b", "txid", "b, a"])
    spec = SPEC.model_copy(update={"name": "ix", "sinks": [sink]})
    migrate(ledger.url, [spec])
    assert lines_of(migrate(ledger.url, [spec]))[1:] == ["ix: ix: fits"]
    with ledger.begin() as conn:
        found = conn.execute(text("select indexdef from pg_indexes where tablename = 'public.ix'")).scalars()
        columns = sorted(said.partition(" USING ")[2].partition(" ")[2] for said in found)
    assert [of for of in columns if "ops" not in of] == ["(a, b)", "(a_b)", "(b, a)", "(txid)"]


def test_a_view_is_no_table_and_a_table_is_no_view(ledger):
    with ledger.begin() as conn:
        conn.execute(text("create table mine (a bigint)"))
        conn.execute(text("create view shown as select 1 as n"))

    def said(sink) -> str:
        with pytest.raises(NotMigrated) as raised:
            migrate(ledger.url, [SPEC.model_copy(update={"name": "other", "sinks": [sink]})])
        return str(raised.value)

    assert "public.mine is a table, and readers are given a view of that name; say existing=True" in said(
        Append("mine", columns="a bigint")
    )
    assert "public.mine._topic is missing; an existing table is never altered" in said(
        Append("mine", columns="a bigint", existing=True)
    )
    assert "public.none does not exist, and the spec says that it is one of your own" in said(
        Append("none", columns="a bigint", existing=True)
    )
    assert "public.shown is a view, and the sink needs a table of that name" in said(
        Accumulate("shown", key="k string", count="n")
    )


def test_a_table_of_the_users_own_may_number_its_rows_and_compute_columns(ledger, log):
    columns = "a bigint, _topic text not null, _partition int not null, _offset bigint not null, _n int not null"
    with ledger.begin() as conn:
        conn.execute(
            text(
                "create table mine (id bigint generated always as identity primary key, serial bigserial not null, "
                "twice bigint not null generated always as (coalesce(2 * a, 0)) stored, "
                f"{columns}, _txid bigint not null)"
            )
        )
    own = SPEC.model_copy(update={"name": "own", "sinks": [Append("mine", columns="a bigint", existing=True)]})
    migrate(ledger.url, [own])
    begun = start(ledger, own, log, "a")
    do(ledger, own, begun, lambda _, offset: {"mine": [{"a": offset}]})
    assert isinstance(commit(ledger, own, begun.claim), Committed)
    with ledger.begin() as conn:
        found = conn.execute(text("select count(distinct id), sum(twice - 2 * a) from mine")).one()
    assert found == (20, 0)
    declared = own.model_copy(update={"sinks": [Append("mine", columns="a bigint, id bigint", existing=True)]})
    with pytest.raises(NotMigrated, match="public.mine.id is filled by PostgreSQL itself, and declared"):
        migrate(ledger.url, [declared])
    with ledger.begin() as conn:
        conn.execute(text("alter table mine add column nobody_fills_it int not null default 0"))
        conn.execute(text("alter table mine alter column nobody_fills_it drop default"))
    with pytest.raises(NotMigrated, match="has the NOT NULL column 'nobody_fills_it' without a default"):
        migrate(ledger.url, [own])


def test_migrate_says_who_holds_a_lock_and_goes_on_when_it_is_free(ledger):
    said: list[str] = []
    with psycopg.connect(ledger.url, application_name="a long report") as other:
        pid = other.info.backend_pid
        other.execute("lock table totals in access share mode")
        told = threading.Event()

        def say(line: str) -> None:
            said.append(line)
            told.set()
            other.rollback()

        made = migrate(ledger.url, [WIDER], say=say)
    assert told.is_set()
    assert f"session {pid} (a long report, idle in transaction, since" in said[0]
    assert ("public.totals", "c_min") in made.sinks[1].columns
