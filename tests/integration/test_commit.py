"""Votes and commits in a real PostgreSQL, without Kafka and Spark: in order, whole, once, and what was voted."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError

from ratchet import Append, Upsert, history
from ratchet.begin import begin
from ratchet.claims import settle
from ratchet.commit import Committed, Waits, commit, discard_finished
from ratchet.errors import Fenced, IllegalMove, RecordsLost, Refused
from ratchet.ledger import move, read_transaction
from ratchet.migrate import migrate
from ratchet.moves import retry, void
from ratchet.plan import reached
from ratchet.schema import pipelines, stages
from ratchet.sinks import stage
from ratchet.transaction import Run, SliceToken, State
from ratchet.votes import cast_vote, take_try, voted_work

from .staging import (
    MEASURES,
    SPEC,
    a_try,
    always_active,
    appended,
    do_slice,
    head,
    is_whole,
    planned,
    positions,
    prepare,
    rows_of,
    start,
    state,
    vote_of,
    write,
    write_all,
)


def test_a_later_transaction_prepared_first_waits_and_is_committed_by_the_earlier_one(ledger, log):
    first, second, third = (start(ledger, SPEC, log, r) for r in "abc")
    prepare(ledger, SPEC, second)
    waits = commit(ledger, SPEC, second.claim)
    assert isinstance(waits, Waits) and "waits for 1, which run a is processing" in waits.message
    assert appended(ledger) == []
    prepare(ledger, SPEC, first)
    assert commit(ledger, SPEC, first.claim) == Committed(
        (1, 2), "transaction 1: committed and, waiting right behind it, 2"
    )
    assert appended(ledger) == planned(first, second)
    prepare(ledger, SPEC, third)
    commit(ledger, SPEC, third.claim)
    assert appended(ledger) == planned(first, second, third)
    with ledger.begin() as conn:
        assert conn.execute(select(func.count()).select_from(stages)).scalar_one() == 0
        assert history.verify(conn, SPEC.name) == []


@pytest.mark.parametrize("sinks", [SPEC.sinks[:2], [*SPEC.sinks, Append("fourth", columns="a bigint")]])
def test_what_was_prepared_for_other_sinks_is_tried_again_and_never_half_committed(ledger, log, sinks):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    today = SPEC.model_copy(update={"sinks": sinks})
    with pytest.raises(Refused, match="prepared for other sinks"):
        commit(ledger, today, first.claim)
    assert (state(ledger, 1), head(ledger)) == (State.ABORTED, 0)


def test_group_commit_does_not_skip_a_gap(ledger, log):
    log.stable = {0: 200, 1: 200}
    a, b, c = (start(ledger, SPEC, log, r) for r in "abc")
    prepare(ledger, SPEC, a)
    prepare(ledger, SPEC, c)
    assert commit(ledger, SPEC, a.claim).txids == (1,)
    assert (head(ledger), state(ledger, 3)) == (1, State.PREPARED)
    prepare(ledger, SPEC, b)
    assert commit(ledger, SPEC, b.claim).txids == (2, 3)


@pytest.mark.parametrize("sink", ["totals", "latest"])
def test_a_key_that_no_index_can_hold_aborts_its_transaction_alone(ledger, log, sink):
    key = secrets.token_hex(4_000)
    first, second = (start(ledger, SPEC, log, run) for run in "ab")
    for number in range(len(second.slices)):
        work = a_try(ledger, second, number)
        rows = rows_of(SPEC, work)
        rows[sink] = [{**row, "k": row["k"] + key} for row in rows[sink]]
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, len(positions(work)), write_all(ledger, SPEC, work, rows)))
    prepare(ledger, SPEC, first)
    done = commit(ledger, SPEC, first.claim)
    assert done.txids == (1,)
    assert "2 fails and is left to its own commit" in done.message
    with pytest.raises(Refused, match=rf"transaction 2 is aborted: {sink}: index row size .* exceeds"):
        commit(ledger, SPEC, second.claim)
    assert (state(ledger, 2), head(ledger)) == (State.ABORTED, 1)


def test_what_votes_after_a_halt_is_not_committed_until_a_person_decides(ledger, log):
    first = start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="failed")
    for run in ("b", "c"):
        first = start(ledger, SPEC, log, run)
        works = [a_try(ledger, first, part.number) for part in first.slices]
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="failed")
    for work in works:
        sinks = write_all(ledger, SPEC, work, rows_of(SPEC, work))
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, len(positions(work)), sinks))
    assert state(ledger, 1) == State.PREPARED
    with pytest.raises(Refused, match="halted"):
        commit(ledger, SPEC, first.claim)
    assert head(ledger) == 0
    retry(ledger, SPEC, 1, "a person")
    again = start(ledger, SPEC, log, "d")
    assert commit(ledger, SPEC, again.claim).txids == (1,)


def test_a_group_ends_before_what_has_voted_after_its_halt(ledger, log):
    first, second, third = (start(ledger, SPEC, log, run) for run in "abc")
    prepare(ledger, SPEC, first)
    prepare(ledger, SPEC, third)
    works = [a_try(ledger, second, part.number) for part in second.slices]
    once = SPEC.model_copy(update={"max_failures": 1})
    assert "is halted at transaction 2" in settle(ledger, once, Run("dag", "b"), succeeded=False, reason="failed")
    for work in works:
        sinks = write_all(ledger, SPEC, work, rows_of(SPEC, work))
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, len(positions(work)), sinks))
    assert state(ledger, 2) == State.PREPARED
    assert commit(ledger, SPEC, first.claim).txids == (1,)
    assert (state(ledger, 2), head(ledger)) == (State.PREPARED, 1)
    assert isinstance(commit(ledger, SPEC, third.claim), Waits)
    retry(ledger, SPEC, 2, "a person")
    again = start(ledger, SPEC, log, "d")
    assert commit(ledger, SPEC, again.claim).txids == (2, 3)


def test_what_the_server_cannot_do_now_fails_that_transaction_alone_and_is_tried_again(ledger, log):
    first, second = (start(ledger, SPEC, log, run) for run in "ab")
    prepare(ledger, SPEC, second)
    prepare(ledger, SPEC, first)
    with ledger.begin() as conn:
        conn.execute(
            text(
                "create function too_long() returns trigger language plpgsql as $$ begin if new._txid = 2 then "
                "raise exception 'statement timeout' using errcode = 'query_canceled'; end if; return new; end $$"
            )
        )
        conn.execute(text("create trigger too_long before insert on rows for each row execute function too_long()"))
    assert commit(ledger, SPEC, first.claim).txids == (1,)
    with pytest.raises(OperationalError, match="statement timeout"):
        commit(ledger, SPEC, second.claim)
    with ledger.begin() as conn:
        conn.execute(text("drop trigger too_long on rows"))
    assert commit(ledger, SPEC, second.claim).txids == (2,)


def test_of_an_aborted_epoch_the_stages_are_discarded_and_of_the_next_they_stay(ledger, log):
    first = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, first, 0)
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, 1, lock=True)
        move(conn, row, State.ABORTED, who="test", why="a reason", reason="a reason")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="aborted")
    again = start(ledger, SPEC, log, "b")
    assert (again.claim.txid, again.claim.epoch) == (1, 2)
    prepare(ledger, SPEC, again)
    assert discard_finished(ledger, SPEC.name) == len(SPEC.sinks) + 1
    assert commit(ledger, SPEC, again.claim).txids == (1,)
    is_whole(ledger, again)


def test_of_what_was_staged_and_is_gone_nothing_is_committed_and_the_next_run_tries_again(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    with ledger.begin() as conn:
        stage.drop(conn, stage.relations(conn, SPEC.name, 1, 1)["totals"])
    with pytest.raises(Refused, match="transaction 1, epoch 1: what was staged for totals is gone"):
        commit(ledger, SPEC, first.claim)
    assert (state(ledger, 1), appended(ledger)) == (State.ABORTED, [])
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="refused")
    again = start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)
    is_whole(ledger, again)


def test_a_stage_that_somebody_else_has_dropped_is_not_looked_for_forever(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    with ledger.begin() as conn:
        conn.execute(text(f"drop table ratchet_stage.{work.stages['rows']}"))
    void(ledger, SPEC, 1, "for the test", "me")
    discard_finished(ledger, SPEC.name)
    with ledger.begin() as conn:
        assert stage.relations(conn, SPEC.name, 1, begun.claim.epoch) == {}


def test_of_transaction_10_the_stages_stay_when_those_of_transaction_1_are_discarded(ledger, log):
    log.stable = {0: 500, 1: 500}
    done = []
    for txid in range(1, 11):
        done.append(start(ledger, SPEC, log, f"r{txid}"))
        prepare(ledger, SPEC, done[-1])
        if txid < 10:
            commit(ledger, SPEC, done[-1].claim)
    revised = start(ledger, SPEC, log, "r1", 1)
    assert (revised.how, revised.claim.txid) == ("revised", 1)
    prepare(ledger, SPEC, revised)
    assert commit(ledger, SPEC, revised.claim).txids == (1,)
    assert commit(ledger, SPEC, done[-1].claim).txids == (10,)
    is_whole(ledger, *done)


def test_a_commit_repeated_or_raced_changes_nothing(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda _: commit(ledger, SPEC, begun.claim), range(6)))
    assert sorted(c.txids for c in done) == [()] * 5 + [(1,)]
    assert appended(ledger) == planned(begun)
    with ledger.begin() as conn:
        totals = conn.execute(text("select k, a_sum, n, _txid from totals order by k")).all()
    assert totals == [("0", 45, 10, 1), ("1", 45, 10, 1)]


def test_what_monitoring_is_told_is_committed_and_nothing_planned_after_it(ledger, log):
    """I11."""
    first, _ = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
    with ledger.begin() as conn:
        assert reached(conn, SPEC.name, head(ledger)) == {0: 0, 1: 0}
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    with ledger.begin() as conn:
        assert reached(conn, SPEC.name, head(ledger)) == {0: 10, 1: 10}


def test_every_row_carries_its_txid_and_the_state_is_the_fold_in_order(ledger, log):
    begun = [start(ledger, SPEC, log, f"r{n}") for n in range(3)]
    for b in begun:
        prepare(ledger, SPEC, b)
    commit(ledger, SPEC, begun[0].claim)
    with ledger.begin() as conn:
        latest = conn.execute(text("select k, a, _txid from latest order by k")).all()
        totals = conn.execute(text("select k, a_sum, a_min, a_max, n from totals order by k")).all()
    assert latest == [(f"{p}-{m}", 25 + m, 3) for p in (0, 1) for m in range(5)]
    assert totals == [(str(p), sum(range(30)), 0, 29, 30) for p in (0, 1)]


def test_a_null_measure_does_not_count_in_a_fold(ledger, log):
    """Delta over state: null and number in either order, and nulls alone."""
    log.beginning, log.stable = {0: 0}, {0: 40}
    given = {1: {"x": 5, "y": None, "z": None}, 2: {"x": None, "y": -7, "z": None}}
    for run in ("a", "b"):
        begun = start(ledger, SPEC, log, run)
        for part in begun.slices:
            work = take_try(ledger, SPEC, begun.claim, part.number)
            rows = rows_of(SPEC, work)
            rows["totals"] = [
                {"k": k, **dict.fromkeys(MEASURES, value), "n": 1} for k, value in given[begun.claim.txid].items()
            ]
            sinks = write_all(ledger, SPEC, work, rows)
            cast_vote(ledger, SPEC, work.token, vote_of(SPEC, len(positions(work)), sinks))
        commit(ledger, SPEC, begun.claim)
    with ledger.begin() as conn:
        totals = conn.execute(text("select k, a_sum, a_min, a_max, n from totals order by k")).all()
    # Each transaction has two slices, so every value is there twice.
    assert totals == [("x", 10, 5, 5, 4), ("y", -14, -7, -7, 4), ("z", None, None, None, 4)]


def test_an_upsert_with_an_order_keeps_the_greatest_across_transactions(ledger, ledger_url, log):
    spec = SPEC.model_copy(
        update={"name": "ordered", "sinks": [Upsert("newest", key="k string", columns="at bigint", order="at")]}
    )
    migrate(ledger_url, [spec])
    log.beginning, log.stable = {0: 0}, {0: 40}
    given = {1: {"up": 1, "down": 9, "same": 4, "none": None}, 2: {"up": 2, "down": 3, "same": 4, "none": 0}}
    for run in ("a", "b"):
        begun = start(ledger, spec, log, run)
        for part in begun.slices:
            work = take_try(ledger, spec, begun.claim, part.number)
            offset = positions(work)[0][1]
            rows = [
                {"k": k, "at": at, "_deleted": False, "_partition": 0, "_offset": offset + n, "_n": 0}
                for n, (k, at) in enumerate(given[begun.claim.txid].items())
            ]
            voted = vote_of(spec, len(positions(work)), {"newest": write(ledger, spec, work, "newest", rows)})
            cast_vote(ledger, spec, work.token, voted)
        commit(ledger, spec, begun.claim)
    with ledger.begin() as conn:
        newest = conn.execute(text("select k, at, _txid from newest order by k")).all()
    assert newest == [("down", 9, 1), ("none", 0, 2), ("same", 4, 2), ("up", 2, 2)]


def test_a_deletion_takes_the_row_away_and_a_later_record_brings_it_back(ledger, log):
    seen = []
    for run, deleted in (("a", False), ("b", True), ("c", False)):
        begun = start(ledger, SPEC, log, run)
        for part in begun.slices:
            work = take_try(ledger, SPEC, begun.claim, part.number)
            rows = rows_of(SPEC, work)
            for row in rows["latest"]:
                row["_deleted"] = deleted
            sinks = write_all(ledger, SPEC, work, rows)
            cast_vote(ledger, SPEC, work.token, vote_of(SPEC, len(positions(work)), sinks))
        commit(ledger, SPEC, begun.claim)
        with ledger.begin() as conn:
            seen.append(conn.execute(text("select count(distinct k) from latest")).scalar_one())
    assert seen == [10, 0, 10]


def test_only_the_attempts_that_the_votes_name_are_applied(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    for part in begun.slices:
        work = take_try(ledger, SPEC, begun.claim, part.number)
        sinks = {}
        for name, rows in rows_of(SPEC, work).items():
            write(ledger, SPEC, work, name, rows, attempt=8)
            sinks[name] = write(ledger, SPEC, work, name, rows, attempt=9)
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, len(positions(work)), sinks))
    commit(ledger, SPEC, begun.claim)
    assert appended(ledger) == planned(begun)


def test_a_commit_before_the_last_vote_changes_nothing_and_says_who_goes_on(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, begun, 0)
    with pytest.raises(IllegalMove, match="a slice has not voted; clear the whole run"):
        commit(ledger, SPEC, begun.claim)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="too early")
    adopted = start(ledger, SPEC, log, "b")
    with pytest.raises(Fenced, match="run b works on it now, in epoch 1"):
        commit(ledger, SPEC, begun.claim)
    assert appended(ledger) == []
    do_slice(ledger, SPEC, adopted, 1)
    commit(ledger, SPEC, adopted.claim)
    is_whole(ledger, adopted)


def test_after_a_thousand_transactions_the_line_goes_on_as_at_first(ledger, log):
    """Python has one object for each number up to 256, and any number of them for a greater one."""
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    with ledger.begin() as conn:
        conn.execute(pipelines.update().values(head=1000, last_txid=1000))
    first, second = start(ledger, SPEC, log, "b"), start(ledger, SPEC, log, "c")
    prepare(ledger, SPEC, second)
    assert isinstance(commit(ledger, SPEC, second.claim), Waits)
    prepare(ledger, SPEC, first)
    assert commit(ledger, SPEC, first.claim).txids == (1001, 1002)
    with ledger.begin() as conn:
        told = {e.txid: e.detail["why"] for e in history.read(conn, SPEC.name) if e.move == State.COMMITTED}
    assert (told[1001], told[1002]) == ("its turn", "together with 1001")
    third = start(ledger, SPEC, log, "d")
    prepare(ledger, SPEC, third)
    with ledger.begin() as conn:
        conn.execute(text("delete from ratchet_stage.line_1003_1_0"))
    with pytest.raises(Refused, match="transaction 1003, rows: 0 rows are staged, the votes say"):
        commit(ledger, SPEC, third.claim)
    assert (state(ledger, 1003), head(ledger)) == (State.ABORTED, 1002)
    log.beginning = {0: 50, 1: 50}
    answers = iter([log.offsets()])
    with pytest.raises(RecordsLost):
        begin(ledger, SPEC, Run("dag", "e"), lambda before: next(answers), always_active)


def test_a_reader_with_one_snapshot_sees_whole_transactions_in_every_sink(ledger, log):
    """I4, with commits going on beside the reader."""
    log.stable = {0: 300, 1: 300}
    begun = []
    stop = threading.Event()
    torn: list = []

    def read():
        seen = 0
        engine = ledger.engine.execution_options(isolation_level="REPEATABLE READ")
        while not stop.is_set() or seen == 0:
            with engine.begin() as conn:
                rows = conn.execute(text("select count(*), coalesce(sum(a), 0), coalesce(max(_txid), 0) from rows"))
                count, total, last = rows.one()
                sums = conn.execute(text("select coalesce(sum(n), 0), coalesce(sum(a_sum), 0) from totals")).one()
                newest = conn.execute(text("select coalesce(max(_txid), 0) from latest")).scalar_one()
                at = conn.execute(select(pipelines.c.head)).scalar_one_or_none() or 0
            if (count, total) != tuple(sums) or not last == newest == at:
                torn.append((count, total, sums, last, newest, at))
            seen += 1

    with ThreadPoolExecutor(2) as pool:
        reader = pool.submit(read)
        for n in range(20):
            b = start(ledger, SPEC, log, f"r{n}")
            prepare(ledger, SPEC, b)
            commit(ledger, SPEC, b.claim)
            begun.append(b)
        stop.set()
        reader.result()
    assert torn == []
    assert appended(ledger) == planned(*begun)


@pytest.mark.parametrize("to", [State.PREPARED, State.ABORTED])
def test_a_move_from_where_the_transaction_no_longer_stands_is_fenced(ledger, log, to):
    start(ledger, SPEC, log, "a")
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, 1)
        other = ({State.PREPARED, State.ABORTED} - {to}).pop()
        move(conn, row, other, who="another", why="for the test", reason="for the test")
        with pytest.raises(Fenced, match="has moved on since epoch 1 was OPEN"):
            move(conn, row, to, who="me", why="for the test", reason="for the test")
        assert read_transaction(conn, SPEC.name, 1).state == other


def test_a_move_of_who_read_before_another_run_took_the_transaction_is_fenced(ledger, log):
    start(ledger, SPEC, log, "a")
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, 1)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    assert start(ledger, SPEC, log, "b").claim.number == row.claim + 1
    with ledger.begin() as conn, pytest.raises(Fenced, match="has moved on since epoch 1 was OPEN"):
        move(conn, row, State.ABORTED, who="me", why="for the test", reason="for the test")


def test_what_voted_is_found_again_as_its_job_had_it(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    token = do_slice(ledger, SPEC, begun, 1)
    take_try(ledger, SPEC, begun.claim, 0)
    with ledger.begin() as conn:
        ((work, sinks),) = voted_work(conn, SPEC, read_transaction(conn, SPEC.name, 1))
    assert (work.token, work.ranges) == (token, begun.slices[1].ranges)
    assert [sinks[sink.name].rows for sink in SPEC.sinks] == [10, 10, 10]


def test_a_token_of_a_transaction_that_is_not_there_is_fenced(ledger, log):
    start(ledger, SPEC, log, "a")
    with pytest.raises(Fenced):
        cast_vote(ledger, SPEC, SliceToken("line", 9, 1, 0, 1), vote_of(SPEC, 0, {}))
