"""The same with a transform over DataFrames."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="latency_frames",
    source=Topic("latency_frames", value=Json("account string, amount bigint"), key="id string"),
    transform="benchmarks.transforms:latency",
    sinks=[Append("latency_frames_rows", columns="id string, account string, amount bigint")],
    max_records=1_000,
    max_in_flight=4,
)
