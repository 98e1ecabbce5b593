"""Through spark-submit, by another connection."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="cold",
    source=Topic("cold", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:cold",
    sinks=[Append("cold_rows", columns="k string, v bigint")],
    max_records=100,
    slice_records=100,
    max_in_flight=2,
    lease_seconds=20,
    spark="ratchet_spark_submit",
)
