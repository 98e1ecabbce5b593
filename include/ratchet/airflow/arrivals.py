"""Runs that records start: the asset that stands for a pipeline's arrivals, and the trigger that watches for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from ratchet.airflow import watching
from ratchet.airflow.outlets import GROUP
from ratchet.protocol.arrivals import Arriving
from ratchet.spec.parts import Arrivals
from ratchet.spec.pipeline import Pipeline
from ratchet.spec.subscription import Subscription


class ArrivalsTrigger(BaseEventTrigger):
    """Fires each time that the pipeline's records are a reason for a run, as its spec's `runs` says.

    The event is `{"why": a line}`. The arguments hold no secret: Kafka and the ledger are named by their Airflow
    connections. They hold what is needed of the spec, since a triggerer lives longer than a spec.
    """

    def __init__(
        self,
        kafka: str,
        ledger: str,
        pipeline: str,
        topics: Sequence[str],
        max_in_flight: int,
        min_records: int,
        max_wait: float,
        begins_late: bool = False,
        pattern: str | None = None,
    ):
        super().__init__()
        self.kafka, self.ledger = kafka, ledger
        source = Subscription(tuple(topics), pattern)
        self.arriving = Arriving(pipeline, source, max_in_flight, min_records, max_wait, begins_late)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "kafka": self.kafka,
            "ledger": self.ledger,
            "pipeline": self.arriving.pipeline,
            "topics": [*self.arriving.source.names],
            "max_in_flight": self.arriving.max_in_flight,
            "min_records": self.arriving.min_records,
            "max_wait": self.arriving.max_wait,
            "begins_late": self.arriving.begins_late,
            "pattern": self.arriving.source.pattern,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async for why in watching.watch(self.kafka, self.ledger, self.arriving):
            yield TriggerEvent({"why": why})


def arrivals_of(spec: Pipeline, runs: Arrivals) -> Asset:
    """The asset that is updated when records are a reason for a run of the pipeline."""
    trigger = ArrivalsTrigger(
        kafka=spec.kafka,
        ledger=spec.ledger,
        pipeline=spec.name,
        topics=spec.source.names,
        max_in_flight=spec.max_in_flight,
        min_records=runs.min_records,
        max_wait=runs.max_wait.total_seconds(),
        begins_late=spec.source.begin == "latest",
        pattern=spec.source.pattern,
    )
    watcher = AssetWatcher(name=f"ratchet-{spec.name}", trigger=trigger)
    return Asset(f"x-ratchet://{spec.name}/arrivals", group=GROUP, watchers=[watcher])
