"""Through Spark Connect."""

from ratchet import Accumulate, Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="warm",
    source=Topic("warm", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:warm",
    sinks=[Append("warm_rows", columns="k string, v bigint"), Accumulate("warm_sums", key="k string", sum="v bigint")],
    max_records=100,
    slice_records=50,
    max_in_flight=4,
    lease_seconds=5,
)
