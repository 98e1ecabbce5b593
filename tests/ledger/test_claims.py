"""Claims against a real PostgreSQL: who may work on a transaction, who adopts it, what a repeat or a clear finds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, update

from ratchet import Pipeline
from ratchet.errors import Fenced, OtherCode
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.protocol.another import wants_another_run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip
from ratchet.protocol.claims import end, settle
from ratchet.protocol.commit import commit
from ratchet.protocol.leases import renew
from ratchet.protocol.votes import cast_vote, take_try
from tests.until import until

from .staging import (
    SPEC,
    always_active,
    appended,
    do_slice,
    expire,
    is_waiting,
    moves_of,
    planned,
    prepare,
    rows_of,
    start,
    state,
    vote_of,
    write_all,
)


@pytest.mark.invariant("I10")
def test_a_run_that_still_lives_is_not_adopted_though_its_lease_ran_out(ledger, log):
    start(ledger, SPEC, log, "a")
    expire(ledger)
    other = start(ledger, SPEC, log, "b")
    assert (other.how, other.claim.txid) == ("allocated", 2)
    adopted = start(ledger, SPEC, log, "c", is_active=lambda dag, run: run != "a")
    assert (adopted.how, adopted.claim.txid, adopted.claim.epoch, adopted.claim.number) == ("adopted", 1, 1, 2)


@pytest.mark.invariant("I10")
def test_a_lease_that_holds_is_not_adopted_though_airflow_lost_the_run(ledger, log):
    start(ledger, SPEC, log, "a")
    assert start(ledger, SPEC, log, "b", is_active=lambda *_: False).how == "allocated"


def test_a_run_that_is_adopted_at_the_moment_in_which_it_settles_has_one_end(ledger, log):
    """Its claim is looked for without the lock on its row, and has ended when that is taken."""
    start(ledger, SPEC, log, "a")
    expire(ledger)
    with ThreadPoolExecutor(1) as pool, ledger.begin() as conn:
        row = end(conn, SPEC, read_transaction(conn, SPEC.name, 1, lock=True), who="a", why="the run ended")
        adopting = pool.submit(begin, ledger, SPEC, Run("dag", "b"), log.offsets, lambda *_: False)
        until("the second waits for the lock", lambda: is_waiting(ledger))
        conn.commit()
        adopted = adopting.result()
    assert (row.failures, adopted.how, adopted.claim.number) == (1, "adopted", 2)
    assert [move for _, _, move in moves_of(ledger)] == ["OPEN", "end", "claim"]


@pytest.mark.invariant("I10")
def test_a_lease_given_while_the_databases_clock_was_ahead_holds_nobody_up_until_then(ledger, log):
    start(ledger, SPEC, log, "a")
    ahead = func.clock_timestamp() + timedelta(hours=1)
    with ledger.begin() as conn:
        conn.execute(update(transactions).values(lease_until=ahead))
    assert start(ledger, SPEC, log, "b").how == "allocated"
    lost = start(ledger, SPEC, log, "c", is_active=lambda dag, run: run != "a")
    assert (lost.how, lost.claim.txid) == ("adopted", 1)


@pytest.mark.invariant("I6")
def test_an_adopted_transaction_keeps_its_votes_and_fences_its_old_run(ledger, log):
    first = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, first, 0)
    late = take_try(ledger, SPEC, first.claim, 1)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    assert "abandoned" in wants_another_run(ledger, SPEC, log.offsets, always_active).message
    second = start(ledger, SPEC, log, "b")
    assert (second.how, second.slices) == ("adopted", first.slices)
    assert "it has voted" in take_try(ledger, SPEC, second.claim, 0).message
    with pytest.raises(Fenced, match="run b holds the transaction now"):
        take_try(ledger, SPEC, first.claim, 1)
    with pytest.raises(Fenced):
        renew(ledger, first.claim, 60)
    do_slice(ledger, SPEC, second, 1)
    sinks = write_all(ledger, SPEC, late, rows_of(SPEC, late))
    with pytest.raises(Fenced):
        cast_vote(ledger, SPEC, late.token, vote_of(SPEC, late, sinks))
    assert commit(ledger, SPEC, second.claim).txids == (1,)
    assert commit(ledger, SPEC, first.claim).txids == ()
    assert appended(ledger) == planned(first)


@pytest.mark.invariant("I10")
def test_an_open_transaction_with_all_votes_is_promoted_by_the_begin_that_meets_it(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed while it waited")
    second = start(ledger, SPEC, log, "b")
    assert (second.how, second.claim.epoch, state(ledger, 1)) == ("adopted", 1, State.PREPARED)
    assert commit(ledger, SPEC, second.claim).txids == (1,)


@pytest.mark.invariant("I10")
def test_a_failed_run_that_is_cleared_resumes_its_own_transaction(ledger, log):
    start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    again = start(ledger, SPEC, log, "a", clear_number=1)
    assert (again.how, again.claim.txid, again.claim.number) == ("resumed", 1, 2)
    with ledger.begin() as conn:
        assert read_transaction(conn, SPEC.name, 1).failures == 0
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)


def test_a_run_that_was_deleted_and_made_again_under_its_id_says_that_it_does_nothing(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=True)
    log.stable[0] += 100
    made_again = begin(ledger, SPEC, Run("dag", "a"), log.offsets, always_active)
    assert made_again.reason == Skip.COMMITTED_BEFORE
    assert "transaction 1 is committed, by this run or one of its id that was deleted" in made_again.message
    assert "clear run a to revise it, or trigger a run with another id" in made_again.message
    assert start(ledger, SPEC, log, "a", clear_number=1).how == "revised"
    assert start(ledger, SPEC, log, "b").claim.txid == 2


@pytest.mark.parametrize("is_voided", [False, True])
def test_a_begin_that_is_repeated_after_another_run_has_ended_its_work_says_so(ledger, log, is_voided):
    start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    other = start(ledger, SPEC, log, "b")
    if is_voided:
        void(ledger, SPEC, 1, "it is not wanted", "somebody")
    else:
        prepare(ledger, SPEC, other)
        commit(ledger, SPEC, other.claim)
    skipped = begin(ledger, SPEC, Run("dag", "a"), log.offsets, always_active)
    assert (skipped.reason, skipped.message) == (
        (Skip.VOIDED, f"{SPEC.name}: transaction 1 is voided: it is not wanted")
        if is_voided
        else (
            Skip.COMMITTED_BY_ANOTHER,
            f"{SPEC.name}: transaction 1 was adopted and committed by run b; clear that one to revise it",
        )
    )


@pytest.mark.invariant("I6")
def test_a_run_whose_work_was_adopted_does_not_take_it_back(ledger, log):
    start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    start(ledger, SPEC, log, "b")
    skipped = begin(ledger, SPEC, Run("dag", "a", 1), log.offsets, always_active)
    assert skipped.reason == Skip.ADOPTED and "adopted by run b" in skipped.message
    with pytest.raises(Fenced, match="adopted by run b"):
        begin(ledger, SPEC, Run("dag", "a"), log.offsets, always_active)


@pytest.mark.invariant("I7")
def test_changed_code_begins_a_new_epoch_and_votes_of_two_codes_do_not_mix(ledger, log, monkeypatch):
    begun = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, begun, 0)
    monkeypatch.setattr(Pipeline, "code_hash", property(lambda self: "other code"))
    with pytest.raises(OtherCode, match="the code is other code"):
        take_try(ledger, SPEC, begun.claim, 1)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="other code")
    again = start(ledger, SPEC, log, "b")
    assert again.claim.epoch == 2
    prepare(ledger, SPEC, again)
    assert commit(ledger, SPEC, again.claim).txids == (1,)
    assert appended(ledger) == planned(again)


def test_what_other_code_had_begun_is_adopted_in_a_new_epoch_at_once(ledger, log, monkeypatch):
    begun = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, begun, 0)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    monkeypatch.setattr(Pipeline, "code_hash", property(lambda self: "other code"))
    again = start(ledger, SPEC, log, "b")
    assert (again.how, again.claim.epoch, again.slices) == ("adopted", 2, begun.slices)
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)
    assert appended(ledger) == planned(again)


@pytest.mark.invariant("I9")
def test_settle_repeated_or_late_changes_nothing(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    start(ledger, SPEC, log, "b")
    assert settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed").had_ended
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, begun.claim.txid)
    assert (row.claim, row.claim_ended, row.run_id) == (2, False, "b")
