"""What is committed goes to destinations too, each row once, whatever is killed, lost, repeated or late."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager, suppress

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from ratchet import Append, Table
from ratchet.errors import DestinationRefused, DestinationUnreachable, MarkMoved, NotMigrated, SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.work import Run, SinkVote, Tag
from ratchet.operate.actions import void
from ratchet.operate.migrate import migrate
from ratchet.operate.upkeep import upkeep
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit, move_on
from ratchet.protocol.follow import follow
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.types import POSITION
from ratchet.sinks.writer import Into, Writer
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.values.arrow import arrow_schema

from .elsewhere import SENT, TO, Elsewhere, sent
from .proxy import Loss, Proxy
from .staging import SPEC, Log, a_try, always_active, appended, prepare, start, state, vote_of, write_all
from .test_sent_rows import ROWS, SPEC_OF_ALL, cells


@pytest.fixture
def log() -> Log:
    return Log(stable={0: 200, 1: 200})


@pytest.fixture
def ledger(ledger_url):
    migrate(ledger_url, [SENT])
    with Ledger(ledger_url) as opened:
        yield opened


def revise(ledger: Ledger, there: Elsewhere, log: Log, run: str, clear_number: int, drop: int = 0) -> None:
    """A run is cleared and works anew; of each slice the first rows are missing."""
    begun = start(ledger, SENT, log, run, clear_number)
    for part in begun.slices:
        work = a_try(ledger, begun, part.number, SENT)
        made = [{"a": -at["_offset"], **at} for at in places(work)][drop:]
        votes = write_all(ledger, SENT, work, {"rows": made, "totals": [], "latest": []})
        cast_vote(ledger, SENT, work.token, vote_of(SENT, work, votes))
    assert isinstance(commit(ledger, SENT, begun.claim, there.opens), Committed)
    settle(ledger, SENT, Run("dag", run, clear_number), succeeded=True)


def places(work) -> list[dict[str, int]]:
    """The position of each record of a slice."""
    offsets = [(r.partition, offset) for r in work.ranges for offset in range(r.from_offset, r.until_offset)]
    return [{"_partition": partition, "_offset": offset, "_n": 0} for partition, offset in offsets]


@pytest.mark.invariant("I1", "I3")
def test_a_destination_has_the_rows_of_its_sink_and_says_up_to_which_step(ledger, log, elsewhere):
    for number, run in enumerate("abc", 1):
        sent(ledger, elsewhere, log, run)
        assert elsewhere.rows() == appended(ledger) and elsewhere.step == number
    mark = elsewhere.ask("select schema, name, pipeline, sink, step, txid from ratchet_marks.marks")
    assert mark == [("public", "copied", "line", "rows", 3, 3)]
    # Nothing is left to do, and nobody is asked.
    elsewhere.opened.clear()
    assert follow(ledger, SENT, elsewhere.opens) == [] and elsewhere.opened == []


@pytest.mark.invariant("I1", "I2")
def test_a_group_is_sent_in_the_order_of_the_line_and_voids_are_no_steps(ledger, log, elsewhere):
    begun = [start(ledger, SENT, log, run) for run in "abcd"]
    void(ledger, SENT, 2, "for the test", "me")
    for each in (begun[3], begun[2], begun[0]):
        prepare(ledger, SENT, each)
    outcome = commit(ledger, SENT, begun[0].claim, elsewhere.opens)
    assert isinstance(outcome, Committed) and outcome.txids == (1, 3, 4)
    assert outcome.message.endswith("; warehouse:copied is at step 3, 3 further")
    assert elsewhere.rows() == appended(ledger) and {row[3] for row in elsewhere.rows()} == {1, 3, 4}
    with ledger.begin() as conn:
        found = [steps.step_of(conn, "line", number) for number in (1, 2, 3, 4)]
    assert [(step.txid, step.revision) for step in found if step] == [(1, 0), (3, 0), (4, 0)]


@pytest.mark.invariant("I1")
def test_a_revision_takes_the_place_of_the_rows_and_one_of_a_void_comes_beside_them(ledger, log, elsewhere):
    for run in "abc":
        if run == "b":
            prepare(ledger, SENT, start(ledger, SENT, log, run))
            void(ledger, SENT, 2, "for the test", "me")
        else:
            sent(ledger, elsewhere, log, run)
        settle(ledger, SENT, Run("dag", run), succeeded=True)
    revise(ledger, elsewhere, log, "a", 1, drop=2)
    kept = [row for row in elsewhere.rows() if row[3] == 1]
    assert elsewhere.rows() == appended(ledger) and len(kept) == 20 - 2 * 2
    assert elsewhere.ask("select count(*) from copied where _txid = 1 and a > 0") == [(0,)]
    assert elsewhere.step == 3


@pytest.mark.invariant("I1", "I2", "I3")
def test_while_a_destination_does_not_answer_one_group_is_committed_and_no_more(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    with Proxy(elsewhere.url) as proxy:
        away = Elsewhere(proxy.url)
        proxy.refuse(True)
        second, third = start(ledger, SENT, log, "b"), start(ledger, SENT, log, "c")
        prepare(ledger, SENT, second)
        with pytest.raises(
            DestinationUnreachable, match="line: rows: warehouse:copied: .*; what is committed waits for"
        ):
            commit(ledger, SENT, second.claim, away.opens)
        assert state(ledger, 2) == State.COMMITTED and elsewhere.step == 1
        prepare(ledger, SENT, third)
        for _ in range(2):
            with pytest.raises(DestinationUnreachable):
                commit(ledger, SENT, third.claim, away.opens)
        with pytest.raises(SettingsError, match="no connection to it is known here"):
            commit(ledger, SENT, third.claim)
        assert move_on(ledger, SENT).committed == ()
        assert state(ledger, 3) == State.PREPARED
        proxy.refuse(False)
        # The same call again, of the one that is committed as well.
        outcome = commit(ledger, SENT, second.claim, away.opens)
        assert isinstance(outcome, Committed) and not outcome.txids and elsewhere.step == 2
        commit(ledger, SENT, third.claim, away.opens)
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 3


@pytest.mark.invariant("I1")
def test_a_revision_waits_for_a_destination_too(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    settle(ledger, SENT, Run("dag", "a"), succeeded=True)
    second = start(ledger, SENT, log, "b")
    prepare(ledger, SENT, second)
    with pytest.raises(SettingsError):
        commit(ledger, SENT, second.claim)
    assert state(ledger, 2) == State.COMMITTED and elsewhere.step == 1
    revise(ledger, elsewhere, log, "a", 1, drop=1)
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 3


@pytest.mark.parametrize("how", [Loss.BEFORE, Loss.UNANSWERED])
@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.invariant("I1", "I6")
def test_whatever_commit_is_lost_there_the_mark_tells_and_the_same_call_goes_on(ledger, log, elsewhere, how, number):
    with Proxy(elsewhere.url) as proxy:
        away = Elsewhere(proxy.url)
        plan = proxy.lose_commit(number, how)
        begun = start(ledger, SENT, log, "a")
        prepare(ledger, SENT, begun)
        failed = 0
        with suppress(DestinationUnreachable):
            commit(ledger, SENT, begun.claim, away.opens)
            failed -= 1
        failed += 1
        assert isinstance(commit(ledger, SENT, begun.claim, away.opens), Committed)
        assert failed == plan.reached.is_set()
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 1
    sent(ledger, elsewhere, log, "b")
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 2


@pytest.mark.parametrize("then", ["again", "revised"])
@pytest.mark.invariant("I1", "I6")
def test_a_follower_that_was_stopped_changes_nothing_when_others_have_gone_on(ledger, log, elsewhere, then):
    begun = start(ledger, SENT, log, "a")
    prepare(ledger, SENT, begun)
    with pytest.raises(SettingsError):
        commit(ledger, SENT, begun.claim)
    is_there, go_on, said = threading.Event(), threading.Event(), []

    @contextmanager
    def stopped(destination, owner):
        with destination.open(owner, elsewhere.url) as outside:
            apply = outside.apply

            def late(*given) -> bool:
                is_there.set()
                assert go_on.wait(60)
                said.append(apply(*given))
                return said[-1]

            outside.apply = late
            yield outside

    late = threading.Thread(target=follow, args=(ledger, SENT, stopped))
    late.start()
    assert is_there.wait(60)
    commit(ledger, SENT, begun.claim, elsewhere.opens)
    settle(ledger, SENT, Run("dag", "a"), succeeded=True)
    if then == "revised":
        revise(ledger, elsewhere, log, "a", 1, drop=3)
    before = elsewhere.ask("select * from copied order by 1, 2, 3")
    go_on.set()
    late.join(60)
    assert said == [False]
    assert elsewhere.ask("select * from copied order by 1, 2, 3") == before and elsewhere.rows() == appended(ledger)
    sent(ledger, elsewhere, log, "b")
    assert elsewhere.rows() == appended(ledger)


@pytest.mark.invariant("I1")
def test_many_that_go_on_at_once_send_each_row_once(ledger, log, elsewhere):
    begun = [start(ledger, SENT, log, run) for run in "abcd"]
    for each in begun:
        prepare(ledger, SENT, each)
    with pytest.raises(SettingsError):
        commit(ledger, SENT, begun[0].claim)
    failed: list[Exception] = []

    def going() -> None:
        try:
            with Ledger(ledger.url) as own:
                follow(own, SENT, elsewhere.opens)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=going) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == [] and elsewhere.rows() == appended(ledger) and elsewhere.step == 4


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ("update ratchet_marks.marks set step = 7", "its mark is step 7 .*no step of this ledger; the ledger has it"),
        ("update ratchet_marks.marks set token = token + 1", "no step of this ledger"),
        ("update ratchet_marks.marks set step = 1", "no step of this ledger"),
        ("delete from ratchet_marks.marks", "its mark is gone"),
        ("drop schema ratchet_marks cascade", "its mark is gone"),
    ],
)
@pytest.mark.invariant("I1")
def test_nothing_is_sent_where_somebody_has_moved_the_mark(ledger, log, elsewhere, moved, said):
    for run in "ab":
        sent(ledger, elsewhere, log, run)
    before = elsewhere.rows()
    elsewhere.ask(moved)
    with pytest.raises(MarkMoved, match=f"line: warehouse:copied: .*{said}.*ratchet detach line warehouse:copied"):
        sent(ledger, elsewhere, log, "c")
    assert state(ledger, 3) == State.COMMITTED
    with pytest.raises(MarkMoved):
        sent(ledger, elsewhere, log, "d")
    assert state(ledger, 4) == State.PREPARED and elsewhere.rows() == before


def test_an_older_copy_of_a_destination_is_told(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    mark = elsewhere.ask("select step, token from ratchet_marks.marks")[0]
    sent(ledger, elsewhere, log, "b")
    elsewhere.ask("delete from copied where _txid = 2")
    elsewhere.ask("update ratchet_marks.marks set step = %s, token = %s", *mark)
    with pytest.raises(MarkMoved, match="it was at step 2 .* before: an older copy is in its place"):
        sent(ledger, elsewhere, log, "c")


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


@pytest.mark.invariant("I1")
def test_a_process_with_an_older_spec_commits_and_the_rows_are_sent_all_the_same(ledger, log, elsewhere):
    assert SPEC.code_hash == SENT.code_hash
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    with pytest.raises(SettingsError, match="the spec does not; deploy the spec that declares it, or `ratchet detach"):
        commit(ledger, SPEC, begun.claim, elsewhere.opens)
    assert state(ledger, 1) == State.COMMITTED
    assert "warehouse:copied is at step 1, 1 further" in [*upkeep(ledger, SENT, always_active, elsewhere.opens)]
    assert elsewhere.rows() == appended(ledger) and elsewhere.rows()


@pytest.mark.invariant("I1")
def test_a_destination_that_comes_later_gets_what_is_committed_from_then_on(ledger_url, log, elsewhere):
    migrate(ledger_url, [SPEC])
    with Ledger(ledger_url) as ledger:
        begun = start(ledger, SPEC, log, "a")
        prepare(ledger, SPEC, begun)
        with pytest.raises(NotMigrated, match="the ledger does not know its destination warehouse:copied"):
            begin(ledger, SENT, Run("dag", "b"), log.offsets, always_active)
        made = [str(made) for made in migrate(ledger_url, [SENT]).sinks]
        assert "line: rows: warehouse:copied gets what is committed from now on" in made
        commit(ledger, SENT, begun.claim, elsewhere.opens)
        assert {row[3] for row in elsewhere.rows()} == {1}
        later = Append("rows", columns="a bigint", to=[TO, Table("more.copied", database="warehouse")])
        both = SENT.model_copy(update={"sinks": [later, *SENT.sinks[1:]]})
        migrate(ledger_url, [both])
        assert not any(made.is_change for made in migrate(ledger_url, [both]).sinks)
        sent(ledger, elsewhere, log, "b", both)
        assert elsewhere.rows() == appended(ledger)
        assert elsewhere.rows("more.copied") == [row for row in appended(ledger) if row[3] == 2]


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
    with Ledger(ledger_url) as ledger:
        begun = start(ledger, spec, log, "a")
        work = a_try(ledger, begun, 0, spec)
        sink, dice = sink_of(spec, "typed_rows"), random.Random(7)
        rows = [{**cells(dice), "_partition": 0, "_offset": offset, "_n": 0} for offset in range(ROWS)]
        given = pa.Table.from_pylist(rows, schema=arrow_schema((*sink.needed, *POSITION)))
        into = Into(ledger.url, work.token, work.ranges, work.relations, work.source)
        with Writer(into, Tag(0, 0), (sink, sink_of(spec, DEAD_LETTERS))) as writer:
            writer.write(sink, given)
            done = writer.finish()
        votes = {name: SinkVote((w.writer,) if w.writer else (), w.rows, w.checksum) for name, w in done.items()}
        cast_vote(ledger, spec, work.token, vote_of(spec, work, votes))
        commit(ledger, spec, begun.claim, elsewhere.opens)
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
