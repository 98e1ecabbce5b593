"""The wait for a turn, as Airflow's triggerer runs it: it outlives connections and passwords."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from airflow.triggers.base import TriggerEvent
from sqlalchemy import make_url, text

from ratchet.airflow import trigger
from ratchet.ledger.connection import Ledger
from ratchet.protocol.commit import commit

from .staging import SPEC, prepare, start

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

    async def url(_connection: str) -> str:
        return with_password(ledger, role, passwords[-1])

    monkeypatch.setattr(trigger, "async_ledger_url", url)
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
