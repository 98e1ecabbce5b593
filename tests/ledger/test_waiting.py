"""The wait for a turn, as Airflow's triggerer runs it: every waiter is told, over one connection that may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy import text

from ratchet import Append, Json, MaxDeadLetters, Pipeline, Topic
from ratchet.airflow import waiting
from ratchet.airflow.trigger import TurnTrigger
from ratchet.airflow.waiting import Waiting
from ratchet.ledger.channel import channel_of
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort, void
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit, move_on

from .staging import SPEC, do, expire, prepare, start
from .waiting import at, awaited, connections, looked_at, sessions

pytestmark = pytest.mark.usefixtures("in_no_hurry")


OTHER_CODE = SPEC.model_copy(update={"gates": [MaxDeadLetters(0.5)]})
# As many letters as a name may have, and a gate: nothing that SPEC has.
LONG = Pipeline(
    name="l" * 32,
    source=Topic("t", value=Json("a bigint")),
    sinks=[Append("long_rows", columns="a bigint")],
    max_records=10,
    max_in_flight=32,
    lease_seconds=5,
)


def told(ledger: Ledger, begun: Begun, act: Callable[[], object]) -> tuple[str, bool]:
    """What a waiter is told when, while it waits, `act` is done."""

    async def waits() -> dict:
        who = at(ledger)
        task = asyncio.ensure_future(who.wait(awaited(begun)))
        await looked_at(who)
        assert not task.done()
        await asyncio.to_thread(act)
        return await asyncio.wait_for(task, 20)

    event = asyncio.run(waits())
    return event["why"], event["held"]


def spoil(ledger: Ledger) -> None:
    """Take away what the second transaction has written, so that nobody can commit it along."""
    with ledger.begin() as conn:
        gone = conn.execute(text('delete from ratchet_delta."public.totals" where _txid = 2'))
        assert gone.rowcount


def adopted(ledger: Ledger, log, runs: str) -> list[Begun]:
    """What two runs get that come when those of the others are lost."""
    expire(ledger)
    return [start(ledger, SPEC, log, run, is_active=lambda _, of: of in runs) for run in runs]


def test_a_waiter_is_told_that_its_turn_has_come(ledger, two):
    spoil(ledger)
    assert told(ledger, two[1], lambda: commit(ledger, SPEC, two[0].claim)) == ("transaction 2 has its turn", True)


@pytest.mark.parametrize(
    "act",
    [
        lambda ledger, first: commit(ledger, SPEC, first.claim),
        lambda ledger, first: void(ledger, SPEC, 1, "why", "me"),
    ],
    ids=["a commit", "a void"],
)
def test_a_waiter_is_told_that_it_was_taken_along(ledger, two, act):
    assert told(ledger, two[1], lambda: act(ledger, two[0])) == ("transaction 2 is COMMITTED", True)


def test_a_waiter_is_told_by_maintenance_that_moves_the_head_over_a_void(ledger, two):
    # Whoever voided has not come to move the head.
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set state = 'VOIDED' where txid = 1"))
    assert told(ledger, two[1], lambda: move_on(ledger, SPEC)) == ("transaction 2 is COMMITTED", True)


def test_a_waiter_is_told_what_a_person_does_with_its_transaction(ledger, two, log):
    assert told(ledger, two[1], lambda: abort(ledger, SPEC, 2, "why", "me")) == ("transaction 2 is ABORTED", True)
    third = start(ledger, SPEC, log, "c")
    prepare(ledger, SPEC, third)
    assert told(ledger, third, lambda: void(ledger, SPEC, third.claim.txid, "why", "me"))[0].endswith("is VOIDED")


def test_a_waiter_is_told_that_another_run_has_its_transaction(ledger, log, two):
    settled = told(ledger, two[1], lambda: settle(ledger, SPEC, Run("dag", "b"), succeeded=False, reason="marked"))
    assert settled == ("transaction 2 was taken over from this run", False)
    _, held = adopted(ledger, log, "cd")
    assert told(ledger, held, lambda: adopted(ledger, log, "ef")) == settled
    _, held = adopted(ledger, log, "gh")
    # Its own run is cleared, and once more in the midst of a deploy.
    assert told(ledger, held, lambda: start(ledger, SPEC, log, "h", 1)) == settled
    held = start(ledger, SPEC, log, "h", 2)
    assert told(ledger, held, lambda: start(ledger, OTHER_CODE, log, "h", 3)) == ("transaction 2 is OPEN", False)


@pytest.mark.parametrize("step, is_before", [("_listen", True), ("_look", True), ("_look", False)])
def test_no_move_falls_between_listening_and_looking(ledger, two, monkeypatch, step, is_before):
    done = []
    inner = getattr(Waiting, step)

    async def stepped(*given):
        if is_before and not done:
            done.append(await asyncio.to_thread(commit, ledger, SPEC, two[0].claim))
        found = await inner(*given)
        if not is_before and not done:
            done.append(await asyncio.to_thread(commit, ledger, SPEC, two[0].claim))
        return found

    monkeypatch.setattr(Waiting, step, stepped)
    event = asyncio.run(asyncio.wait_for(at(ledger).wait(awaited(two[1])), 20))
    assert event == {"why": "transaction 2 is COMMITTED", "held": True}


def test_whoever_comes_while_the_others_are_looked_at_is_heard_first(ledger, log, two, monkeypatch):
    """Its pipeline moves after the look in the midst of which it came: only a channel that is heard tells of it."""
    migrate(ledger.url, [SPEC, LONG])
    long = [start(ledger, LONG, log, run) for run in "xy"]
    for each in long:
        do(ledger, LONG, each, lambda p, o: {"long_rows": [{"a": o}]})
    who, inner, late = at(ledger), Waiting._listen, []

    async def listen(self, *given):
        heard = await inner(self, *given)
        if not late:
            late.append(asyncio.ensure_future(who.wait(awaited(long[1], LONG))))
            await asyncio.sleep(0)
        return heard

    monkeypatch.setattr(Waiting, "_listen", listen)

    async def waits() -> dict:
        first = asyncio.ensure_future(who.wait(awaited(two[1])))
        await looked_at(who, 2)
        await asyncio.to_thread(commit, ledger, LONG, long[0].claim)
        event = await asyncio.wait_for(late[0], 20)
        first.cancel()
        return event

    assert asyncio.run(waits())["why"] == "transaction 2 is COMMITTED"


def test_all_who_wait_share_a_connection_that_ends_with_them(ledger, log, two, monkeypatch):
    migrate(ledger.url, [SPEC, LONG])
    long = [start(ledger, LONG, log, f"run {n}") for n in range(10)]
    for each in long:
        do(ledger, LONG, each, lambda p, o: {"long_rows": [{"a": o}]})

    connections(monkeypatch, ledger=ledger.url)
    waits = [(SPEC, two[1]), *((LONG, each) for each in long[1:])]

    async def all_wait() -> list[str]:
        async def fires(spec: Pipeline, begun: Begun) -> str:
            claim = begun.claim
            trigger = TurnTrigger("ledger", spec.name, claim.txid, 0, claim.number, claim.epoch, spec.lease_seconds)
            async for event in trigger.run():
                return event.payload["why"]
            raise AssertionError("no event")

        tasks = [asyncio.ensure_future(fires(*each)) for each in waits]
        await sessions(ledger)
        (who,) = waiting._OF.values()
        await looked_at(who, len(waits))
        assert len(await sessions(ledger)) == 1
        # One that is cancelled takes nothing with it.
        tasks.pop(1).cancel()
        await asyncio.to_thread(commit, ledger, SPEC, two[0].claim)
        await asyncio.to_thread(commit, ledger, LONG, long[0].claim)
        found = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        await sessions(ledger, 0)
        assert waiting._OF == {}
        return found

    assert asyncio.run(all_wait()) == [f"transaction {txid} is COMMITTED" for txid in (2, *range(3, 11))]


def test_leases_of_all_are_renewed_and_nobody_waits_for_a_row_that_is_locked(ledger, log, two):
    third = start(ledger, SPEC, log, "c")
    prepare(ledger, SPEC, third)
    expire(ledger)

    def holding() -> set[int]:
        query = "select txid from ratchet.transactions where lease_until > clock_timestamp()"
        with ledger.begin() as conn:
            return set(conn.execute(text(query)).scalars())

    async def waits(number: int = 2) -> None:
        who = at(ledger)
        tasks = [asyncio.ensure_future(who.wait(awaited(each))) for each in (third, two[1])]
        await asyncio.sleep(0)
        if number == 1:
            assert (await asyncio.wait_for(tasks[0], 20))["held"] is False
        await looked_at(who, number)
        for task in tasks:
            task.cancel()

    # As long as a commit folds, it has what it commits locked.
    with psycopg.connect(ledger.url) as holder:
        holder.execute("select from ratchet.transactions where txid = 2 for update")
        asyncio.run(waits())
        assert holding() == {3}
    asyncio.run(waits())
    assert holding() == {2, 3}
    # A claim that is not the run's any more holds nothing.
    expire(ledger)
    settle(ledger, SPEC, Run("dag", "c"), succeeded=False, reason="failed")
    asyncio.run(waits(1))
    assert holding() == {2}


def test_a_notification_goes_out_only_where_the_head_moves_or_prepared_work_ends(ledger, log):
    begun = [start(ledger, SPEC, log, run) for run in "abc"]
    with psycopg.connect(ledger.url, autocommit=True) as onlooker:
        onlooker.execute(f"listen {channel_of(SPEC.name)}")

        def heard() -> int:
            return len(list(onlooker.notifies(timeout=0.2)))

        for each in begun:
            prepare(ledger, SPEC, each)
        settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="failed")
        # That of run a: its transaction is prepared, and another may take it.
        assert heard() == 1
        commit(ledger, SPEC, begun[0].claim)
        # One for all three.
        assert heard() == 1
        for run in "bc":
            settle(ledger, SPEC, Run("dag", run), succeeded=True)
        start(ledger, SPEC, log, "d")
        abort(ledger, SPEC, 4, "why", "me")
        assert heard() == 0
