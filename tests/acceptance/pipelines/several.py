"""Through Spark Connect, of every topic whose name matches."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="several",
    source=Topic(pattern="several-[a-z]{2}", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:several",
    sinks=[Append("several_rows", columns="k string, v bigint")],
    max_records=100,
    slice_records=25,
    max_in_flight=2,
    lease_seconds=5,
)
