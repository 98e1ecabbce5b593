"""Runs are started by people: records alone start none."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="asked",
    source=Topic("asked", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:asked",
    sinks=[Append("asked_rows", columns="k string, v bigint")],
    max_records=100,
    slice_records=100,
    max_in_flight=4,
    lease_seconds=5,
)
