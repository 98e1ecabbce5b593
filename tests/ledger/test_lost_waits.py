"""The wait for a turn outlives what carries it: connections, passwords, addresses, and servers that are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url, text
from structlog.testing import capture_logs

from ratchet.airflow import waiting
from ratchet.airflow.waiting import Waiting
from ratchet.errors import SettingsError
from ratchet.ledger.connection import Ledger
from ratchet.protocol.commit import commit

from .staging import SPEC
from .waiting import (
    ENDS,
    TAKEN_ALONG,
    Counted,
    InLine,
    at,
    awaited,
    connections,
    is_listening,
    looked_at,
    sessions,
)

pytestmark = pytest.mark.usefixtures("in_no_hurry")


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
