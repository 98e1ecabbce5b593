"""Through spark-submit to a standalone cluster."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="standalone",
    source=Topic("standalone", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:standalone",
    sinks=[Append("standalone_rows", columns="k string, v bigint")],
    max_records=100,
    slice_records=100,
    max_in_flight=2,
    lease_seconds=20,
    spark="ratchet_spark_standalone",
)
