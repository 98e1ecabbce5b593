"""Rows and exact sums of four partitions; what is no JSON is a dead letter."""

from ratchet import Accumulate, Append, Arrivals, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="orders",
    runs=Arrivals(),
    source=Topic("orders", value=Json("k string, v bigint, note string")),
    transform="tests.proof.campaign.shapes:orders",
    sinks=[
        Append("orders_rows", columns="k string, v bigint, note string"),
        Accumulate("orders_sums", key="k string", sum="v bigint", min="v bigint", max="v bigint", count="n"),
    ],
    max_records=40_000,
    slice_records=20_000,
    max_in_flight=2,
    lease_seconds=10,
    # A worker that stands still for ever would hold up its slice for ever.
    timeout_seconds=900,
)
