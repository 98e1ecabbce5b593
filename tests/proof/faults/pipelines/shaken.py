"""Rows, sums and last rows of three partitions, with records that are given up."""

from ratchet import Accumulate, Append, Arrivals, Json, Pipeline, Topic, Upsert

PIPELINE = Pipeline(
    name="shaken",
    runs=Arrivals(),
    source=Topic("shaken", value=Json("k string, v bigint")),
    transform="tests.proof.faults.shapes:shaken",
    sinks=[
        Append("shaken_rows", columns="k string, v bigint"),
        Accumulate("shaken_sums", key="k string", sum="v bigint", count="n"),
        Upsert("shaken_last", key="k string", columns="v bigint", order="v"),
    ],
    max_records=120,
    slice_records=60,
    max_in_flight=4,
    lease_seconds=5,
    # A worker that stands still for ever would hold up its slice for ever.
    timeout_seconds=900,
)
