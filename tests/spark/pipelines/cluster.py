"""One slice of many records, submitted to a cluster."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="cluster",
    source=Topic("cluster", value=Json("v bigint")),
    transform="tests.spark.cluster:transform",
    sinks=[Append("cluster_rows", columns="v bigint")],
    max_records=500_000,
    slice_records=500_000,
)
