"""Statements in SQL over the good records of a slice: Spark's expressions, with each row's place beside them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ratchet.errors import TransformError
from ratchet.sinks.lookup import sink_of
from ratchet.spark.failure import is_of_the_engine, said
from ratchet.spark.numbering import Numbering
from ratchet.spec.functions import SUMS_BELONG_TO_SINKS
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.spec.sql import Sql
from ratchet.spec.statement import Statement, statement_of
from ratchet.transforms.result import missing_column

_PLACE = "__place"
"""Where a row comes from: it goes along with what a statement selects, which may be columns of the same names."""
_WHERE = re.compile(r"== SQL \(line (\d+), position (\d+)\) ==|\(line (\d+), pos (\d+)\)|; line (\d+) pos (\d+)")
_TAIL = re.compile(r" SQLSTATE: \w+|\n== SQL|; line \d+ pos \d+")
_AGGREGATES = ("MISSING_GROUP_BY", "MISSING_AGGREGATION", "UNSUPPORTED_GROUPING_EXPRESSION")


def results(spec: Pipeline, given: DataFrame) -> dict[str, DataFrame]:
    """What the statements make of good records, by sink, with the hidden columns that say where rows come from.

    Spark has looked at each of them, and read nothing yet. Raises TransformError that names statement and place.
    """
    assert isinstance(spec.transform, Sql)
    return {name: _result(spec, name, statement_of(text), given) for name, text in spec.transform.statements.items()}


@contextmanager
def told(spec: Pipeline, name: str) -> Iterator[None]:
    """Turn what Spark says of a statement, before or while it runs, into the error that names statement and place."""
    try:
        yield
    except PySparkException as error:
        where = _WHERE.search(str(error))
        is_of_statement = isinstance(error, AnalysisException) or where is not None
        is_others = isinstance(error, PythonException) or is_of_the_engine(error)
        if not isinstance(spec.transform, Sql) or is_others or not is_of_statement:
            raise
        why, *_ = _TAIL.split(said(error, spec.private), maxsplit=1)
        why = why.strip().rstrip(".")
        is_aggregate = (error.getCondition() or "").startswith(_AGGREGATES)
        instead = SUMS_BELONG_TO_SINKS if is_aggregate else "correct the statement"
        wrong = TransformError(f"{spec.name}: statement {name!r}{_place(where)}: {why}; {instead}")
        raise wrong from (None if spec.private else error)


def _result(spec: Pipeline, name: str, statement: Statement, given: DataFrame) -> DataFrame:
    places = [c for c in ("_partition", "_offset", "_n", "_deleted", "_record") if c in given.columns]
    with told(spec, name):
        frame = given.alias(statement.alias)
        for generator in statement.generators:
            frame = frame.select("*", F.expr(generator))
        if statement.condition is not None:
            frame = frame.where(F.expr(statement.condition))
        frame = frame.select(*map(F.expr, statement.items), F.struct(*places).alias(_PLACE))
        names = frame.schema.names
    found = {each.lower(): each for each in names}
    counts = Counter(each.lower() for each in names)
    declared = sink_of(spec, name).needed if name != DEAD_LETTERS else ()
    wanted = [column.name for column in declared] or ["error"]
    for each in (*wanted, *sorted(statement.made)):
        if counts[each.lower()] > 1:
            raise TransformError(
                f"{spec.name}: statement {name!r} returns column {each!r} {counts[each.lower()]} times; leave one out, "
                f"as `* except ({each})` does"
            )
    for column in declared:
        if column.name.lower() not in found:
            raise missing_column(spec, name, column, names)
    picked = [F.col(found[each.lower()]).alias(each) for each in wanted if each.lower() in found]
    own = [F.col(each) for each in sorted(statement.made)]
    place = [F.col(_PLACE)[each].alias(each) for each in places if each not in statement.made]
    rows = frame.select(*picked, *own, *place)
    if statement.makes_rows and "_n" not in statement.made:
        return rows.mapInArrow(Numbering(spec.private), rows.schema)
    return rows


def _place(where: re.Match[str] | None) -> str:
    """The place that Spark names, from line 1 and character 1."""
    if where is None:
        return ""
    line, position = (int(number) for number in where.groups() if number)
    # A position counts from 1, and what Spark calls pos from 0.
    return f", line {line}, character {position + (where[1] is None)}"
