"""What an Iceberg table is not given, and in which words."""

from __future__ import annotations

import math
from functools import partial

import psycopg
import pyarrow as pa
import pytest

from ratchet.destinations.port import Mark
from ratchet.errors import DestinationRefused
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow

from ..staging import appended

later = partial(pytest.param, marks=pytest.mark.all)


@pytest.mark.invariant("I1")
def test_a_file_that_cannot_be_rewritten_is_named(in_postgresql):
    iceberg = in_postgresql
    for run in "ab":
        iceberg.run(run)
    iceberg.loaded().overwrite(iceberg.table())
    before = iceberg.rows()
    iceberg.loaded().update_spec().add_field("a", "bucket[2]").commit()
    with pytest.raises(
        DestinationRefused, match="rows that give way share the file .* with others, .* by rewrite_data"
    ):
        iceberg.run("a", clear_number=1, drop=1)
    assert iceberg.rows() == before and iceberg.mark().step == 2
    iceberg.loaded().overwrite(iceberg.table())
    follow(iceberg.ledger, iceberg.spec, iceberg.opens)
    assert iceberg.rows() == appended(iceberg.ledger)


@pytest.mark.parametrize(
    ("columns", "cell", "error"),
    [
        pytest.param(
            "x date",
            "x = '0001-12-31 BC'::date",
            "column x has a day outside of the years 1 to 9999",
            marks=pytest.mark.all,
        ),
        ("x timestamp", "x = '10000-01-01 00:00:00+00'", "column x has a moment outside of the years 1 to 9999"),
        pytest.param(
            "x timestamp",
            "x = '0001-12-31 23:59:59+00 BC'",
            "column x has a moment outside of the years 1 to 9999",
            marks=pytest.mark.all,
        ),
        pytest.param(
            "x array<double>",
            "x = '{1,NaN}'",
            "column x has a day outside .*, or NaN or an infinity in an array",
            marks=pytest.mark.all,
        ),
    ],
)
def test_a_value_that_readers_of_a_table_do_not_know_is_refused(in_postgresql, columns, cell, error):
    iceberg = in_postgresql
    iceberg.columns = columns
    migrate(iceberg.ledger.url, [iceberg.spec])
    begun = iceberg.prepared("a", of=lambda at: {"x": None})
    # Python has no such value.
    with psycopg.connect(iceberg.ledger.url) as conn:
        conn.execute(f'update ratchet_delta."public.rows" set {cell} where _offset = 3')  # noqa: S608  # pyright: ignore
    with pytest.raises(DestinationRefused, match=f"rows: lakehouse:sales.orders: {error}"):
        commit(iceberg.ledger, iceberg.spec, begun.claim, iceberg.opens)
    assert iceberg.table().num_rows == 0 and iceberg.mark().step == 0


def test_an_iceberg_table_that_has_rows_of_somebody_else_is_refused(iceberg):
    iceberg.made(pa.schema([("a", pa.int64())])).append(pa.table({"a": pa.array([1], pa.int64())}))
    with pytest.raises(DestinationRefused, match="has rows already, and none is this pipeline's"):
        iceberg.run("a")
    # Nor are they deleted by an attach.
    detach(iceberg.ledger, "line", iceberg.address, "for the test", "me")
    with pytest.raises(DestinationRefused, match="has rows already"):
        attach(iceberg.ledger, iceberg.spec, iceberg.address, How.ANEW, "for the test", "me", iceberg.opens)
    assert iceberg.table().num_rows == 1 and len(iceberg.loaded().snapshots()) == 1


@pytest.mark.parametrize("made", [True, later(False)])
def test_an_iceberg_table_of_another_pipeline_is_refused(in_postgresql, made):
    iceberg = in_postgresql
    if made:
        iceberg.made(pa.schema([("a", pa.int64())]))
    with iceberg.open("other") as other:
        other.start(Mark(0, 1))
    with pytest.raises(DestinationRefused, match="is a destination of other: rows already"):
        iceberg.run("a")
    assert iceberg.table().num_rows == 0


@pytest.mark.parametrize(
    ("held", "error"),
    [
        later([("A", pa.int64())], "has a column A, and a differs from it only in case"),
        ([("a", pa.string())], "column a is string, and is written as long"),
        later([("a", pa.int32())], "column a is int, and is written as long"),
        ([pa.field("mine", pa.int64(), nullable=False)], "column mine is required there, and rows may lack it"),
        pytest.param(
            [pa.field("a", pa.int64(), nullable=False)],
            "column a is required there, and rows may lack it",
            marks=pytest.mark.all,
        ),
    ],
)
def test_a_table_whose_columns_do_not_fit_is_refused(in_postgresql, held, error):
    in_postgresql.made(pa.schema(held))
    with pytest.raises(DestinationRefused, match=error):
        in_postgresql.run("a")
    assert in_postgresql.table().num_rows == 0 and in_postgresql.loaded().snapshots() == []


@pytest.mark.all
def test_a_table_of_another_version_of_the_format_is_refused(in_postgresql):
    in_postgresql.made(pa.schema([("a", pa.int64())]), properties={"format-version": "1"})
    with pytest.raises(DestinationRefused, match="has version 1 of Iceberg's format, and 2 is supported"):
        in_postgresql.run("a")


@pytest.mark.all
def test_a_table_that_is_divided_by_a_number_that_is_not_like_itself_is_refused(in_postgresql):
    iceberg = in_postgresql
    iceberg.columns = "a double"
    migrate(iceberg.ledger.url, [iceberg.spec])
    iceberg.made(pa.schema([("a", pa.float64())])).update_spec().add_identity("a").commit()
    with pytest.raises(DestinationRefused, match="is divided by a, a double, of which not every value is like itself"):
        iceberg.run("a", of=lambda at: {"a": math.nan})
    assert iceberg.table().num_rows == 0
