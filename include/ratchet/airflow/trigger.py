"""The wait for a turn, in Airflow's triggerer: it listens to the ledger and keeps the lease alive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
from airflow.triggers.base import BaseTrigger, TriggerEvent
from psycopg import sql

from ratchet.airflow.connections import async_ledger_url
from ratchet.ledger.connection import PATIENCE
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
        said = {name: self.arguments[name] for name in ("pipeline", "txid", "epoch")}
        log = get_logger().bind(**said)
        event: dict[str, Any] | None = None
        while event is None:
            try:
                # Asked for each time: a wait may outlive a password.
                event = await self._wait(await async_ledger_url(self.arguments["connection"]))
            except psycopg.OperationalError as error:
                # The lease outlives a short loss, and an expired lease alone loses nothing.
                log.warning(f"lost the ledger while waiting, tries again: {str(error).strip()}")
                await asyncio.sleep(1)
        yield TriggerEvent(event)

    async def _wait(self, url: str) -> dict[str, Any] | None:
        """Listen first, then look, so that no move falls between the two; None when the connection has been used for
        long enough.
        """
        lease_seconds = self.arguments["lease_seconds"]
        until = time.monotonic() + FRESH_SECONDS
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, **PATIENCE) as conn:
            await conn.execute(sql.SQL("listen {}").format(sql.Identifier(CHANNEL)))
            renew_at = 0.0
            while time.monotonic() < until:
                if time.monotonic() >= renew_at:
                    await conn.execute(RENEW, self.arguments)
                    renew_at = time.monotonic() + lease_seconds / 3
                row = await (await conn.execute(_LOOK, self.arguments)).fetchone()
                event = self._event(row)
                if event:
                    return event
                await self._until_told(conn, time.monotonic() + min(POLL_SECONDS, lease_seconds / 3))
        return None

    async def _until_told(self, conn: psycopg.AsyncConnection, deadline: float) -> None:
        """Return when this pipeline has moved, or at the deadline; other pipelines share the channel."""
        while (left := deadline - time.monotonic()) > 0:
            async for notice in conn.notifies(timeout=left, stop_after=1):
                if notice.payload == self.arguments["pipeline"]:
                    return

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
