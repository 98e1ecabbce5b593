"""Its Spark connection does not exist."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="lost",
    source=Topic("warm", value=Json("k string, v bigint")),
    transform="tests.acceptance.transforms:warm",
    sinks=[Append("lost_rows", columns="k string, v bigint")],
    spark="nowhere",
)
