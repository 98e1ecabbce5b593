"""What a table in another database is, takes and refuses; values are there what they are here."""

from __future__ import annotations

import random

import psycopg
import pytest
from psycopg import sql

from ratchet import Append, Table
from ratchet.errors import DestinationRefused, SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.lookup import sink_of

from ..staging import a_try, appended, start, state, vote_of, write_all
from ..test_sent_rows import ROWS, SPEC_OF_ALL, cells
from .elsewhere import SENT, TO, Elsewhere, places, sent
from .typed import commit_rows


def test_two_pipelines_do_not_share_a_table(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    other = SENT.model_copy(update={"name": "other", "sinks": [Append("others", columns="a bigint", to=TO)]})
    migrate(ledger.url, [other])
    with pytest.raises(DestinationRefused, match="is the destination warehouse:copied of line: rows already; name"):
        begun = start(ledger, other, log, "x")
        for part in begun.slices:
            work = a_try(ledger, begun, part.number, other)
            votes = write_all(ledger, other, work, {"others": []})
            cast_vote(ledger, other, work.token, vote_of(other, work, votes))
        commit(ledger, other, begun.claim, elsewhere.opens)
    sent(ledger, elsewhere, log, "b")
    assert elsewhere.rows() == appended(ledger)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("create table copied (a bigint, _txid bigint); insert into copied values (1, 1)", "has rows already"),
        (
            "create table copied (a text, _source smallint, _partition int, _offset bigint, _n int, _txid bigint)",
            "column a is text, and is written as bigint; alter it there",
        ),
        ("create view copied as select 1 as a", "is there already, and is no table"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(ledger, log, elsewhere, there, said):
    elsewhere.ask(there)
    with pytest.raises(DestinationRefused, match=said):
        sent(ledger, elsewhere, log, "a")
    assert state(ledger, 1) == State.COMMITTED


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("drop table copied", "does not exist; its mark does, so somebody has dropped it"),
        ("alter table copied alter a type numeric", "column a is numeric, and is written as bigint"),
        ("alter table copied add constraint small check (a < 15)", 'violates check constraint "small"'),
        (
            "alter table copied add b int not null default 1; alter table copied alter b drop default",
            "null value in column",
        ),
    ],
)
@pytest.mark.invariant("I1")
def test_what_a_table_does_not_take_waits_until_somebody_has_mended_it(ledger, log, elsewhere, there, said):
    sent(ledger, elsewhere, log, "a")
    before = elsewhere.rows()
    elsewhere.ask(there)
    with pytest.raises(DestinationRefused, match=said):
        sent(ledger, elsewhere, log, "b")
    assert elsewhere.step == 1
    if "check" in there:
        elsewhere.ask("alter table copied drop constraint small")
    elif "numeric" in there:
        elsewhere.ask("alter table copied alter a type bigint")
    elif "add b" in there:
        elsewhere.ask("alter table copied drop b")
    else:
        return
    assert elsewhere.rows() == before
    sent(ledger, elsewhere, log, "c")
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 3


@pytest.mark.invariant("I1")
def test_a_column_that_the_spec_gains_is_added_there(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    wider = Append("rows", columns="a bigint, b string", to=TO)
    spec = SENT.model_copy(update={"sinks": [wider, *SENT.sinks[1:]]})
    migrate(ledger.url, [spec])
    sent(ledger, elsewhere, log, "b", spec)
    assert elsewhere.rows() == appended(ledger)
    renamed = Append("rows", columns="c bigint, b string", renamed=(("c", "a"),), to=TO)
    spec = SENT.model_copy(update={"sinks": [renamed, *SENT.sinks[1:]]})
    migrate(ledger.url, [spec])
    begun = start(ledger, spec, log, "c")
    for part in begun.slices:
        work = a_try(ledger, begun, part.number, spec)
        votes = write_all(ledger, spec, work, {"rows": [], "totals": [], "latest": []})
        cast_vote(ledger, spec, work.token, vote_of(spec, work, votes))
    with pytest.raises(DestinationRefused, match="no column c, which was a; rename it there too"):
        commit(ledger, spec, begun.claim, elsewhere.opens)
    elsewhere.ask("alter table copied rename a to c")
    commit(ledger, spec, begun.claim, elsewhere.opens)
    assert elsewhere.step == 3


@pytest.mark.invariant("I1")
def test_values_of_every_type_are_there_what_they_are_here(ledger_url, log, elsewhere):
    all_types = SPEC_OF_ALL.sinks[0].model_copy(update={"to": (Table("all_types", database="warehouse"),)})
    spec = SPEC_OF_ALL.model_copy(update={"sinks": [all_types], "max_records": ROWS, "slice_records": ROWS})
    log.beginning, log.stable = {0: 0}, {0: ROWS}
    migrate(ledger_url, [spec])
    sink, dice = sink_of(spec, "typed_rows"), random.Random(7)
    with Ledger(ledger_url) as ledger:
        commit_rows(ledger, spec, log, [cells(dice) for _ in range(ROWS)], elsewhere.opens)
    names = sql.SQL(", ").join(map(sql.Identifier, [*cells(random.Random(0)), "_source", "_partition", "_txid"]))
    query = sql.SQL("select {} from {} order by _offset")
    with psycopg.connect(ledger_url) as conn:
        expected = conn.execute(query.format(names, sql.Identifier(*sink.home))).fetchall()
    found = elsewhere.ask(query.format(names, sql.Identifier("all_types")))
    assert found == expected and len(found) == ROWS


@pytest.mark.invariant("I1")
def test_two_sinks_do_not_share_a_table_by_two_connections(ledger, log, elsewhere):
    """Both connections lead to one database."""
    sinks = [
        Append("rows", columns="a bigint", to=TO),
        Append("more", columns="a bigint", to=Table("copied", database="warehouse_too")),
    ]
    spec = SENT.model_copy(update={"sinks": sinks})
    migrate(ledger.url, [spec])
    begun = start(ledger, spec, log, "a")
    for part in begun.slices:
        work = a_try(ledger, begun, part.number, spec)
        made = {"rows": [], "more": [{"a": 1, "_partition": 0, "_offset": work.ranges[0].from_offset, "_n": 0}]}
        made["more"] = made["more"] if work.ranges[0].partition == 0 else []
        cast_vote(ledger, spec, work.token, vote_of(spec, work, write_all(ledger, spec, work, made)))
    with pytest.raises(DestinationRefused, match="is the destination warehouse:copied of line: rows already"):
        commit(ledger, spec, begun.claim, elsewhere.opens)
    with ledger.begin() as conn:
        assert [of.step for of in steps.destinations_of(conn, "line")] == [1, 0]


@pytest.mark.invariant("I1")
def test_a_process_with_an_older_spec_sends_the_columns_that_were_written(ledger, log, elsewhere):
    wider = SENT.model_copy(update={"sinks": [Append("rows", columns="a bigint, b string", to=TO), *SENT.sinks[1:]]})
    sent(ledger, elsewhere, log, "a")
    migrate(ledger.url, [wider])
    begun = start(ledger, wider, log, "b")
    for part in begun.slices:
        work = a_try(ledger, begun, part.number, wider)
        made = [{"a": at["_offset"], "b": f"b{at['_offset']}", **at} for at in places(work)]
        votes = write_all(ledger, wider, work, {"rows": made, "totals": [], "latest": []})
        cast_vote(ledger, wider, work.token, vote_of(wider, work, votes))
    with pytest.raises(SettingsError):
        commit(ledger, wider, begun.claim)
    assert follow(ledger, SENT, elsewhere.opens) == ["warehouse:copied is at step 2, 1 further"]
    assert elsewhere.ask("select b = 'b' || a from copied where _txid = 2 group by 1") == [(True,)]


@pytest.mark.invariant("I1")
def test_texts_are_what_they_were_where_another_database_has_another_encoding(ledger_url, log, postgres):
    text = Append("rows", columns="a bigint, b string", to=TO)
    spec = SENT.model_copy(update={"sinks": [text]})
    migrate(ledger_url, [spec])
    name = "latin_1"
    with psycopg.connect(postgres.ledger_url, autocommit=True) as conn:
        conn.execute("drop database if exists latin_1 with (force)")
        conn.execute("create database latin_1 encoding 'LATIN1' locale 'C' template template0")
    there = Elsewhere(postgres.database_url(name))
    with Ledger(ledger_url) as ledger:
        for run, said in (("a", "é"), ("b", "\N{GREEK SMALL LETTER OMEGA}")):
            begun = start(ledger, spec, log, run)
            for part in begun.slices:
                work = a_try(ledger, begun, part.number, spec)
                made = [{"a": at["_offset"], "b": said, **at} for at in places(work)]
                cast_vote(ledger, spec, work.token, vote_of(spec, work, write_all(ledger, spec, work, {"rows": made})))
            if run == "a":
                commit(ledger, spec, begun.claim, there.opens)
                assert set(there.ask("select b, convert_to(b, 'UTF8') from copied")) == {("é", "é".encode())}
            else:
                with pytest.raises(DestinationRefused, match="has no equivalent in encoding"):
                    commit(ledger, spec, begun.claim, there.opens)
    with psycopg.connect(postgres.ledger_url, autocommit=True) as conn:
        conn.execute("drop database latin_1 with (force)")
