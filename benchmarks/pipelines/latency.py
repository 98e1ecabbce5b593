"""Small transactions through Spark Connect without a transform: the time from trigger to committed."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="latency",
    source=Topic("latency", value=Json("account string, amount bigint"), key="id string"),
    sinks=[Append("latency_rows", columns="id string, account string, amount bigint")],
    max_records=1_000,
    max_in_flight=4,
)
