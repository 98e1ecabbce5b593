"""The wait for a turn, as Airflow's triggerer runs it: it outlives connections and passwords."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psycopg
import pytest
from airflow.sdk import Connection
from airflow.triggers.base import TriggerEvent
from sqlalchemy import make_url, text

from ratchet.airflow import trigger
from ratchet.ledger.connection import Ledger
from ratchet.protocol.commit import commit

from .staging import SPEC, prepare, start
from .waiting import TAKEN_ALONG, Counted, Waiting, connections, is_listening

SESSIONS = "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = :role"


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
        conn.execute(text(SESSIONS), {"role": name})
        conn.execute(text(f"drop owned by {name}"))
        conn.execute(text(f"drop role {name}"))


def with_password(ledger: Ledger, role: str, password: str) -> str:
    url = make_url(ledger.url).set(username=role, password=password)
    return url.render_as_string(hide_password=False)


async def sessions(ledger: Ledger, role: str) -> set[int]:
    """The sessions of the role, once it has one."""
    for _ in range(300):
        with ledger.begin() as conn:
            found = conn.execute(
                text("select pid from pg_stat_activity where usename = :role and state = 'idle'"), {"role": role}
            )
            if pids := set(found.scalars()):
                return pids
        await asyncio.sleep(0.1)
    raise AssertionError(f"{role} does not come")


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_wait_outlives_the_password_with_which_it_began(ledger, log, role, monkeypatch, is_lost):
    """The connection is lost, or is only used for long enough."""
    first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, first)
    prepare(ledger, SPEC, second)
    passwords = ["one"]

    async def connection(conn_id: str) -> Connection:
        return Connection(conn_id=conn_id, uri=with_password(ledger, role, passwords[-1]))

    monkeypatch.setattr(Connection, "async_get", connection)
    if not is_lost:
        monkeypatch.setattr(trigger, "FRESH_SECONDS", 0.5)
        monkeypatch.setattr(trigger, "POLL_SECONDS", 0.1)
    claim = second.claim
    waits = trigger.TurnTrigger("any", SPEC.name, claim.txid, 0, claim.number, claim.epoch, SPEC.lease_seconds)

    async def change() -> TriggerEvent:
        waiting = asyncio.ensure_future(anext(aiter(waits.run())))
        before = await sessions(ledger, role)
        with ledger.begin() as conn:
            conn.execute(text(f"alter role {role} password 'two'"))
            passwords.append("two")
        if is_lost:
            with ledger.begin() as conn:
                conn.execute(text(SESSIONS), {"role": role})
        while await sessions(ledger, role) & before:
            await asyncio.sleep(0.1)
        assert not waiting.done()
        commit(ledger, SPEC, first.claim)
        return await asyncio.wait_for(waiting, 30)

    # The first of the two commits takes the second along.
    assert asyncio.run(change()).payload == {"why": "transaction 2 is COMMITTED", "held": True}


def test_a_wait_listens_where_the_ledgers_connection_says(ledger, ledger_url, log, role, monkeypatch):
    past = with_password(ledger, role, "one")
    connections(monkeypatch, ledger=(ledger_url, "past"), past=past)
    monkeypatch.setattr(trigger, "POLL_SECONDS", 600)
    assert Waiting(ledger_url, log).until(lambda: is_listening(past)) == (TAKEN_ALONG, [])


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
    monkeypatch.setattr(trigger, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(trigger, "FRESH_SECONDS", 0.2)
    connected = Counted(psycopg.AsyncConnection.connect)
    monkeypatch.setattr(psycopg.AsyncConnection, "connect", connected)
    # For more than one connection.
    event, said = Waiting(ledger.url, log).until(lambda: connected.times > 4)
    assert event == TAKEN_ALONG
    (line,) = said
    assert line.startswith("is told of no move, and looks every 0 s instead: ") and why in line
