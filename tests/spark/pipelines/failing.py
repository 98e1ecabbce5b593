"""A transform that raises in a Python function of a column."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="failing",
    source=Topic("dropping", value=Json("a int")),
    transform="tests.spark.test_submit:raise_in_a_column",
    sinks=[Append("failing", columns="a int")],
)
