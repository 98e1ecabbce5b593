"""Waiting commits: all of a triggerer's share one connection, which listens to the ledger and keeps leases alive."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
from airflow.sdk.exceptions import AirflowRuntimeError
from psycopg import sql

from ratchet.airflow.connections import DIRECT, async_direct_url, async_ledger_url
from ratchet.errors import SettingsError
from ratchet.ledger.channel import channel_of
from ratchet.ledger.connection import BACKEND, BY_A_POOLER, PATIENCE, is_direct
from ratchet.ledger.states import State
from ratchet.logs import get_logger
from ratchet.protocol.leases import RENEW

POLL_SECONDS = 5.0
"""How often to look without being told: a notification can be lost with its connection."""
FRESH_SECONDS = 600.0
"""How long one connection is used: whatever is wrong with it, without an error, is over then."""
ANSWER_SECONDS = 60.0
"""What is not answered in this time is asked again, by another connection."""
FIRST_SECONDS, MOST_SECONDS = 1.0, 15.0
"""After a loss the ledger is tried again in so many seconds at most, twice as many after each."""

_SETTINGS: dict[str, Any] = {"autocommit": True, "application_name": "ratchet wait", **BY_A_POOLER, **PATIENCE}
_PASSES = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction, TimeoutError, AirflowRuntimeError)
"""What may be gone the next time: PostgreSQL does not answer, or is a standby that is not promoted yet; or Airflow's
server, which knows the connection, does not answer."""

_LOOK = """
    select w.number, t.state, t.claim = w.claim and not t.claim_ended, turns.has_come
    from unnest(%(pipeline)s::text[], %(txid)s::bigint[], %(revision)s::int[], %(claim)s::int[])
        with ordinality as w (pipeline, txid, revision, claim, number)
    left join ratchet.transactions t
        on t.pipeline = w.pipeline and t.txid = w.txid and t.revision = w.revision
    left join lateral (
        select h.txid = w.txid - 1 and w.txid <= coalesce(p.paused_behind, w.txid) as has_come
        from ratchet.heads h join ratchet.pipelines p using (pipeline) where h.pipeline = w.pipeline
    ) turns on true
    where t.state is distinct from 'PREPARED' or t.claim <> w.claim or t.claim_ended or turns.has_come
"""
"""Of those asked for, who has to wait no more."""


@dataclass(frozen=True)
class Awaited:
    """A prepared transaction whose turn has not come, and the claim by which its run may commit it."""

    pipeline: str
    txid: int
    revision: int
    claim: int
    lease_seconds: int

    def event(self, row: tuple[str | None, bool, bool]) -> dict[str, Any] | None:
        """What to say by (its state, which is None where it is gone, whether the claim is held and its turn has come).

        `{"why": a line, "held": whether the claim is still this run's}`; None while it has to wait.
        """
        state, held, has_turn = row
        if state is None:
            return {"why": f"transaction {self.txid} is not in the ledger any more", "held": False}
        if state != State.PREPARED:
            return {"why": f"transaction {self.txid} is {state}", "held": held}
        if not held:
            return {"why": f"transaction {self.txid} was taken over from this run", "held": False}
        if has_turn:
            return {"why": f"transaction {self.txid} has its turn", "held": True}
        return None


@dataclass(eq=False)
class _Waiter:
    awaited: Awaited
    told: asyncio.Future[dict[str, Any]]
    is_new: bool = True


async def _nowhere() -> None:
    """The address past a pooler, where there is none."""


class Waiting:
    """The commits that wait in one event loop for turns in one ledger, whose URL `url` gives.

    `direct` gives where to listen, if that is not there, and raises SettingsError if that is not to be had. The ledger
    itself is looked at by way of `url` alone. Both are asked for each connection anew: a wait may outlive a password.
    """

    def __init__(
        self,
        url: Callable[[], Awaitable[str]],
        direct: Callable[[], Awaitable[str | None]] = _nowhere,
        is_over: Callable[[], object] = lambda: None,
    ):
        self._url, self._direct, self._is_over = url, direct, is_over
        self._has_said_why = False
        self._waiters: set[_Waiter] = set()
        self._moved: set[str] = set()
        self._wake = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def wait(self, awaited: Awaited) -> dict[str, Any]:
        """The event, when the transaction has its turn, is no longer PREPARED, or its claim is no longer this run's."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(awaited, loop.create_future())
        self._waiters.add(waiter)
        self._wake.set()
        if self._serving is None or self._serving.done():
            # In a context of its own: what it says is no part of the log of the commit that happens to be the first.
            self._serving = loop.create_task(self._serve(), context=Context())
        try:
            return await waiter.told
        finally:
            self._waiters.discard(waiter)
            self._wake.set()

    async def _serve(self) -> None:
        pause = FIRST_SECONDS
        try:
            while self._waiters:
                began = time.monotonic()
                try:
                    await self.attend()
                except _PASSES as error:
                    # The leases outlive a short loss, and an expired lease alone loses nothing.
                    said = " ".join(str(error).split()) or type(error).__name__
                    get_logger().warning(
                        f"lost the ledger while {len(self._waiters)} commits wait, tries again: {said}"
                    )
                    if time.monotonic() - began > MOST_SECONDS:
                        pause = FIRST_SECONDS
                    await asyncio.sleep(pause * random.uniform(0.5, 1))
                    pause = min(2 * pause, MOST_SECONDS)
        except Exception as error:
            for waiter in self._waiters:
                if not waiter.told.done():
                    waiter.told.set_exception(error)
        finally:
            self._is_over()

    async def attend(self) -> None:
        """Tell waiters, over one connection, while there are any and it has not been used for long enough.

        Listen first, then look, so that no move falls between the two.
        """
        async with AsyncExitStack() as open_:
            async with asyncio.timeout(ANSWER_SECONDS):
                conn = await open_.enter_async_context(await _connect(await self._url()))
                told = await self._listener(conn, open_)
            await self._attend(conn, told)

    async def _attend(self, conn: psycopg.AsyncConnection, told: psycopg.AsyncConnection | None) -> None:
        until = time.monotonic() + FRESH_SECONDS
        look_at = 0.0
        renew_at: dict[int, float] = {}
        heard: set[str] = set()
        if told:
            told.add_notify_handler(lambda notice: self._moved.add(notice.channel))
        while self._waiters and time.monotonic() < until:
            # Whoever comes from here on is new in the next round: its channel is heard before it is looked at.
            self._wake.clear()
            waiters = list(self._waiters)
            async with asyncio.timeout(ANSWER_SECONDS):
                heard = await self._listen(told, heard, waiters) if told else heard
                now = time.monotonic()
                renew_at = await self._renew(conn, renew_at, now, waiters)
                moved, self._moved = self._moved, set()
                is_poll = now >= look_at
                to_look = [w for w in waiters if is_poll or w.is_new or channel_of(w.awaited.pipeline) in moved]
                await self._look(conn, to_look)
            for waiter in waiters:
                waiter.is_new = False
            look_at = now + POLL_SECONDS if is_poll else look_at
            await self._until_told(told, min(look_at, until, *renew_at.values()))

    async def _listener(self, conn: psycopg.AsyncConnection, open_: AsyncExitStack) -> psycopg.AsyncConnection | None:
        """The connection that is told of moves: one past the pooler, where that is named, else `conn`.

        None where neither can be: that is said, and looking at the ledger has to do.
        """
        direct = None
        try:
            direct = await self._direct()
            told = await open_.enter_async_context(await _connect(direct)) if direct else conn
            if await _is_told(told):
                return told
        except (SettingsError, psycopg.Error) as error:
            if direct is None and isinstance(error, psycopg.OperationalError):
                # It is the ledger's own connection that is lost.
                raise
            self._polls(str(error))
        else:
            self._polls(
                f"a pooler stands before PostgreSQL; in the extra of the ledger's connection, name one past it as "
                f"{DIRECT!r}"
            )
        return None

    def _polls(self, why: str) -> None:
        """Say, once, that nothing is told."""
        if not self._has_said_why:
            self._has_said_why = True
            get_logger().warning(
                f"is told of no move, and looks every {POLL_SECONDS:.0f} s instead: {' '.join(why.split())}"
            )

    async def _listen(self, conn: psycopg.AsyncConnection, heard: set[str], waiters: list[_Waiter]) -> set[str]:
        """Listen to the channels of those who wait, and to no other; those that are heard now."""
        wanted = {channel_of(waiter.awaited.pipeline) for waiter in waiters}
        said = [sql.SQL("listen {}").format(sql.Identifier(channel)) for channel in wanted - heard]
        said += [sql.SQL("unlisten {}").format(sql.Identifier(channel)) for channel in heard - wanted]
        if said:
            await conn.execute(sql.SQL("; ").join(said))
        return wanted

    async def _renew(
        self, conn: psycopg.AsyncConnection, renew_at: dict[int, float], now: float, waiters: list[_Waiter]
    ) -> dict[int, float]:
        """Renew all leases of one length together, every third of it, and a new waiter's at once; when they are due."""
        lengths = {w.awaited.lease_seconds for w in waiters}
        due = {seconds for seconds in lengths if now >= renew_at.get(seconds, 0)}
        mine = [w for w in waiters if w.is_new or w.awaited.lease_seconds in due]
        if mine:
            await conn.execute(RENEW, {**_columns(mine), "lease_seconds": [w.awaited.lease_seconds for w in mine]})
        return {seconds: now + seconds / 3 if seconds in due else renew_at[seconds] for seconds in lengths}

    async def _look(self, conn: psycopg.AsyncConnection, waiters: list[_Waiter]) -> None:
        if not waiters:
            return
        found = await conn.execute(_LOOK, _columns(waiters))
        async for number, state, held, has_turn in found:
            waiter = waiters[number - 1]
            event = waiter.awaited.event((state, held, has_turn))
            if event and not waiter.told.done():
                waiter.told.set_result(event)
                self._waiters.discard(waiter)

    async def _until_told(self, told: psycopg.AsyncConnection | None, deadline: float) -> None:
        """Return when a pipeline has moved, or somebody has come or gone, or at the deadline."""
        if told is None:
            await self._woken(deadline)
            return
        loop = asyncio.get_running_loop()
        if not self._moved:
            loop.add_reader(told.fileno(), self._wake.set)
            try:
                await self._woken(deadline)
            finally:
                loop.remove_reader(told.fileno())
        told.pgconn.consume_input()
        while notice := told.pgconn.notifies():
            self._moved.add(notice.relname.decode())

    async def _woken(self, deadline: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._wake.wait()


async def _is_told(conn: psycopg.AsyncConnection) -> bool:
    """Whether who listens here is told: not behind a pooler, where whoever has the session next would be.

    Raises psycopg.Error where nobody may listen, as on a standby.
    """
    found = await (await conn.execute(BACKEND)).fetchone()
    assert found, "it is one row"
    if not is_direct(conn.info, found[0]):
        return False
    await conn.execute("listen ratchet; unlisten ratchet")
    return True


async def _connect(url: str) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(url, **_SETTINGS)


def _columns(waiters: Iterable[_Waiter]) -> dict[str, list[Any]]:
    return {
        name: [getattr(waiter.awaited, name) for waiter in waiters]
        for name in ("pipeline", "txid", "revision", "claim")
    }


_OF: dict[tuple[asyncio.AbstractEventLoop, str], Waiting] = {}
"""By event loop and name of the ledger's Airflow connection, while somebody waits."""


async def wait(connection: str, awaited: Awaited) -> dict[str, Any]:
    """Wait for the turn together with whoever else waits in this event loop for turns in the same ledger."""
    key = asyncio.get_running_loop(), connection
    if key not in _OF:
        urls = partial(async_ledger_url, connection), partial(async_direct_url, connection)
        _OF[key] = Waiting(*urls, is_over=lambda: _OF.pop(key, None))
    return await _OF[key].wait(awaited)
