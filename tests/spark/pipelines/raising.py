"""A transform that raises over Arrow tables."""

from ratchet import Append, Json, Pipeline, Topic

PIPELINE = Pipeline(
    name="raising",
    source=Topic("dropping", value=Json("a int")),
    transform="tests.spark.test_submit:raise_over_tables",
    sinks=[Append("raising", columns="a int")],
)
