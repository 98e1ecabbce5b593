"""A run that waits for its turn, by what Airflow knows of connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import psycopg
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from sqlalchemy import make_url, text
from structlog.testing import capture_logs

from ratchet.airflow.trigger import TurnTrigger
from ratchet.airflow.waiting import Awaited, Waiting
from ratchet.ledger.connection import Ledger
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import Pipeline

from .staging import SPEC, Log, prepare, start


def connections(monkeypatch, **urls: str | tuple[str, object]) -> None:
    """Have Airflow know these connections, {id: URL, or (URL, what its extra names as direct)}, and no other."""

    async def get(conn_id: str) -> Connection:
        if conn_id not in urls:
            raise AirflowNotFoundException(conn_id)
        url, direct = found if isinstance(found := urls[conn_id], tuple) else (found, None)
        to = make_url(url)
        extra = json.dumps({"direct": direct}) if direct else None
        return Connection(
            conn_id=conn_id, conn_type="postgres", host=to.host, port=to.port, login=to.username, password=to.password,
            schema=to.database, extra=extra,
        )  # fmt: skip

    monkeypatch.setattr(Connection, "async_get", get)


class InLine:
    """The second of two prepared transactions, whose run waits for its turn, and the first, which commits."""

    def __init__(self, url: str, log: Log):
        self.url = url
        with Ledger(url) as ledger:
            self.first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
            prepare(ledger, SPEC, self.first)
            prepare(ledger, SPEC, second)
        claim = second.claim
        # With a lease that is never renewed within the test.
        self._trigger = TurnTrigger("ledger", SPEC.name, claim.txid, 0, claim.number, claim.epoch, 3600)

    def until(self, ready: Callable[[], bool], seconds: float = 60) -> tuple[dict, list[str]]:
        """Wait, commit the first when `ready`; what the wait ends with within so many seconds, and all it has said."""

        async def wait() -> dict:
            waiting = asyncio.ensure_future(anext(aiter(self._trigger.run())))
            while not await asyncio.to_thread(ready):
                assert not waiting.done(), waiting
                await asyncio.sleep(0.05)
            await asyncio.to_thread(self._commit)
            return (await asyncio.wait_for(waiting, seconds)).payload

        with capture_logs() as said:
            return asyncio.run(wait()), [line["event"] for line in said if line["log_level"] == "warning"]

    def _commit(self) -> None:
        with Ledger(self.url) as ledger:
            commit(ledger, SPEC, self.first.claim)


TAKEN_ALONG = {"why": "transaction 2 is COMMITTED", "held": True}
"""How it ends: the first commit takes the second along."""


def is_listening(url: str) -> bool:
    """Whether a session of this role in this database does, to the pipeline's channel."""
    listens = (
        "select from pg_stat_activity where datname = current_database() and usename = current_user "
        "and query like 'listen %' and query not like '%;%'"
    )
    with psycopg.connect(url) as conn:
        return conn.execute(listens).fetchone() is not None


class Counted:
    """A function, and how often it was called."""

    def __init__(self, call: Callable):
        self._call, self.times = call, 0

    def __call__(self, *args: object, **how: object) -> object:
        self.times += 1
        return self._call(*args, **how)


SESSIONS = "select pid from pg_stat_activity where datname = current_database() and application_name = 'ratchet wait'"
ENDS = SESSIONS.replace("select pid", "select pg_terminate_backend(pid)")


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
