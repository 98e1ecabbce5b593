"""Small transactions through Spark Connect: the time from trigger to committed."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="latency",
    source=Topic("latency", value=Json("account string, amount bigint"), key="id string"),
    transform="benchmarks.transforms:latency",
    sinks=[Append("latency_rows", columns="id string, account string, amount bigint")],
    max_records=1_000,
    max_in_flight=4,
)
