"""Votes and commits in a real PostgreSQL, without Kafka and Spark: in order, whole, once, and what was voted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, text

from ratchet.errors import CommitFailed, Fenced, IllegalMove, RecordsLost, Refused
from ratchet.ledger import history
from ratchet.ledger.schema import heads, pipelines, stages
from ratchet.ledger.states import State
from ratchet.ledger.transactions import lock_pipeline, move, read_line, read_transaction
from ratchet.ledger.work import Run, SliceToken
from ratchet.operate.actions import retry
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, Waits, commit
from ratchet.protocol.plan import reached
from ratchet.protocol.revise import revise
from ratchet.protocol.votes import cast_vote, take_try, work_of

from .staging import (
    SPEC,
    a_try,
    always_active,
    appended,
    do_slice,
    head,
    is_whole,
    moves_of,
    planned,
    prepare,
    rows_of,
    start,
    state,
    vote_of,
    write_all,
)


@pytest.mark.invariant("I3")
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


@pytest.mark.invariant("I3")
def test_group_commit_does_not_skip_a_gap(ledger, log):
    log.stable = {0: 200, 1: 200}
    a, b, c = (start(ledger, SPEC, log, r) for r in "abc")
    prepare(ledger, SPEC, a)
    prepare(ledger, SPEC, c)
    assert commit(ledger, SPEC, a.claim).txids == (1,)
    assert (head(ledger), state(ledger, 3)) == (1, State.PREPARED)
    prepare(ledger, SPEC, b)
    assert commit(ledger, SPEC, b.claim).txids == (2, 3)


def test_what_votes_after_a_halt_is_not_committed_until_a_person_decides(ledger, log):
    first = start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="failed")
    for run in ("b", "c"):
        first = start(ledger, SPEC, log, run)
        works = [a_try(ledger, first, part.number) for part in first.slices]
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="failed")
    for work in works:
        sinks = write_all(ledger, SPEC, work, rows_of(SPEC, work))
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
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
    left = settle(ledger, once, Run("dag", "b"), succeeded=False, reason="failed")
    assert "is halted at transaction 2" in str(left) and "after 1 failure: " in str(left)
    for work in works:
        sinks = write_all(ledger, SPEC, work, rows_of(SPEC, work))
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
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
        conn.execute(text("create trigger too_long before insert on totals for each row execute function too_long()"))
    done = commit(ledger, SPEC, first.claim)
    assert done.txids == (1,) and "; 2 fails and is left to its own commit: statement timeout" in done.message
    assert (2, 0, "commit failed") not in moves_of(ledger)
    with pytest.raises(CommitFailed, match="statement timeout"):
        commit(ledger, SPEC, second.claim)
    assert (2, 0, "commit failed") in moves_of(ledger)
    with ledger.begin() as conn:
        conn.execute(text("drop trigger too_long on totals"))
    assert commit(ledger, SPEC, second.claim).txids == (2,)


def test_of_transaction_10_the_stages_stay_when_those_of_transaction_1_are_discarded(ledger, log):
    log.stable = {0: 500, 1: 500}
    done = []
    for txid in range(1, 11):
        done.append(start(ledger, SPEC, log, f"r{txid}"))
        prepare(ledger, SPEC, done[-1])
        commit(ledger, SPEC, done[-1].claim)
    # Only revisions have stages.
    tenth = start(ledger, SPEC, log, "r10", 1)
    with ledger.begin() as conn:
        # Beside another one, as where a person has taken it up again.
        revise(conn, SPEC, lock_pipeline(conn, "line"), 1, Run("dag", "r1", 1))
    first = start(ledger, SPEC, log, "r1", 1)
    assert [again.claim.txid for again in (tenth, first)] == [10, 1]
    prepare(ledger, SPEC, tenth)
    prepare(ledger, SPEC, first)
    assert commit(ledger, SPEC, first.claim).txids == (1,)
    assert commit(ledger, SPEC, tenth.claim).txids == (10,)
    is_whole(ledger, *done)


@pytest.mark.invariant("I9", "I12")
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
    assert mirrored(ledger) == {0: 0, 1: 0}
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    assert mirrored(ledger) == {0: 10, 1: 10}


def mirrored(ledger):
    with ledger.begin() as conn:
        source, offsets = reached(conn, read_line(conn, SPEC.name))
    assert source == 1
    return offsets


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


@pytest.mark.invariant("I3")
def test_after_a_thousand_transactions_the_line_goes_on_as_at_first(ledger, log):
    """Python has one object for each number up to 256, and any number of them for a greater one."""
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    with ledger.begin() as conn:
        conn.execute(pipelines.update().values(last_txid=1000))
        # No line comes as far as that in a test.
        conn.execute(text("set local session_replication_role = replica"))
        conn.execute(heads.update().values(txid=1000))
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
        conn.execute(text('delete from ratchet_delta."public.totals" where _txid = 1003'))
    with pytest.raises(Refused, match="transaction 1003, totals: 0 rows are there, the votes say"):
        commit(ledger, SPEC, third.claim)
    assert (state(ledger, 1003), head(ledger)) == (State.ABORTED, 1002)
    log.beginning = {0: 50, 1: 50}
    answers = iter([log.offsets()])
    with pytest.raises(RecordsLost):
        begin(ledger, SPEC, Run("dag", "e"), lambda *_: next(answers), always_active)


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


def test_each_slice_is_found_again_as_its_job_had_it(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    token = do_slice(ledger, SPEC, begun, 1)
    take_try(ledger, SPEC, begun.claim, 0)
    with ledger.begin() as conn:
        tried, voted = work_of(conn, SPEC, read_transaction(conn, SPEC.name, 1))
    assert (voted.token, voted.ranges) == (token, begun.slices[1].ranges)
    assert (tried.token.slice, tried.ranges) == (0, begun.slices[0].ranges)


@pytest.mark.invariant("I6")
def test_a_token_of_a_transaction_that_is_not_there_is_fenced(ledger, log):
    work = a_try(ledger, start(ledger, SPEC, log, "a"))
    with pytest.raises(Fenced):
        cast_vote(ledger, SPEC, SliceToken("line", 9, 1, 0, 1), vote_of(SPEC, work, {}))
