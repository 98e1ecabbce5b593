"""The same through spark-submit."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="submit",
    source=Topic("submit", value=Json("account string, amount bigint"), key="id string"),
    transform="benchmarks.transforms:submit",
    sinks=[Append("submit_rows", columns="id string, account string, amount bigint")],
    max_records=1_000,
    max_in_flight=4,
    spark="ratchet_spark_submit",
)
