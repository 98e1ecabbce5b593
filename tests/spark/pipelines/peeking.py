"""A transform that looks at the last record before it says what becomes of them all."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="peeking",
    source=Topic("dropping", value=Json("a int")),
    transform="tests.spark.test_submit:peek",
    sinks=[Append("peeking", columns="a int")],
)
