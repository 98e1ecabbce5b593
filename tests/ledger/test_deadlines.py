"""Deadlines of transactions that are not prepared in time, against a real PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, text, update

from ratchet.errors import BrokerUnreachable, EngineLost, EngineUnreachable, Fenced, RatchetError, Refused
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.failures import errors_recorded
from ratchet.protocol.leases import renew
from ratchet.protocol.votes import cast_vote, take_try

from .staging import SPEC, do_slice, head, prepare, rows_of, start, state, vote_of, write_all

TIMED = SPEC.model_copy(update={"timeout_seconds": 3600})


def set_deadline_behind(ledger: Ledger) -> None:
    with ledger.begin() as conn:
        passed = func.clock_timestamp() - text("interval '1 second'")
        conn.execute(update(transactions).where(transactions.c.state == "OPEN").values(deadline=passed))


def test_an_epoch_that_is_open_after_its_deadline_is_aborted_and_a_prepared_one_never(ledger, log):
    first, second = start(ledger, TIMED, log, "a"), start(ledger, TIMED, log, "b")
    prepare(ledger, TIMED, second)
    set_deadline_behind(ledger)
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set deadline = clock_timestamp() - interval '1 second'"))
    with pytest.raises(Refused, match="epoch 1 was not prepared by its deadline"):
        renew(ledger, first.claim, 60)
    assert (state(ledger, 1), state(ledger, 2)) == (State.ABORTED, State.PREPARED)
    with pytest.raises(Refused, match="deadline"):
        commit(ledger, TIMED, first.claim)
    settle(ledger, TIMED, Run("dag", "a"), succeeded=False, reason="refused")
    again = start(ledger, TIMED, log, "c")
    assert (again.claim.txid, again.claim.epoch) == (1, 2)
    prepare(ledger, TIMED, again)
    assert commit(ledger, TIMED, again.claim).txids == (1, 2)


def test_a_begin_aborts_what_is_overdue_though_nobody_renews_it(ledger, log):
    start(ledger, TIMED, log, "a")
    set_deadline_behind(ledger)
    assert start(ledger, TIMED, log, "b").how == "allocated"
    assert state(ledger, 1) == State.ABORTED


def test_a_deadline_that_passes_during_an_outage_is_no_failure_and_another_is(ledger, log):
    def misses_it(run: str, *errors: RatchetError) -> int:
        begun = start(ledger, SPEC, log, run)
        for error in errors:
            work = take_try(ledger, SPEC, begun.claim, 0)
            with pytest.raises(type(error)), errors_recorded(ledger, work.token):
                raise error
        take_try(ledger, SPEC, begun.claim, 0)
        set_deadline_behind(ledger)
        with pytest.raises(Refused, match="was not prepared by its deadline"):
            renew(ledger, begun.claim, 30)
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="failed")
        with ledger.begin() as conn:
            return read_transaction(conn, "line", 1).failures

    assert misses_it("a", BrokerUnreachable("no answer")) == 0
    assert misses_it("b", EngineUnreachable("no answer")) == 0
    assert misses_it("c", EngineLost("a worker died"), EngineUnreachable("no answer")) == 1
    assert misses_it("d") == 2


@pytest.mark.invariant("I6")
def test_the_deadline_and_the_last_vote_that_race_have_one_winner(ledger, log):
    log.stable = {0: 400, 1: 400}
    winners = set()
    for n in range(12):
        begun = start(ledger, TIMED, log, f"r{n}")
        do_slice(ledger, TIMED, begun, 0)
        work = take_try(ledger, TIMED, begun.claim, 1)
        sinks = write_all(ledger, TIMED, work, rows_of(TIMED, work))
        vote = vote_of(TIMED, work, sinks)
        set_deadline_behind(ledger)
        together = threading.Barrier(2)

        def last(work=work, vote=vote, together=together):
            together.wait()
            try:
                return cast_vote(ledger, TIMED, work.token, vote)
            except Fenced:
                return None

        def deadline(begun=begun, together=together):
            together.wait()
            try:
                return renew(ledger, begun.claim, 60)
            except Refused:
                return "aborted"

        with ThreadPoolExecutor(2) as pool:
            voted, aborted = pool.submit(last), pool.submit(deadline)
            voted, aborted = voted.result(), aborted.result()
        won = state(ledger, begun.claim.txid)
        assert (won == State.PREPARED) == bool(voted) == (aborted is None), (won, voted, aborted)
        winners.add(won)
        if won == State.ABORTED:
            void(ledger, TIMED, begun.claim.txid, "lost the race", "test")
        else:
            commit(ledger, TIMED, begun.claim)
    assert head(ledger) == 12 and winners <= {State.PREPARED, State.ABORTED}
