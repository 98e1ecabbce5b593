"""A transform that drops every record, so that Spark has no reason to read."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="dropping",
    source=Topic("dropping", value=Json("a int")),
    transform="tests.spark.test_submit:nothing",
    sinks=[Append("dropping", columns="a int")],
)
