"""Warming Spark for a pipeline: the way of its slices, gone once over records that are there, and nothing staged."""

from __future__ import annotations

from datetime import UTC, datetime

from ratchet.ledger.work import SliceToken, SliceWork
from ratchet.source.kafka import Kafka
from ratchet.spark.engine import session_for
from ratchet.spark.servers import Servers
from ratchet.spark.slice import recompute
from ratchet.spec.pipeline import Pipeline

OFFSETS = 500
"""How many offsets of each partition are read: what takes time is the first, not their number."""


def warm(spec: Pipeline, spark: str, kafka: dict[str, str]) -> None:
    """Decode and transform some of the topic's first records on the server at `spark`, and leave the session to others.

    What a first slice would wait for is done then: Java's classes are loaded, the plans' code is generated, and the
    Python workers have imported what they need. A topic without records warms nothing. Raises what `recompute` raises.
    """
    with Kafka(kafka) as client:
        offsets = client.offsets(spec.source)
    ranges = tuple(
        offsets.range(partition, begin, min(offsets.stable[partition], begin + OFFSETS))
        for partition, begin in sorted(offsets.beginning.items())
        if offsets.stable[partition] > begin
    )
    if ranges:
        # No transaction has this token: nothing is staged, and it only names the work in errors.
        work = SliceWork(SliceToken(spec.name, 0, 0, 0, 0), ranges, {}, datetime.now(UTC), offsets.topics, 1, {})
        with session_for(spec, spark) as session:
            recompute(session, spec, [work], Servers(kafka))
