"""The pipeline whose servers are killed."""

from ratchet import Accumulate, Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="crash",
    source=Topic("crash", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:crash",
    sinks=[
        Append("crash_rows", columns="k string, v bigint"),
        Accumulate("crash_sums", key="k string", sum="v bigint", count="n"),
    ],
    max_records=100,
    slice_records=50,
    max_in_flight=3,
    lease_seconds=10,
)
