"""A run takes the records of its month, by their timestamps."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="monthly",
    source=Topic("monthly", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:monthly",
    sinks=[Append("monthly_rows", columns="k string, v bigint")],
    schedule="0 0 1 * *",
    plan="interval",
    max_records=1000,
    slice_records=1000,
    lease_seconds=5,
)
