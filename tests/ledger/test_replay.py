"""Revisions that are asked for, by clears of many runs or by a person: one at a time, live transactions first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import func, select

from ratchet import Arrivals
from ratchet.errors import Halted, IllegalMove, NotRevisable, RecordsLost
from ratchet.ledger.schema import replays, transactions
from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.operate import replay
from ratchet.operate.actions import accept_loss, void
from ratchet.operate.snapshot.status import status
from ratchet.operate.verify import verify
from ratchet.protocol.another import AskedRevision, WaitingRecords, waiting_records, wants_another_run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact
from ratchet.protocol.leftovers import discard_finished

from .staging import (
    SPEC,
    always_active,
    appended,
    committed,
    contents,
    do,
    expire,
    fail,
    is_whole,
    planned,
    prepare,
    start,
    state,
)

ONE = SPEC.model_copy(
    update={"max_records": 4, "slice_records": 4, "max_in_flight": 2, "runs": Arrivals()},
)
"""Small transactions, so that there can be many, and records that start runs."""
ask = partial(replay.ask, reason="the transform was corrected", who="amy")


def attempt(ledger, spec, log, run, clear=0, **how):
    return begin(ledger, spec, Run("dag", run, clear), log.offsets, always_active, **how)


def many(ledger, log, number: int) -> list[Begun]:
    """So many committed transactions of runs r1, r2, …"""
    log.stable = {0: 2 * number, 1: 2 * number}
    done: list[Begun] = []
    for n in range(1, number + 1):
        done.append(start(ledger, ONE, log, f"r{n}"))
        finish(ledger, done[-1], f"r{n}")
    return done


def finish(ledger, begun: Begun, run: str, clear: int = 0) -> None:
    prepare(ledger, ONE, begun)
    commit(ledger, ONE, begun.claim)
    settle(ledger, ONE, Run("dag", run, clear), succeeded=True)


def waiting(ledger) -> list[int]:
    with ledger.begin() as conn:
        return list(
            conn.execute(select(replays.c.txid).where(replays.c.given_up.is_(None)).order_by(replays.c.id)).scalars()
        )


def going_on(ledger) -> int:
    """How many revisions are unfinished."""
    unfinished = transactions.c.state.in_([State.OPEN, State.PREPARED, State.ABORTED])
    with ledger.begin() as conn:
        query = select(func.count()).where(transactions.c.revision > 0, unfinished, transactions.c.halted_at.is_(None))
        return conn.execute(query).scalar_one()


def revised(ledger) -> dict[int, int]:
    """{txid: its newest committed revision}, of those that have one."""
    query = select(transactions.c.txid, func.max(transactions.c.revision)).group_by(transactions.c.txid)
    with ledger.begin() as conn:
        done = conn.execute(query.where(transactions.c.revision > 0, transactions.c.state == State.COMMITTED)).all()
    return dict(sorted(map(tuple, done)))


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("number", [8, pytest.param(50, marks=pytest.mark.all)])
def test_of_many_cleared_runs_one_at_a_time_is_revised_and_live_transactions_go_first(ledger, log, number):
    before = many(ledger, log, number)
    log.stable = {p: until + 8 for p, until in log.stable.items()}
    together = threading.Barrier(8)

    def clear(n: int) -> Begun | Skipped:
        if n <= 8:
            together.wait()
        return attempt(ledger, ONE, log, f"r{n}", 1)

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(clear, range(1, number + 1)))
    (first,) = [s for s in said if isinstance(s, Begun)]
    assert first.how == "revised"
    skipped = [s for s in said if isinstance(s, Skipped)]
    assert {s.reason for s in skipped} == {Skip.REPLAY_WAITS} and len(skipped) == number - 1
    assert "one at a time is worked on, live transactions go first" in skipped[-1].message
    assert sorted([*waiting(ledger), first.claim.txid]) == list(range(1, number + 1))
    assert status(ledger, "line").replays == number - 1
    live, order, running = [], [], {f"r{first.claim.txid}": (first, 1)}
    # Whatever runs there are from now on: each ends one that runs, and wants another.
    for at in range(4 * number):
        wanted = wants_another_run(ledger, ONE, log.offsets, always_active)
        if wanted is None and not running:
            break
        while wanted is not None:
            run = f"next_{at}_{len(running)}"
            can_go_on = waiting_records(ledger, ONE, log.offsets) is not None
            begun = start(ledger, ONE, log, run, drains=True)
            assert begun.how == ("allocated" if can_go_on else "replayed")
            running[run] = (begun, 0)
            order.append(begun.how)
            live += [begun] if begun.how == "allocated" else []
            assert going_on(ledger) <= 1
            wanted = wants_another_run(ledger, ONE, log.offsets, always_active)
        run, (begun, clear_number) = next(iter(running.items()))
        del running[run]
        finish(ledger, begun, run, clear_number)
    assert waiting(ledger) == [] and revised(ledger) == dict.fromkeys(range(1, number + 1), 1)
    assert sorted(order) == ["allocated"] * 4 + ["replayed"] * (number - 1)
    assert order[:2] == ["allocated"] * 2
    is_whole(ledger, *before, *live)


@pytest.mark.invariant("I9")
def test_a_cleared_run_whose_begin_is_repeated_asks_once(ledger, log):
    many(ledger, log, 3)
    first = start(ledger, ONE, log, "r1", 1)
    for _ in range(3):
        assert attempt(ledger, ONE, log, "r2", 1).reason is Skip.REPLAY_WAITS
    assert waiting(ledger) == [2]
    finish(ledger, first, "r1", 1)
    replayed = start(ledger, ONE, log, "next_1", drains=True)
    assert (replayed.how, str(replayed.claim)) == ("replayed", "revision 1 of transaction 2")
    assert "r2#1 has asked for it: run r2 was cleared" in replayed.message
    finish(ledger, replayed, "next_1")
    # What was asked for is done: the same begin, repeated late, does not ask for it again; another clear does.
    assert attempt(ledger, ONE, log, "r2", 1).reason is Skip.COMMITTED_BEFORE
    assert waiting(ledger) == []
    assert start(ledger, ONE, log, "r2", 2).claim.revision == 2


def test_a_cleared_run_goes_before_those_that_wait_and_takes_its_own_from_them(ledger, log):
    many(ledger, log, 4)
    assert ask(ledger, ONE, 1, 4).txids == (1, 2, 3, 4)
    begun = start(ledger, ONE, log, "r3", 1)
    assert (begun.how, begun.claim.txid, waiting(ledger)) == ("revised", 3, [1, 2, 4])
    # Its own is going on: a second clear does not wait for the first.
    assert start(ledger, ONE, log, "r3", 2).how == "resumed"


def test_a_void_is_undone_by_its_replay(ledger, log):
    log.stable = {0: 30, 1: 30}
    first, gone = committed(ledger, log, "a"), start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, gone)
    void(ledger, SPEC, gone.claim.txid, "looked wrong", "amy")
    last = committed(ledger, log, "c")
    assert appended(ledger) == planned(first, last)
    with pytest.raises(NotRevisable, match="transaction 2 is left out: it is voided: looked wrong; with --voided"):
        ask(ledger, SPEC, 2, 2)
    asked = ask(ledger, SPEC, 1, 3)
    assert (asked.txids, [txid for txid, _ in asked.left_out]) == ((1, 3), [2])
    replay.take_back(ledger, SPEC, 1, 3, "not these", "amy")
    assert ask(ledger, SPEC, 2, 2, voided=True).txids == (2,)
    begun = start(ledger, SPEC, log, "d")
    assert (begun.how, begun.slices) == ("replayed", gone.slices)
    assert "amy has asked for it: the transform was corrected" in begun.message
    prepare(ledger, SPEC, begun)
    assert appended(ledger) == planned(first, last)
    commit(ledger, SPEC, begun.claim)
    settle(ledger, SPEC, Run("dag", "d"), succeeded=True)
    assert state(ledger, 2) is State.COMMITTED
    discard_finished(ledger, "line")
    is_whole(ledger, first, gone, last)


def test_what_cannot_be_revised_is_refused_and_nothing_is_asked_for(ledger, log):
    with pytest.raises(IllegalMove, match="the ledger has nothing of pipeline line yet"):
        ask(ledger, ONE, 1, 1)
    many(ledger, log, 6)
    with pytest.raises(NotRevisable, match="transaction 7 is not committed yet: the head is 6"):
        ask(ledger, ONE, 2, 7)
    compact(ledger, ONE.model_copy(update={"keep_deltas": timedelta(0)}))
    with pytest.raises(NotRevisable, match="transaction 2 is older than the spec's keep_deltas"):
        ask(ledger, ONE, 2, 6)
    with pytest.raises(IllegalMove, match="of transactions 1 to 6 no revision waits"):
        replay.take_back(ledger, ONE, 1, 6, "none", "amy")
    assert waiting(ledger) == []


def test_a_transaction_that_stands_for_lost_records_has_nothing_to_replay(ledger, log):
    committed(ledger, log, "a")
    log.beginning = {0: 30, 1: 0}
    accept_loss(ledger, SPEC, log.offsets, "gone", "amy")
    with pytest.raises(NotRevisable, match="transaction 2 is left out: transaction 2 stands for records that were"):
        ask(ledger, SPEC, 2, 2, voided=True)
    asked = ask(ledger, SPEC, 1, 2, voided=True)
    assert (asked.txids, len(asked.left_out)) == ((1,), 1)


def test_a_revision_that_is_given_up_does_not_hold_up_the_others(ledger, log):
    before = many(ledger, log, 3)
    ask(ledger, ONE, 1, 2)
    result = contents(ledger, ONE)
    for number in range(ONE.max_failures):
        begun = start(ledger, ONE, log, f"n{number}")
        assert (begun.how, begun.claim.txid) == ("adopted" if number else "replayed", 1)
        assert wants_another_run(ledger, ONE, log.offsets, always_active) is None
        settle(ledger, ONE, Run("dag", f"n{number}"), succeeded=False, reason="it fails")
    wanted = wants_another_run(ledger, ONE, log.offsets, always_active)
    assert wanted == AskedRevision(2, "amy")
    assert contents(ledger, ONE) == result
    begun = start(ledger, ONE, log, "m")
    finish(ledger, begun, "m")
    discard_finished(ledger, "line")
    assert revised(ledger) == {2: 1}
    is_whole(ledger, *before)


def test_a_replays_own_run_that_failed_is_cleared_and_resumes_it(ledger, log):
    many(ledger, log, 2)
    ask(ledger, ONE, 1, 2)
    begun = start(ledger, ONE, log, "next_1", drains=True)
    settle(ledger, ONE, Run("dag", "next_1"), succeeded=False, reason="killed")
    again = start(ledger, ONE, log, "next_1", 1)
    assert (again.how, again.claim.txid, again.claim.revision) == ("resumed", 1, 1)
    assert again.claim.number > begun.claim.number
    finish(ledger, again, "next_1", 1)
    assert attempt(ledger, ONE, log, "next_1", 2).reason is Skip.COMMITTED_BY_ANOTHER


def test_a_halted_line_is_replayed_and_says_what_halts_it_when_nothing_is_left(ledger, log):
    done = committed(ledger, log, "a")
    for number in range(SPEC.max_failures):
        fail(ledger, log, f"f{number}")
    with pytest.raises(Halted):
        start(ledger, SPEC, log, "b")
    ask(ledger, SPEC, 1, 1)
    begun = start(ledger, SPEC, log, "c")
    assert begun.how == "replayed"
    with pytest.raises(Halted):
        start(ledger, SPEC, log, "d")
    do(ledger, SPEC, begun, lambda p, o: {"rows": [{"a": -o}]})
    commit(ledger, SPEC, begun.claim)
    assert appended(ledger) == planned(done)
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []


def test_records_go_before_a_replay_and_a_full_line_leaves_it_a_place(ledger, log):
    many(ledger, log, 2)
    ask(ledger, ONE, 1, 2)
    log.stable = {p: until + 8 for p, until in log.stable.items()}
    assert isinstance(wants_another_run(ledger, ONE, log.offsets, always_active), WaitingRecords)
    assert [start(ledger, ONE, log, run).how for run in ("a", "b", "c")] == ["allocated", "allocated", "replayed"]
    assert wants_another_run(ledger, ONE, log.offsets, always_active) is None
    assert attempt(ledger, ONE, log, "d").reason is Skip.MAX_IN_FLIGHT
    # One that lies abandoned is adopted before another is begun.
    expire(ledger)
    adopted = [begin(ledger, ONE, Run("dag", run), log.offsets, lambda *_: False) for run in ("e", "f", "g")]
    assert [(b.how, str(b.claim)) for b in adopted] == [
        ("adopted", "transaction 3"),
        ("adopted", "transaction 4"),
        ("adopted", "revision 1 of transaction 1"),
    ]


def test_runs_that_begin_at_once_take_one_replay(ledger, log):
    many(ledger, log, 3)
    ask(ledger, ONE, 1, 3)
    together = threading.Barrier(6)

    def one(n: int) -> Begun | Skipped:
        together.wait()
        return attempt(ledger, ONE, log, f"n{n}")

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(one, range(6)))
    assert [b.claim.txid for b in found if isinstance(b, Begun)] == [1]
    assert {s.reason for s in found if isinstance(s, Skipped)} == {Skip.NO_RECORDS}
    assert waiting(ledger) == [2, 3]


def test_asked_twice_is_asked_once_and_said(ledger, log):
    many(ledger, log, 5)
    ask(ledger, ONE, 2, 3)
    again = ask(ledger, ONE, 1, 5)
    assert (again.txids, again.before, again.waiting) == ((1, 4, 5), (2, 3), 5)
    assert replay.lines_of(again) == [
        "line: transactions 2 to 3: a revision was asked for before, and waits",
        f"line: transactions 1, 4 to 5: a revision is asked for, with code {ONE.code_hash}",
        "line: 5 revisions wait; runs do them one at a time, live transactions first; the old results stay until then",
    ]
    gone = replay.take_back(ledger, ONE, 1, 4, "enough", "amy")
    assert (gone.txids, gone.waiting) == ((1, 2, 3, 4), 1)
    assert replay.lines_of(gone) == ["line: transactions 1 to 4: no revision is asked for any more; 1 wait"]


def test_a_long_range_is_asked_for_in_steps(ledger, log, monkeypatch):
    many(ledger, log, 7)
    monkeypatch.setattr(replay, "STEP", 3)
    assert ask(ledger, ONE, 1, 7).txids == tuple(range(1, 8))
    assert replay.take_back(ledger, ONE, 2, 7, "enough", "amy").waiting == 1


@pytest.mark.parametrize("failures", [1, SPEC.max_failures])
def test_a_run_that_failed_to_replay_what_was_voided_is_cleared_and_resumes_it(ledger, log, failures):
    committed(ledger, log, "a")
    start(ledger, SPEC, log, "b")
    void(ledger, SPEC, 2, "looked wrong", "amy")
    log.stable = {0: 20, 1: 20}
    ask(ledger, SPEC, 2, 2, voided=True)
    for number in range(failures):
        start(ledger, SPEC, log, f"n{number}")
        settle(ledger, SPEC, Run("dag", f"n{number}"), succeeded=False, reason="it fails")
    again = start(ledger, SPEC, log, f"n{failures - 1}", 1)
    assert (again.how, str(again.claim)) == ("resumed", "revision 1 of transaction 2")


def test_a_replay_is_done_while_a_loss_keeps_the_line_from_planning(ledger, log):
    before = many(ledger, log, 3)
    ask(ledger, ONE, 1, 1)
    log.stable = {p: until + 20 for p, until in log.stable.items()}
    log.beginning = {0: 10, 1: 0}
    begun = start(ledger, ONE, log, "a")
    assert (begun.how, begun.claim.txid) == ("replayed", 1)
    finish(ledger, begun, "a")
    with pytest.raises(RecordsLost, match="retention has deleted"):
        start(ledger, ONE, log, "b")
    is_whole(ledger, *before)


def test_a_run_with_a_data_interval_is_kept_for_that(ledger, log):
    committed(ledger, log, "a")
    ask(ledger, SPEC, 1, 1)
    monthly = SPEC.model_copy(update={"plan": "interval", "max_in_flight": 1})
    start(ledger, SPEC, log, "b")
    end = datetime(2025, 2, 1, tzinfo=UTC)
    skipped = attempt(ledger, monthly, log, "c", interval_end=end)
    assert skipped.reason is Skip.MAX_IN_FLIGHT and waiting(ledger) == [1]
    assert start(ledger, monthly, log, "next_1").how == "replayed"
