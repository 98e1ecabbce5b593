"""Statements in SQL, one of which makes several rows of a record."""

from ratchet import Append, Json, Pipeline, Sql, Topic

PIPELINE = Pipeline(
    name="selecting",
    source=Topic("dropping", value=Json("a int")),
    transform=Sql(
        selecting="select a * 2 as a from dropping where a > 3",
        parts="select explode(sequence(0, a % 3)) as part, a from records where a <> 3",
        dead_letters="select 'three' as error from records where a = 3",
    ),
    sinks=[Append("selecting", columns="a int"), Append("parts", columns="a int, part int")],
)
