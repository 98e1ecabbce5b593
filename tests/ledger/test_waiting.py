"""The wait for a turn, as Airflow's triggerer runs it: every waiter is told, over one connection that may be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url, text
from structlog.testing import capture_logs

from ratchet import Append, Json, MaxDeadLetters, Pipeline, Topic
from ratchet.airflow import waiting
from ratchet.airflow.trigger import TurnTrigger
from ratchet.airflow.waiting import Awaited, Waiting
from ratchet.errors import SettingsError
from ratchet.ledger.channel import channel_of
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort, void
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit, move_on

from .staging import SPEC, do, expire, prepare, start
from .waiting import TAKEN_ALONG, Counted, InLine, connections, is_listening

NEVER = 3600.0
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
SESSIONS = "select pid from pg_stat_activity where datname = current_database() and application_name = 'ratchet wait'"
ENDS = SESSIONS.replace("select pid", "select pg_terminate_backend(pid)")


@pytest.fixture(autouse=True)
def in_no_hurry(monkeypatch):
    """Whoever is told is told by a notification."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", NEVER)
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.05)


@pytest.fixture
def two(ledger, log) -> list[Begun]:
    """Two prepared transactions: the second has to wait."""
    begun = [start(ledger, SPEC, log, run) for run in "ab"]
    for each in begun:
        prepare(ledger, SPEC, each)
    return begun


def at(ledger: Ledger) -> Waiting:
    async def url() -> str:
        return ledger.url

    return Waiting(url)


def awaited(begun: Begun, spec: Pipeline = SPEC) -> Awaited:
    claim = begun.claim
    return Awaited(claim.pipeline, claim.txid, claim.revision, claim.number, spec.lease_seconds)


async def looked_at(who: Waiting, number: int = 1) -> None:
    """So many wait, and nothing is left that they would come upon by themselves."""
    async with asyncio.timeout(30):
        while len(who._waiters) != number or any(waiter.is_new for waiter in who._waiters):
            await asyncio.sleep(0.01)


async def sessions(ledger: Ledger, number: int = 1) -> set[int]:
    """The waiters' sessions, once there are so many."""
    async with asyncio.timeout(30):
        while True:
            with ledger.begin() as conn:
                found = set(conn.execute(text(SESSIONS)).scalars())
            if len(found) == number:
                return found
            await asyncio.sleep(0.05)


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


def test_a_connection_that_airflow_does_not_have_fails_all_who_wait_and_none_after(ledger, two):
    urls: list[Callable[[], str]] = [lambda: ledger.url]

    async def url() -> str:
        return urls[0]()

    def missing() -> str:
        raise SettingsError("there is no Airflow connection 'x'")

    async def waits() -> None:
        who = Waiting(url)
        urls[0] = missing
        tasks = [asyncio.ensure_future(who.wait(awaited(two[1]))) for _ in range(2)]
        for failed in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20):
            assert isinstance(failed, SettingsError)
        urls[0] = lambda: ledger.url
        task = asyncio.ensure_future(who.wait(awaited(two[1])))
        await looked_at(who)
        await asyncio.to_thread(commit, ledger, SPEC, two[0].claim)
        assert (await asyncio.wait_for(task, 20))["held"]

    asyncio.run(waits())


def test_what_is_not_answered_is_asked_over_another_connection(ledger, two, monkeypatch):
    """A lock that no reader should meet stands for a server that keeps its connection and says nothing."""
    monkeypatch.setattr(waiting, "ANSWER_SECONDS", 0.3)

    async def waits() -> dict:
        who = at(ledger)
        with psycopg.connect(ledger.url) as holder:
            holder.execute("lock table ratchet.heads in access exclusive mode")
            task = asyncio.ensure_future(who.wait(awaited(two[1])))
            before = await sessions(ledger)
            while await sessions(ledger) == before:
                await asyncio.sleep(0.05)
        await looked_at(who)
        await asyncio.to_thread(commit, ledger, SPEC, two[0].claim)
        return await asyncio.wait_for(task, 20)

    assert asyncio.run(waits())["why"] == "transaction 2 is COMMITTED"


@pytest.fixture
def role(ledger: Ledger):
    """A role that may wait for turns, with a password that the test changes."""
    name = f"waiter_{uuid4().hex[:8]}"
    with ledger.begin() as conn:
        conn.execute(text(f"create role {name} login password 'one'"))
        conn.execute(text(f"grant usage on schema ratchet to {name}"))
        conn.execute(text(f"grant select, update on all tables in schema ratchet to {name}"))
    yield name
    with ledger.begin() as conn:
        conn.execute(text(ENDS))
        conn.execute(text(f"drop owned by {name}"))
        conn.execute(text(f"drop role {name}"))


def test_a_wait_outlives_a_standby_that_is_not_promoted_yet(ledger, role, two):
    """Its every session only reads, until it is the primary."""

    async def waits() -> dict:
        async def url() -> str:
            return with_password(ledger, role, "one")

        who = Waiting(url)
        with ledger.begin() as conn:
            conn.execute(text(f"alter role {role} set default_transaction_read_only = on"))
        task = asyncio.ensure_future(who.wait(awaited(two[1])))
        with capture_logs() as said:
            async with asyncio.timeout(20):
                while not any("read-only" in line["event"] for line in said):
                    await asyncio.sleep(0.01)
        assert not task.done()
        with ledger.begin() as conn:
            conn.execute(text(f"alter role {role} reset default_transaction_read_only"))
        await looked_at(who)
        await asyncio.to_thread(commit, ledger, SPEC, two[0].claim)
        return await asyncio.wait_for(task, 20)

    assert asyncio.run(waits())["why"] == "transaction 2 is COMMITTED"


def with_password(ledger: Ledger, role: str, password: str) -> str:
    return make_url(ledger.url).set(username=role, password=password).render_as_string(hide_password=False)


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_wait_outlives_the_password_with_which_it_began(ledger, role, two, monkeypatch, is_lost):
    """The connection is lost, or is only used for long enough."""
    passwords = ["one"]

    async def url() -> str:
        return with_password(ledger, role, passwords[-1])

    if not is_lost:
        monkeypatch.setattr(waiting, "FRESH_SECONDS", 0.5)

    async def change() -> dict:
        who = Waiting(url)
        task = asyncio.ensure_future(who.wait(awaited(two[1])))
        before = await sessions(ledger)
        with ledger.begin() as conn:
            conn.execute(text(f"alter role {role} password 'two'"))
            passwords.append("two")
        if is_lost:
            with ledger.begin() as conn:
                conn.execute(text(ENDS))
        while await sessions(ledger) & before:
            await asyncio.sleep(0.1)
        assert not task.done()
        commit(ledger, SPEC, two[0].claim)
        return await asyncio.wait_for(task, 30)

    # The first of the two commits takes the second along.
    assert asyncio.run(change()) == {"why": "transaction 2 is COMMITTED", "held": True}


def test_a_wait_listens_where_the_ledgers_connection_says(ledger, ledger_url, log, role, monkeypatch):
    past = with_password(ledger, role, "one")
    connections(monkeypatch, ledger=(ledger_url, "past"), past=past)
    assert InLine(ledger_url, log).until(lambda: is_listening(past)) == (TAKEN_ALONG, [])


@pytest.mark.parametrize(
    ("direct", "why"),
    [
        ("missing", "connection 'ledger' names 'missing' as 'direct': there is no Airflow connection 'missing'"),
        ("closed", "Connection refused"),
        (["past"], "connection 'ledger': 'direct' in its extra is not the id of a connection"),
    ],
    ids=str,
)
def test_a_wait_that_can_listen_nowhere_looks_and_says_so_once(ledger, log, monkeypatch, direct, why):
    nobody = make_url(ledger.url).set(port=1).render_as_string(hide_password=False)
    connections(monkeypatch, ledger=(ledger.url, direct), closed=nobody)
    monkeypatch.setattr(waiting, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "FRESH_SECONDS", 0.2)
    connected = Counted(psycopg.AsyncConnection.connect)
    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connected)
    # For more than one connection.
    event, said = InLine(ledger.url, log).until(lambda: connected.times > 4)
    assert event == TAKEN_ALONG
    (line,) = said
    assert line.startswith("is told of no move, and looks every 0 s instead: ") and why in line
