"""Transforms: their kinds by annotation, and what a function over Arrow tables gives, wherever batches end."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from ratchet import Append, Json, Pipeline, Topic, Upsert
from ratchet.errors import SpecError
from ratchet.formats.envelope import RECORD
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.transforms.kinds import Kind, kind_of, kind_of_function
from ratchet.transforms.tables import TableTransform


def over_tables(records: pa.Table) -> dict[str, pa.Table]:
    """Some records dropped, some given up, the others twice."""
    a = records.column("a")
    bad = pc.fill_null(pc.equal(a, 3), False)
    good = records.filter(pc.and_kleene(pc.invert(bad), pc.fill_null(pc.not_equal(a, 1), True)))
    second = good.set_column(good.schema.get_field_index("_n"), "_n", pa.array([1] * good.num_rows, pa.int32()))
    return {"rows": pa.concat_tables([good, second]), DEAD_LETTERS: records.filter(bad)}


def over_frames(records: DataFrame) -> dict[str, DataFrame]:
    return {"rows": records}


def unannotated(records):
    return {"rows": records}


def over_something(records: int) -> dict[str, int]:
    return {}


def of_two(records: pa.Table, more: pa.Table) -> dict[str, pa.Table]:
    return {}


def spec_of(function) -> Pipeline:
    return Pipeline(
        name="p",
        source=Topic("t", value=Json("a int, b string")),
        transform=function and f"{function.__module__}:{function.__name__}",
        sinks=[Append("rows", columns="a int, b string")],
    )


@pytest.mark.parametrize(
    ("function", "kind"),
    [(None, Kind.NONE), (over_tables, Kind.TABLES), (over_frames, Kind.FRAMES), (unannotated, Kind.FRAMES)],
)
def test_the_annotation_says_the_kind(function, kind):
    assert kind_of(spec_of(function)) is kind


def with_a_name(name: str, records: pa.Table) -> dict[str, pa.Table]:
    return {"rows": records}


class Called:
    def __call__(self, records: pa.Table) -> dict[str, pa.Table]:
        return {"rows": records}


@pytest.mark.parametrize("function", [partial(with_a_name, "p"), Called()])
def test_what_can_be_called_like_a_function_is_one(function):
    assert kind_of_function(function, "m:f") is Kind.TABLES


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (over_something, "annotates its parameter 'records' as .*int; annotate it as pyarrow.Table"),
        (of_two, "given one"),
    ],
)
def test_a_wrong_annotation_is_said_with_the_right_ones(function, said):
    with pytest.raises(SpecError, match=said):
        kind_of_function(function, "m:f")


@pytest.mark.parametrize("annotation", ["pa.Table", "pyarrow.Table", "pyarrow.lib.Table"])
def test_an_annotation_that_is_only_there_for_type_checkers_counts(annotation):
    def function(records):
        return {}

    function.__annotations__ = {"records": f"{annotation}"}
    function.__globals__.pop("pyarrow", None)
    assert kind_of_function(function, "m:f") is Kind.TABLES


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([None, 0, 1, 2, 3]), max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_the_result_does_not_depend_on_where_batches_end(values, ends):
    count = len(values)
    records = pa.table(
        {
            "a": pa.array(values, pa.int32()),
            "b": pa.array([str(n) for n in range(count)], pa.string()),
            "_partition": pa.array([0] * count, pa.int32()),
            "_offset": pa.array(range(count), pa.int64()),
            "_n": pa.array([0] * count, pa.int32()),
            "_record": pa.array(
                [{"timestamp": None, "key": None, "value": b"v", "headers": None}] * count,
                RECORD,
            ),
        }
    )
    transform = TableTransform(spec_of(over_tables))
    cuts = sorted({0, count, *(end for end in ends if end <= count)})
    parts = [transform(records.slice(a, b - a)) for a, b in zip(cuts, cuts[1:], strict=False)]

    def content(made: list[dict[str, pa.Table]], sink: str) -> list[tuple]:
        rows = [row for one in made if sink in one for row in one[sink].to_pylist()]
        return sorted((tuple(row.items()) for row in rows), key=repr)

    whole = [transform(records)]
    for sink in ("rows", DEAD_LETTERS):
        assert content(parts, sink) == content(whole, sink)
    assert len(content(whole, "rows")) == 2 * sum(v not in (1, 3) for v in values)
    assert len(content(whole, DEAD_LETTERS)) == sum(v == 3 for v in values)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("a int, c string", "'rows' needs column 'c', which topic 't' does not declare"),
        ("a string, b string", "'rows' declares column 'a' string, and topic 't' int"),
    ],
)
def test_without_a_transform_the_source_must_have_every_column(columns, said):
    with pytest.raises(SpecError, match=said):
        Pipeline(name="p", source=Topic("t", value=Json("a int, b string")), sinks=[Append("rows", columns=columns)])


def test_without_a_transform_columns_are_widened_where_nothing_is_lost():
    source = Topic("t", key="k string", value=Json("a int"))
    sinks = [Append("rows", columns="a bigint"), Upsert("last", key="k string", columns="a int")]
    assert kind_of(Pipeline(name="p", source=source, sinks=sinks)) is Kind.NONE
