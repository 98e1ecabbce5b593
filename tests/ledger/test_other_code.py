"""What was begun with one version of code and spec is never voted for, folded or voided along by another."""

from __future__ import annotations

import pytest

from ratchet import Append, MaxDeadLetters
from ratchet.errors import OtherCode, RecordsLost
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.leftovers import discard_finished
from ratchet.protocol.votes import cast_vote, take_try

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


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("sinks", [SPEC.sinks[:2], [*SPEC.sinks, Append("fourth", columns="a bigint")]])
def test_what_was_prepared_with_another_spec_is_begun_anew_and_never_half_committed(ledger, log, sinks):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    today = SPEC.model_copy(update={"sinks": sinks})
    before = moves_of(ledger)
    with pytest.raises(OtherCode, match="transaction 1 was prepared with code .*; nothing was changed"):
        commit(ledger, today, first.claim)
    assert (state(ledger, 1), head(ledger), moves_of(ledger)) == (State.PREPARED, 0, before)
    migrate(ledger.url, [today])
    settle(ledger, today, Run("dag", "a"), succeeded=False, reason="other code")
    again = start(ledger, today, log, "b")
    assert (again.how, again.claim.epoch, again.slices) == ("adopted", 2, first.slices)
    for part in again.slices:
        work = a_try(ledger, again, part.number, today)
        rows = rows_of(today, work)
        rows = {sink.name: rows.get(sink.name, rows["rows"]) for sink in today.sinks}
        cast_vote(ledger, today, work.token, vote_of(today, work, write_all(ledger, today, work, rows)))
    assert commit(ledger, today, again.claim).txids == (1,)
    assert appended(ledger) == planned(again)


NEW = SPEC.model_copy(update={"gates": [MaxDeadLetters(0.5)]})


def test_two_versions_in_the_midst_of_a_deploy_do_not_abort_each_other_into_a_halt(ledger, log):
    old = SPEC
    begun = start(ledger, old, log, "r0")
    for number in range(SPEC.max_failures + 2):
        here, there = (old, NEW) if number % 2 == 0 else (NEW, old)
        assert begun.claim.txid == 1
        # Its tasks run where the other version is.
        with pytest.raises(OtherCode, match="nothing was changed; the next run begins a new epoch"):
            take_try(ledger, there, begun.claim, 0)
        work = a_try(ledger, begun, 0, here)
        sinks = write_all(ledger, here, work, rows_of(here, work))
        with pytest.raises(OtherCode):
            cast_vote(ledger, here, work.token, vote_of(there, work, sinks))
        assert state(ledger, 1) is State.OPEN
        settle(ledger, there, Run("dag", f"r{number}"), succeeded=False, reason="other code")
        begun = start(ledger, there, log, f"r{number + 1}")
    with ledger.begin() as conn:
        assert read_transaction(conn, SPEC.name, 1).failures == 0
    prepare(ledger, there, begun)
    assert commit(ledger, there, begun.claim).txids == (1,)
    is_whole(ledger, begun)


def test_a_commit_of_other_code_does_not_take_a_prepared_successor_along(ledger, log):
    first, second = start(ledger, SPEC, log, "a"), start(ledger, NEW, log, "b")
    prepare(ledger, SPEC, first)
    prepare(ledger, NEW, second)
    assert commit(ledger, SPEC, first.claim).txids == (1,)
    assert (state(ledger, 2), head(ledger)) == (State.PREPARED, 1)
    assert commit(ledger, NEW, second.claim).txids == (2,)


def test_a_void_of_other_code_takes_no_prepared_successor_along(ledger, log):
    start(ledger, SPEC, log, "a")
    second = start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, second)
    assert void(ledger, NEW, 1, "for the test", "me").committed == ()
    assert (state(ledger, 2), head(ledger)) == (State.PREPARED, 1)
    assert commit(ledger, SPEC, second.claim).txids == (2,)


def test_what_was_prepared_with_other_code_and_kafka_has_lost_is_left_to_who_has_that_code(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    log.beginning = {0: 4, 1: 0}
    with pytest.raises(
        RecordsLost, match=r"begun with code .* Kafka does not have t-0\[0,4\) any more, .*`ratchet void line 1"
    ):
        begin(ledger, NEW, Run("dag", "b"), log.offsets, always_active)
    assert (state(ledger, 1), head(ledger)) == (State.PREPARED, 0)
    again = start(ledger, SPEC, log, "c")
    assert (again.how, again.claim.epoch) == ("adopted", 1)
    assert commit(ledger, SPEC, again.claim).txids == (1,)
    is_whole(ledger, again)


def test_a_log_that_was_cut_below_what_other_code_has_prepared_is_lost_too(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    log.stable = {0: 6, 1: 50}
    with pytest.raises(RecordsLost, match=r"does not have t-0\[6,10\) any more"):
        begin(ledger, NEW, Run("dag", "b"), log.offsets, always_active)
    assert state(ledger, 1) is State.PREPARED


def test_votes_of_other_code_that_are_the_last_copy_are_kept_though_other_slices_have_not_voted(ledger, log):
    first = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, first, 0)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    log.beginning = {0: 10, 1: 0}
    with pytest.raises(RecordsLost, match=r"does not have t-0\[0,10\) any more, which it has voted for"):
        begin(ledger, NEW, Run("dag", "b"), log.offsets, always_active)
    discard_finished(ledger, SPEC.name)
    again = start(ledger, SPEC, log, "c")
    assert (again.how, again.claim.epoch) == ("adopted", 1)
    do_slice(ledger, SPEC, again, 1)
    assert commit(ledger, SPEC, again.claim).txids == (1,)
    is_whole(ledger, again)


def test_a_revision_that_kafka_has_lost_is_given_up_by_other_code_and_holds_up_nobody(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    revised = start(ledger, SPEC, log, "a", 1)
    prepare(ledger, SPEC, revised)
    settle(ledger, SPEC, Run("dag", "a", 1), succeeded=False, reason="other code")
    log.beginning = {0: 5, 1: 5}
    following = start(ledger, NEW, log, "b")
    assert (following.how, following.claim.txid) == ("allocated", 2)
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, 1, 1)
    assert (row.state, row.halted_at is None) == (State.ABORTED, False)
    assert "Kafka does not have t-0[0,5), t-1[0,5) any more" in row.reason
    is_whole(ledger, first)
