"""The wait for a turn, in Airflow's triggerer: it listens to the ledger and keeps the lease alive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import psycopg
from airflow.triggers.base import BaseTrigger, TriggerEvent
from psycopg import sql

from ratchet.airflow.connections import DIRECT, async_direct_url, async_ledger_url
from ratchet.errors import SettingsError
from ratchet.ledger.connection import BACKEND, BY_A_POOLER, PATIENCE, is_direct
from ratchet.ledger.schema import CHANNEL
from ratchet.ledger.states import State
from ratchet.ledger.work import turn_of
from ratchet.logs import get_logger
from ratchet.protocol.leases import RENEW

POLL_SECONDS = 5.0
"""How often to look without being told: a notification can be lost with its connection."""
FRESH_SECONDS = 600.0
"""How long one connection is used: whatever is wrong with it, without an error, is over then."""

_LOOK = """
    select t.state, t.claim = %(claim)s and not t.claim_ended as held, h.txid as head
    from ratchet.transactions t join ratchet.heads h using (pipeline)
    where t.pipeline = %(pipeline)s and t.txid = %(txid)s and t.revision = %(revision)s
"""


class TurnTrigger(BaseTrigger):
    """Fires when the transaction has its turn, is no longer PREPARED, or its claim is no longer this run's.

    The event is `{"why": a line, "held": whether the claim is still this run's}`. The arguments hold no secret:
    the ledger is named by its Airflow connection.
    """

    def __init__(
        self, connection: str, pipeline: str, txid: int, revision: int, claim: int, epoch: int, lease_seconds: int
    ):
        super().__init__()
        self._has_said_why = False
        self.arguments = {
            "connection": connection,
            "pipeline": pipeline,
            "txid": txid,
            "revision": revision,
            "claim": claim,
            "epoch": epoch,
            "lease_seconds": lease_seconds,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", dict(self.arguments)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        event: dict[str, Any] | None = None
        while event is None:
            try:
                # Asked for each time: a wait may outlive a password.
                url = await async_ledger_url(self.arguments["connection"])
                event = await self._wait(url, await self._direct_url())
            except psycopg.OperationalError as error:
                # The lease outlives a short loss, and an expired lease alone loses nothing.
                self._warn(f"lost the ledger while waiting, tries again: {str(error).strip()}")
                await asyncio.sleep(1)
        yield TriggerEvent(event)

    async def _direct_url(self) -> str | None:
        try:
            return await async_direct_url(self.arguments["connection"])
        except SettingsError as error:
            self._polls(str(error))
            return None

    async def _wait(self, url: str, direct: str | None = None) -> dict[str, Any] | None:
        """Listen first, then look, so that no move falls between the two; None when the connection has been used for
        long enough.

        `direct` is where to listen, if that is not `url`. The ledger itself is looked at by way of `url` alone.
        """
        lease_seconds = self.arguments["lease_seconds"]
        until = time.monotonic() + FRESH_SECONDS
        async with AsyncExitStack() as open_:
            conn = await open_.enter_async_context(await _connect(url))
            told = await self._listener(conn, direct, open_)
            renew_at = 0.0
            while time.monotonic() < until:
                if time.monotonic() >= renew_at:
                    await conn.execute(RENEW, self.arguments)
                    renew_at = time.monotonic() + lease_seconds / 3
                row = await (await conn.execute(_LOOK, self.arguments)).fetchone()
                event = self._event(row)
                if event:
                    return event
                await self._until_told(told, time.monotonic() + min(POLL_SECONDS, lease_seconds / 3))
        return None

    async def _listener(
        self, conn: psycopg.AsyncConnection, direct: str | None, open_: AsyncExitStack
    ) -> psycopg.AsyncConnection:
        """The connection that is told of moves: one past the pooler, where that is named, else `conn`.

        Where neither is, that is said, and looking at the ledger has to do.
        """
        try:
            told = await open_.enter_async_context(await _connect(direct)) if direct else conn
            if await _listens(told):
                return told
        except psycopg.Error as error:
            self._polls(str(error))
            return conn
        connection = self.arguments["connection"]
        self._polls(
            f"a pooler stands before PostgreSQL; in the extra of connection {connection!r}, name one past it as "
            f"{DIRECT!r}"
        )
        return conn

    def _polls(self, why: str) -> None:
        """Say, once, that nothing is told."""
        if not self._has_said_why:
            self._has_said_why = True
            self._warn(f"is told of no move, and looks every {POLL_SECONDS:.0f} s instead: {' '.join(why.split())}")

    async def _until_told(self, conn: psycopg.AsyncConnection, deadline: float) -> None:
        """Return when this pipeline has moved, or at the deadline; other pipelines share the channel."""
        while (left := deadline - time.monotonic()) > 0:
            async for notice in conn.notifies(timeout=left, stop_after=1):
                if notice.payload == self.arguments["pipeline"]:
                    return

    def _warn(self, line: str) -> None:
        get_logger().warning(line, **{name: self.arguments[name] for name in ("pipeline", "txid", "epoch")})

    def _event(self, row: tuple[str, bool, int] | None) -> dict[str, Any] | None:
        txid = self.arguments["txid"]
        if row is None:
            return {"why": f"transaction {txid} is not in the ledger any more", "held": False}
        state, held, head = row
        if state != State.PREPARED:
            return {"why": f"transaction {txid} is {state}", "held": held}
        if not held:
            return {"why": f"transaction {txid} was taken over from this run", "held": False}
        if turn_of(head) == txid:
            return {"why": f"transaction {txid} has its turn", "held": True}
        return None


async def _listens(conn: psycopg.AsyncConnection) -> bool:
    """Have a connection told of moves, unless a pooler stands between, where whoever has the session next would be."""
    found = await (await conn.execute(BACKEND)).fetchone()
    assert found, "it is one row"
    if not is_direct(conn.info, found[0]):
        return False
    await conn.execute(sql.SQL("listen {}").format(sql.Identifier(CHANNEL)))
    return True


async def _connect(url: str) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(url, autocommit=True, **BY_A_POOLER, **PATIENCE)
