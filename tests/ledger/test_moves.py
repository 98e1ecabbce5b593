"""Halting and the moves of a person, against a real PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from ratchet.errors import OUTAGES, EngineLost, Fenced, Halted, IllegalMove, RatchetError, Refused, TransformError
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import stages
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run, SliceWork
from ratchet.operate.actions import abort, retry, void
from ratchet.operate.outcome import lines_of
from ratchet.protocol.another import wants_another_run
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, Waits, commit
from ratchet.protocol.failures import errors_recorded, last_error
from ratchet.protocol.votes import take_try, vote_no

from .staging import SPEC, Log, always_active, appended, expire, fail, head, planned, prepare, start, state


def halted(ledger: Ledger, log: Log):
    """The line halted at transaction 1, with 2 prepared behind it."""
    first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "behind")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="failed in a")
    for run in "bc":
        fail(ledger, log, run)
    prepare(ledger, SPEC, second)
    return first, second


def test_why_a_try_came_to_nothing_is_kept_until_the_next_claim(ledger, log):
    def fail_in(work: SliceWork, why: str) -> None:
        with pytest.raises(TransformError, match="the transform"), errors_recorded(ledger, work.token):
            raise TransformError(why)

    def said() -> str | None:
        with ledger.begin() as conn:
            return last_error(conn, read_transaction(conn, SPEC.name, 1))

    begun = start(ledger, SPEC, log, "a")
    old = take_try(ledger, SPEC, begun.claim, 0)
    assert said() is None
    fail_in(old, "line: transaction 1:\nthe transform has no column b")
    assert said() == "transaction 1: the transform has no column b"
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="failed")
    adopted = start(ledger, SPEC, log, "b")
    assert said() is None
    new = take_try(ledger, SPEC, adopted.claim, 0)
    fail_in(old, "the transform of a try that is over")
    assert said() is None
    fail_in(new, "the transform fails again")
    assert said() == "the transform fails again"
    # What a slice has got over is no reason for what fails later.
    take_try(ledger, SPEC, adopted.claim, 0)
    assert said() is None
    with ledger.begin() as conn:
        errors = [e for e in history.read(conn, SPEC.name) if e.move == "error"]
        assert [(e.who, e.detail["slice"], e.detail["try"]) for e in errors] == [("a", 0, 1), ("b", 0, 2)]
        assert history.verify(conn, SPEC.name) == []


@pytest.mark.invariant("I10")
def test_after_max_failures_the_line_halts_and_every_run_says_why_and_what_to_do(ledger, log):
    _, second = halted(ledger, log)
    said = "line is halted at transaction 1 since .* UTC, after 3 failures: failed in c; .*ratchet retry line 1.*void"
    for run in "de":
        with pytest.raises(Halted, match=said):
            begin(ledger, SPEC, Run("dag", run), log.offsets, always_active)
    waits = commit(ledger, SPEC, second.claim)
    assert isinstance(waits, Waits) and "waits for 1: line is halted at transaction 1" in waits.message
    assert wants_another_run(ledger, SPEC, log.offsets, always_active) is None
    assert (appended(ledger), head(ledger)) == ([], 0)


def test_a_failure_is_counted_once_by_whoever_finds_it(ledger, log):
    start(ledger, SPEC, log, "a")
    ends = [settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed") for _ in range(2)]
    assert [(left.row.state, left.had_ended) for left in ends] == [(State.OPEN, False), (State.OPEN, True)]
    # The next one is lost without a word: whoever adopts counts.
    start(ledger, SPEC, log, "b")
    expire(ledger)
    assert start(ledger, SPEC, log, "c", is_active=lambda *_: False).how == "adopted"
    with ledger.begin() as conn:
        assert read_transaction(conn, "line", 1).failures == 2
    expire(ledger)
    with pytest.raises(Halted, match="after 3 failures: run c was lost"):
        begin(ledger, SPEC, Run("dag", "d"), log.offsets, lambda *_: False)


def test_being_fenced_or_skipped_or_prepared_is_no_failure(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed while it waited")
    start(ledger, SPEC, log, "b")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="late")
    with ledger.begin() as conn:
        assert read_transaction(conn, "line", 1).failures == 0


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("outage", OUTAGES)
def test_servers_that_do_not_answer_are_no_failure_however_often(ledger, log, outage):
    def run_into(run: str, *errors: RatchetError | None) -> int:
        """The failures that are counted when tries of a run have ended with these errors, or without a word."""
        begun = start(ledger, SPEC, log, run)
        for error in errors:
            work = take_try(ledger, SPEC, begun.claim, 0)
            if error is None:
                continue
            with pytest.raises(type(error)), errors_recorded(ledger, work.token):
                raise error
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="failed")
        with ledger.begin() as conn:
            row = read_transaction(conn, "line", 1)
            assert (row.claim_ended, row.halted_at) == (True, None)
            # Of what an earlier try met, the last one says nothing.
            codes = [error.code for error in errors[-1:] if error]
            assert row.reason == " ".join(["failed", *(f"({code}; ratchet explain {code})" for code in codes)])
            return row.failures

    assert [run_into(f"out {n}", outage("no answer")) for n in range(4)] == [0] * 4
    # What may have been this transaction's own doing counts, whatever else was away: its job may have brought it down.
    assert run_into("lost", EngineLost("a worker died"), outage("no answer")) == 1
    assert run_into("out again", outage("no answer"), outage("no answer")) == 1
    assert run_into("without a word", outage("no answer"), None) == 2
    begun = start(ledger, SPEC, log, "e")
    work = take_try(ledger, SPEC, begun.claim, 0)
    with pytest.raises(outage), errors_recorded(ledger, work.token):
        raise outage("no answer")
    vote_no(ledger, work.token, "what came of the next try")
    left = settle(ledger, SPEC, Run("dag", "e"), succeeded=False, reason="failed")
    assert left.row.halted_at and "is halted at transaction 1" in str(left)


def test_clearing_the_halted_run_resumes_it_and_what_waited_goes_on(ledger, log):
    first, second = halted(ledger, log)
    again = start(ledger, SPEC, log, "c", 1)
    assert (again.how, again.claim.txid) == ("resumed", 1)
    prepare(ledger, SPEC, again)
    assert commit(ledger, SPEC, again.claim).txids == (1, 2)
    assert appended(ledger) == planned(first, second)


def test_who_was_settled_takes_no_more_tries(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepared = start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, prepared)
    for run in "ab":
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="marked failed")
    with pytest.raises(Fenced, match="transaction 1, slice 0: this run's claim has ended; clear the run"):
        take_try(ledger, SPEC, first.claim, 0)
    assert take_try(ledger, SPEC, prepared.claim, 0).message.endswith("nothing to do, the transaction is PREPARED")


@pytest.mark.invariant("I10")
def test_retry_lifts_the_halt_and_the_next_run_of_any_kind_goes_on(ledger, log):
    first, second = halted(ledger, log)
    assert "may be tried again" in lines_of(retry(ledger, SPEC, None, "somebody"))[0]
    assert "abandoned" in wants_another_run(ledger, SPEC, log.offsets, always_active).message
    again = start(ledger, SPEC, log, "d")
    assert (again.how, again.claim.txid) == ("adopted", 1)
    with pytest.raises(IllegalMove, match="run d works on it"):
        retry(ledger, SPEC, 1, "somebody")
    prepare(ledger, SPEC, again)
    assert commit(ledger, SPEC, again.claim).txids == (1, 2)
    with pytest.raises(IllegalMove, match="not halted"):
        retry(ledger, SPEC, None, "somebody")
    with pytest.raises(IllegalMove, match="COMMITTED, which is final"):
        retry(ledger, SPEC, 1, "somebody")
    assert appended(ledger) == planned(first, second)


def test_what_is_abandoned_before_a_halt_is_adopted_and_what_is_behind_it_waits(ledger, log):
    starts = [start(ledger, SPEC, log, run) for run in ("one", "two", "three", "four")]
    prepare(ledger, SPEC, starts[3])
    for run in ("two", "b", "c"):
        if run != "two":
            assert start(ledger, SPEC, log, run).claim.txid == 2
        left = settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="no")
    assert "line is halted at transaction 2" in str(left)
    settle(ledger, SPEC, Run("dag", "three"), succeeded=False, reason="no")
    with pytest.raises(Halted, match="halted at transaction 2"):
        begin(ledger, SPEC, Run("dag", "d"), log.offsets, always_active)
    settle(ledger, SPEC, Run("dag", "one"), succeeded=False, reason="no")
    assert "transaction 1 is OPEN and abandoned" in wants_another_run(ledger, SPEC, log.offsets, always_active).message
    first = start(ledger, SPEC, log, "e")
    assert first.claim.txid == starts[0].claim.txid
    prepare(ledger, SPEC, first)
    assert commit(ledger, SPEC, first.claim).txids == (1,)
    assert "waits for 2: line is halted at transaction 2" in commit(ledger, SPEC, starts[3].claim).message


@pytest.mark.invariant("I3")
def test_void_in_its_turn_commits_what_is_prepared_behind_and_passes_over_other_voids(ledger, log):
    log.stable = {0: 200, 1: 200}
    first, second, third, fourth = (start(ledger, SPEC, log, r) for r in "abcd")
    for begun in (second, fourth):
        prepare(ledger, SPEC, begun)
    assert "the head is 0" in lines_of(void(ledger, SPEC, 3, "broken", "somebody"))[1]
    voided = void(ledger, SPEC, 1, "broken too", "somebody")
    assert (voided.head, voided.committed, voided.failed, voided.dry_run) == (4, (2, 4), None, False)
    assert [str(r) for change in voided.changes for r in change.ranges] == ["t-0[0,10)", "t-1[0,10)"]
    assert [(c.txid, c.from_state, c.to_state) for c in voided.changes] == [(1, State.OPEN, State.VOIDED)]
    said = lines_of(voided)
    assert "1 is VOIDED, gives up 20 records at most, and commits nothing of t-0[0,10), t-1[0,10)" in said[0]
    assert said[1] == "the head is 4; committed on the way: 2, 4"
    assert appended(ledger) == planned(second, fourth)
    assert commit(ledger, SPEC, third.claim).message == "transaction 3: is voided, nothing to commit: broken"
    assert "nothing to do, the transaction is VOIDED" in take_try(ledger, SPEC, first.claim, 0).message
    with pytest.raises(IllegalMove, match="transaction 2 is COMMITTED"):
        void(ledger, SPEC, 2, "no", "somebody")
    with ledger.begin() as conn:
        assert conn.execute(select(stages)).all() == []
        assert history.verify(conn, SPEC.name) == []


def test_void_lifts_the_halt_in_the_same_database_transaction(ledger, log):
    _, second = halted(ledger, log)
    assert lines_of(void(ledger, SPEC, 1, "given up", "somebody"))[1] == "the head is 2; committed on the way: 2"
    assert appended(ledger) == planned(second)
    assert start(ledger, SPEC, log, "d").how == "allocated"


def test_a_dry_run_says_what_would_be_and_changes_nothing(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    assert "dry run" in lines_of(void(ledger, SPEC, 1, "maybe", "somebody", dry_run=True))[-1]
    assert state(ledger, 1) == State.PREPARED
    assert commit(ledger, SPEC, first.claim).txids == (1,)


@pytest.mark.invariant("I3")
def test_a_void_and_a_commit_that_race_have_one_winner(ledger, log):
    log.stable = {0: 400, 1: 400}
    for n in range(8):
        begun = start(ledger, SPEC, log, f"r{n}")
        prepare(ledger, SPEC, begun)
        together = threading.Barrier(2)

        def one(move, together=together):
            together.wait()
            try:
                return move()
            except IllegalMove as error:
                return str(error)

        with ThreadPoolExecutor(2) as pool:
            moves = [
                lambda b=begun: commit(ledger, SPEC, b.claim),
                lambda b=begun: void(ledger, SPEC, b.claim.txid, "no", "me"),
            ]
            done, voided = pool.map(one, moves)
        won = state(ledger, begun.claim.txid)
        assert isinstance(done, Committed)
        assert (won == State.COMMITTED) == bool(done.txids) == ("it cannot become VOIDED" in str(voided))
        way_on = f"`ratchet replay line --from {begun.claim.txid} --reason …` puts"
        assert (won == State.COMMITTED) == (way_on in str(voided))
        assert [row for row in appended(ledger) if row[3] == begun.claim.txid] == (planned(begun) if done.txids else [])
    assert head(ledger) == 8


def test_an_aborted_epoch_counts_for_nothing_and_is_begun_anew(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    assert "tries it again in a new epoch" in lines_of(abort(ledger, SPEC, 1, "wrong data", "somebody"))[0]
    with pytest.raises(Refused, match="aborted: wrong data"):
        commit(ledger, SPEC, first.claim)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="refused")
    again = start(ledger, SPEC, log, "b")
    assert again.claim.epoch == 2
    with ledger.begin() as conn:
        row = read_transaction(conn, "line", 1)
        assert (row.prepared_at, row.records, row.verdict, row.reason) == (None,) * 4
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)
    assert appended(ledger) == planned(again)


@pytest.mark.invariant("I6")
def test_a_vote_of_no_aborts_with_its_reason_and_only_the_current_try_may_cast_it(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    old = take_try(ledger, SPEC, begun.claim, 0)
    new = take_try(ledger, SPEC, begun.claim, 0)
    with pytest.raises(Fenced):
        vote_no(ledger, old.token, "too old")
    vote_no(ledger, new.token, "prices are missing")
    with pytest.raises(Refused, match="aborted: prices are missing"):
        commit(ledger, SPEC, begun.claim)
    with pytest.raises(Fenced):
        vote_no(ledger, new.token, "prices are missing")
