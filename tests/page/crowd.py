"""The pipeline of a crowd of lines, by a Kafka that answers."""

from ratchet import Accumulate, Append, Upsert
from tests.ledger.staging import SPEC

SINKS = [
    Append("crowd_rows", columns="a bigint"),
    Accumulate("crowd_totals", key="k string", sum="a bigint", count="n"),
    Upsert("crowd_latest", key="k string", columns="a bigint"),
]
CROWD = SPEC.model_copy(update={"name": "crowd", "kafka": "crowd_kafka", "sinks": SINKS})
