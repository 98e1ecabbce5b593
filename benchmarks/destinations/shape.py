"""Small transactions through Spark Connect without a transform, as `latency` has them, and where their rows go."""

from __future__ import annotations

import os

from ratchet import Append, DeltaLake, Files, Iceberg, Json, KafkaTopic, Pipeline, Table, Topic
from ratchet.destinations.port import Destination

HOME = "RATCHET_BENCH_SENT"
"""Names the directory below which destinations that are directories are."""
DATABASE, CATALOG = "elsewhere", "lakehouse"


def small(name: str) -> Pipeline:
    """The pipeline of this name."""
    home, columns = os.environ.get(HOME, os.devnull), "id string, account string, amount bigint"
    to: dict[str, Destination] = {
        "table": Table("sent.rows", database=DATABASE),
        "topic": KafkaTopic("topic_sent"),
        "delta": DeltaLake(f"{home}/delta"),
        "files": Files(f"{home}/files"),
        "iceberg": Iceberg("sent.rows", catalog=CATALOG),
    }
    return Pipeline(
        name=name,
        source=Topic(name, value=Json("account string, amount bigint"), key="id string"),
        # Without one it is `alone`.
        sinks=[Append(f"{name}_rows", columns=columns, to=to.get(name, ()))],
        max_records=1_000,
        max_in_flight=4,
    )
