"""I9: steps that are doubled, and come at once, happen once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import func, select

from ratchet.errors import Fenced
from ratchet.ledger.schema import events
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, Waits, commit
from ratchet.protocol.votes import cast_vote

from .staging import SPEC, a_try, always_active, finish, is_whole, start

ROUNDS = 8


def at_once(*calls: Callable[[], object]) -> list[object]:
    """What each gave, or the error it raised."""
    together = threading.Barrier(len(calls))

    def one(call: Callable[[], object]) -> object:
        together.wait()
        try:
            return call()
        except Fenced as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def test_a_begin_and_its_own_settle_at_once_leave_one_claim_that_is_ended_or_held(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    done = []
    for n in range(ROUNDS):
        run = Run("dag", f"r{n}")
        first = start(ledger, SPEC, log, run.run_id)
        again, said = at_once(
            lambda run=run: begin(ledger, SPEC, run, log.offsets, always_active),
            lambda run=run: settle(ledger, SPEC, run, succeeded=False, reason="killed"),
        )
        assert isinstance(again, Fenced) or again.claim == first.claim
        assert (said.row.state, said.had_ended) == (State.OPEN, False)
        adopted = start(ledger, SPEC, log, f"{run.run_id} after")
        assert (adopted.how, adopted.claim.txid, adopted.claim.number) == ("adopted", first.claim.txid, 2)
        finish(ledger, adopted, stages)
        done.append(adopted)
    is_whole(ledger, *done)


def test_two_runs_that_find_the_same_abandoned_work_at_once_adopt_it_once(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    done = []
    for n in range(ROUNDS):
        lost = start(ledger, SPEC, log, f"r{n}")
        settle(ledger, SPEC, Run("dag", f"r{n}"), succeeded=False, reason="killed")
        found = at_once(*(lambda who=who, n=n: start(ledger, SPEC, log, f"r{n}{who}") for who in "ab"))
        assert sorted(b.how for b in found) == ["adopted", "allocated"]
        assert {b.claim.txid for b in found if b.how == "adopted"} == {lost.claim.txid}
        for b in sorted(found, key=lambda b: b.claim.txid):
            finish(ledger, b, stages)
            done.append(b)
    is_whole(ledger, *done)


def test_commits_of_a_line_that_come_all_at_once_commit_each_once_and_in_order(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    done = []
    for n in range(ROUNDS):
        line = [start(ledger, SPEC, log, f"r{n}{who}") for who in "abc"]
        for begun in line:
            for part in begun.slices:
                work = a_try(ledger, begun, part.number)
                cast_vote(ledger, SPEC, work.token, stages(work))
        # Each of them twice, the last first.
        said = at_once(*(lambda b=b: commit(ledger, SPEC, b.claim) for b in [*reversed(line), *reversed(line)]))
        assert {type(outcome) for outcome in said} <= {Committed, Waits}
        by = [outcome.txids for outcome in said if isinstance(outcome, Committed)]
        assert sorted(txid for txids in by for txid in txids) == [b.claim.txid for b in line]
        done += line
    with ledger.begin() as conn:
        order = conn.execute(select(events.c.txid).where(events.c.move == "COMMITTED").order_by(events.c.id)).scalars()
        assert order.all() == list(range(1, 3 * ROUNDS + 1))
    is_whole(ledger, *done)


def test_a_settle_of_the_run_beside_its_commit_changes_nothing_of_it(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    done = []
    for n in range(ROUNDS):
        begun = start(ledger, SPEC, log, f"r{n}")
        for part in begun.slices:
            work = a_try(ledger, begun, part.number)
            cast_vote(ledger, SPEC, work.token, stages(work))
        settling = [
            lambda n=n: settle(ledger, SPEC, Run("dag", f"r{n}"), succeeded=False, reason="killed") for _ in range(2)
        ]
        outcome, *_ = at_once(lambda b=begun: commit(ledger, SPEC, b.claim), *settling)
        assert outcome.txids == (begun.claim.txid,)
        with ledger.begin() as conn:
            row = read_transaction(conn, SPEC.name, begun.claim.txid)
            ends = select(func.count()).where(events.c.txid == row.txid, events.c.move == "end")
            assert (row.state, row.failures, row.claim_ended) == (State.COMMITTED, 0, True)
            assert conn.execute(ends).scalar_one() == 1
        done.append(begun)
    is_whole(ledger, *done)


def test_a_settle_that_is_doubled_counts_one_failure(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    for n in range(ROUNDS):
        begun = start(ledger, SPEC, log, f"r{n}")
        said = at_once(*[lambda n=n: settle(ledger, SPEC, Run("dag", f"r{n}"), succeeded=False, reason="killed")] * 3)
        assert sorted(left.had_ended for left in said) == [False, True, True]
        with ledger.begin() as conn:
            assert read_transaction(conn, SPEC.name, begun.claim.txid).failures == 1
        finish(ledger, start(ledger, SPEC, log, f"r{n} after"), stages)
