"""Through Spark Connect, with connections whose passwords are planted canaries."""

from ratchet import Append, Json, MaxDeadLetters, Pipeline, Topic

PIPELINE = Pipeline(
    name="secret",
    source=Topic("secret", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:secret",
    sinks=[Append("secret_rows", columns="k string, v bigint")],
    gates=[MaxDeadLetters(0.5)],
    max_records=50,
    slice_records=50,
    lease_seconds=20,
    ledger="canary_ledger",
    kafka="canary_kafka",
)
