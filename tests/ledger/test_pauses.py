"""A line that a person has stopped behind a transaction: what goes on, what waits, and how it goes on."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from ratchet.errors import IllegalMove
from ratchet.ledger import history
from ratchet.ledger.work import Run
from ratchet.operate.attention import may_want_records, standings
from ratchet.operate.outcome import lines_of
from ratchet.operate.pauses import pause_at
from ratchet.operate.snapshot.status import Waits, status
from ratchet.operate.snapshot.transaction import transaction
from ratchet.operate.snapshot.words import lines_of as said_of
from ratchet.operate.snapshot.words import pause_of
from ratchet.operate.upcoming import upcoming
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.commit import Waits as WaitsForTurn

from .pausing import BY_RECORDS, INTERVAL, go_on, pause, skipped, wanted
from .staging import (
    PLAIN,
    SPEC,
    always_active,
    appended,
    committed,
    expire,
    head,
    planned,
    prepare,
    start,
)
from .waiting import at, awaited, looked_at


@pytest.mark.parametrize("spec", [SPEC, PLAIN, BY_RECORDS], ids=["three sinks", "two sinks", "records start runs"])
def test_a_paused_line_finishes_what_is_begun_begins_nothing_and_goes_on_by_itself(ledger, log, spec):
    log.stable = {0: 200, 1: 50}
    begun = [start(ledger, spec, log, run) for run in "ab"]
    said = lines_of(pause(ledger, spec=spec))
    assert said[0].startswith("line is paused behind transaction 2 by me since 20") and said[1] == "the head is 0"
    # A person's run, and one that follows others; neither takes anything, and none is started to no purpose.
    for drains in (False, True):
        found = skipped(ledger, log, "c", spec, drains=drains)
        assert found.reason is Skip.PAUSED and found.message == pause_of(status(ledger, "line"))
        assert ": the warehouse moves; `ratchet resume line --reason …` lets it go on" in found.message
    assert wanted(ledger, log, spec) is None
    for each, run in zip(begun, "ab", strict=True):
        prepare(ledger, spec, each)
        assert isinstance(commit(ledger, spec, each.claim), Committed)
        settle(ledger, spec, Run("dag", run), succeeded=True)
    assert (head(ledger), wanted(ledger, log, spec)) == (2, None)
    with ledger.begin() as conn:
        assert not may_want_records(spec, standings(conn, ["line"])["line"])
    assert upcoming(ledger, spec, log.offsets).code == "paused"
    assert lines_of(go_on(ledger, spec))[0] == "line goes on"
    assert "210 records wait" in wanted(ledger, log, spec).message
    third = start(ledger, spec, log, "d", drains=True)
    prepare(ledger, spec, third)
    commit(ledger, spec, third.claim)
    assert appended(ledger) == planned(*begun, third)


def test_what_is_asked_for_while_a_line_is_paused_is_due_when_it_goes_on(ledger, log):
    log.stable = {0: 10, 1: 10}
    committed(ledger, log, "a")
    pause(ledger)
    log.stable = {0: 30, 1: 10}
    assert skipped(ledger, log, "scheduled").reason is Skip.PAUSED
    log.stable = {0: 99, 1: 99}
    go_on(ledger)
    assert wanted(ledger, log).records == 20
    assert sum(len(part) for part in start(ledger, SPEC, log, "next", drains=True).slices) == 20


def test_a_line_is_lengthened_up_to_its_pause(ledger, log):
    log.stable = {0: 500, 1: 500}
    committed(ledger, log, "a")
    pause(ledger, 3)
    assert "records wait" in wanted(ledger, log).message
    assert [start(ledger, SPEC, log, run).claim.txid for run in "bc"] == [2, 3]
    assert skipped(ledger, log, "d").reason is Skip.PAUSED and wanted(ledger, log) is None


def test_a_run_by_interval_is_skipped_without_kafka(ledger, log):
    committed(ledger, log, "a")
    pause(ledger, spec=INTERVAL)

    def nobody(*asked):
        raise AssertionError("Kafka was asked")

    found = begin(ledger, INTERVAL, Run("dag", "b"), nobody, always_active)
    assert isinstance(found, Skipped) and found.reason is Skip.PAUSED


def test_a_commit_beyond_the_pause_waits_with_its_lease_over_a_restart_and_has_its_turn_when_the_line_goes_on(
    ledger, two, in_no_hurry
):
    pause(ledger, 1)
    first, second = two
    outcome = commit(ledger, SPEC, second.claim)
    assert (
        isinstance(outcome, WaitsForTurn) and "prepared; line is paused behind transaction 1 by me" in outcome.message
    )
    # The commit of what the pause is behind takes nothing along.
    assert commit(ledger, SPEC, first.claim).txids == (1,)
    assert isinstance(commit(ledger, SPEC, second.claim), WaitsForTurn)
    (waits,) = status(ledger, "line").unfinished
    assert (waits.txid, waits.waits) == (2, Waits.PAUSE)
    assert "transaction 2: PREPARED, 2 of 2 slices voted; prepared; the line is paused behind transaction 1; run b" in (
        "\n".join(said_of(status(ledger, "line")))
    )
    expire(ledger)

    async def waits_twice() -> dict:
        for _ in range(2):
            # The second is that of a triggerer that was started anew.
            who = at(ledger)
            task = asyncio.ensure_future(who.wait(awaited(second)))
            await looked_at(who)
            assert not task.done()
            if _ == 0:
                task.cancel()
                who._serving.cancel()
        # It is moved to where it is: whoever waits is told, looks, and waits on.
        look, looks = who._look, asyncio.Semaphore(0)

        async def counted(*given) -> None:
            await look(*given)
            looks.release()

        who._look = counted
        await asyncio.to_thread(pause, ledger, 1)
        await asyncio.wait_for(looks.acquire(), 20)
        assert not task.done() and _lease(ledger, 2) > 0
        await asyncio.to_thread(go_on, ledger)
        return await asyncio.wait_for(task, 20)

    assert asyncio.run(waits_twice()) == {"why": "transaction 2 has its turn", "held": True}
    assert commit(ledger, SPEC, second.claim).txids == (2,)
    assert appended(ledger) == planned(*two)


def _lease(ledger, txid: int) -> float:
    """How many seconds a lease still holds."""
    left = text("select extract(epoch from lease_until - clock_timestamp()) from ratchet.transactions where txid = :t")
    with ledger.begin() as conn:
        return float(conn.execute(left, {"t": txid}).scalar_one())


def test_a_pause_behind_what_is_committed_is_refused_but_for_the_head_itself(ledger, log, two):
    for each in two:
        commit(ledger, SPEC, each.claim)
    with pytest.raises(IllegalMove, match="the head is 2, so the line cannot stop behind transaction 1 any more"):
        pause(ledger, 1)
    with pytest.raises(IllegalMove, match="line is not paused"):
        go_on(ledger)
    assert pause(ledger, 2).pause.txid == 2
    assert skipped(ledger, log, "c").reason is Skip.PAUSED


def test_a_line_that_has_not_begun_is_paused_before_its_first_transaction(ledger, log):
    with pytest.raises(IllegalMove, match="the ledger has nothing of pipeline line yet"):
        pause(ledger)
    log.stable = {0: 0, 1: 0}
    assert skipped(ledger, log, "a").reason is Skip.NO_RECORDS
    pause(ledger)
    log.stable = {0: 10, 1: 10}
    assert "line is paused before its first transaction by me" in skipped(ledger, log, "b").message
    go_on(ledger)
    committed(ledger, log, "c")


def test_a_pause_is_moved_and_lifted_and_the_history_says_so(ledger, log, two):
    pause(ledger, 1)
    # Moved further, the second has its turn; what a dry run says is what is done.
    tried = lines_of(pause(ledger, dry_run=True))
    assert tried[-1] == "this was a dry run: nothing was changed"
    assert status(ledger, "line").pause.txid == 1
    moved = pause_at(ledger, SPEC, None, "a day later", "you")
    assert (moved.pause.txid, moved.pause.who, moved.lifted.txid, moved.lifted.who) == (2, "you", 1, "me")
    assert "it was paused behind transaction 1 by me since" in lines_of(moved)[1]
    assert commit(ledger, SPEC, two[0].claim).txids == (1, 2)
    assert transaction(ledger, "line", 2).pause == moved.pause
    assert "the head is 2, where the line is paused" in lines_of(pause(ledger, 2))
    go_on(ledger)
    assert transaction(ledger, "line", 2).pause is None
    with ledger.begin() as conn:
        said = [(e.txid, e.move, e.who, e.detail["why"]) for e in history.read(conn, "line") if "behind" in e.detail]
    assert said == [
        (1, "pause-at", "me", "the warehouse moves"),
        (2, "pause-at", "you", "a day later"),
        (2, "pause-at", "me", "the warehouse moves"),
        (2, "resume", "somebody", "it has moved"),
    ]
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []
