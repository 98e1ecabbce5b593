"""An error of a transform names the line of a person's own code, wherever that has run."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from ratchet import Append
from ratchet.errors import TransformError
from tests.spark.rig import SINK, numbered, spec_of


def raises_over_tables(rows: pa.Table) -> dict[str, pa.Table]:
    return {SINK: rows.append_column("b", [rate_of("GBP")])}  # line of the caller


def rate_of(currency):
    return {"EUR": 1}[currency]  # the innermost line


def raises_on_the_driver(df):
    return {SINK: df.withColumn("b", F.lit(rate_of("GBP")))}  # line of the caller


def raises_in_a_column(df):
    return {SINK: df.withColumn("b", F.udf(lambda a: rate_of("GBP"), "int")("a"))}  # line of the caller


def asks_for_no_column(df):
    return {SINK: df.select("nowhere")}  # the innermost line of asks_for_no_column


def divides_by_zero(df):
    return {SINK: df.withColumn("b", (F.lit(1) / (F.col("a") - F.col("a"))).cast("int"))}  # divides


def line_of(words: str, after: str = "") -> int:
    """The line of this file that ends with a comment of these words, the first below `after`."""
    lines = Path(__file__).read_text().splitlines()
    begun = lines.index(after) if after else 0
    return next(number for number, line in enumerate(lines[begun:], begun + 1) if line.endswith(f"  # {words}"))


HERE = "tests/spark/test_own_lines.py"
RAISED = "raised KeyError: 'GBP'"


@pytest.mark.parametrize(
    ("transform", "said", "words", "caller"),
    [
        (
            raises_over_tables,
            RAISED,
            "the innermost line",
            "def raises_over_tables(rows: pa.Table) -> dict[str, pa.Table]:",
        ),
        (raises_on_the_driver, RAISED, "the innermost line", "def raises_on_the_driver(df):"),
        (raises_in_a_column, RAISED, "the innermost line", "def raises_in_a_column(df):"),
        (asks_for_no_column, "UNRESOLVED_COLUMN", "the innermost line of asks_for_no_column", None),
        (divides_by_zero, "DIVIDE_BY_ZERO", "divides", None),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
@pytest.mark.parametrize("is_private", [False, True])
def test_what_a_transform_raises_is_told_with_the_persons_own_line(rig, transform, said, words, caller, is_private):
    topic = rig.topic()
    rig.send(topic, *numbered(range(10)))
    spec = spec_of(topic, transform, value="a int", sinks=[Append(SINK, columns="b int")], private=is_private)
    (work,) = rig.begin(spec)
    line = line_of(words)
    with pytest.raises(TransformError) as told:
        rig.run(spec, work)
    message, notes = str(told.value), "\n".join(getattr(told.value, "__notes__", ()))
    if is_private and caller:
        assert message.endswith(f"KeyError at {HERE}:{line}") and "GBP" not in message
    else:
        assert said in message and message.endswith(f" ({HERE}, line {line})"), message
    assert "+- " not in message and "was called from" not in message
    if caller and not is_private:
        lines = [f'File "{HERE}", line {each}, in ' for each in (line_of("line of the caller", caller), line)]
        assert [each in notes for each in lines] == [True, True] and notes.index(lines[0]) < notes.index(lines[1])
        assert "site-packages" not in notes and "ratchet/spark/" not in notes
