"""The wait for a turn, in Airflow's triggerer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from ratchet.airflow import waiting
from ratchet.airflow.waiting import Awaited


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
        names = ("pipeline", "txid", "revision", "claim", "lease_seconds")
        awaited = Awaited(**{name: self.arguments[name] for name in names})
        yield TriggerEvent(await waiting.wait(self.arguments["connection"], awaited))
