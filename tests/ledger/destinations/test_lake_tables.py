"""What a Delta Lake table takes and refuses; other readers find values there as they were."""

from __future__ import annotations

import math
import random
from datetime import date

import psycopg
import pyarrow as pa
import pytest

from ratchet import Append, DeltaLake
from ratchet.destinations.port import Mark
from ratchet.errors import (
    DestinationRefused,
    SpecError,
)
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote
from ratchet.spec.pipeline import Pipeline

from ..staging import SPEC, a_try, appended, start, vote_of, write_all
from .elsewhere import places
from .lakes import LakeOf
from .typed import COLUMNS, cells, commit_rows

ROWS = 200


@pytest.mark.invariant("I1")
def test_a_column_that_is_added_is_added_there(lake):
    lake.run("a")
    lake.columns = "a bigint, b string"
    migrate(lake.ledger.url, [lake.spec])
    lake.run("b", of=lambda at: {"a": 1, "b": f"b{at['_offset']}"})
    assert lake.rows() == appended(lake.ledger)
    found = lake.table().select(["_txid", "_offset", "b"]).to_pylist()
    assert {row["b"] for row in found if row["_txid"] == 1} == {None}
    assert all(row["b"] == f"b{row['_offset']}" for row in found if row["_txid"] == 2)
    lake.run("a", clear_number=1, of=lambda at: {"a": 2, "b": "new"})
    assert lake.rows() == appended(lake.ledger)


@pytest.mark.invariant("I1")
def test_values_of_every_type_are_read_back_as_they_were(lake):
    typed = lake.where.beside("typed")
    lake.columns, lake.log.beginning, lake.log.stable = COLUMNS, {0: 0}, {0: ROWS}
    spec = lake.spec.model_copy(update={"name": "typed", "max_records": ROWS, "slice_records": ROWS})
    rows_of = Append("typed_rows", columns=COLUMNS, to=typed.declared())
    spec = spec.model_copy(update={"sinks": [rows_of]})
    migrate(lake.ledger.url, [spec])
    with psycopg.connect(lake.ledger.url) as conn:
        # What a session shows of a value is no part of it.
        for said in ("extra_float_digits = -10", "timezone = 'Pacific/Auckland'"):
            conn.execute(f"alter database {conn.info.dbname} set {said}")  # pyright: ignore[reportArgumentType]
    lake.ledger.engine.dispose()
    dice = random.Random(11)
    made = [cells(dice) for _ in range(ROWS)]
    # Parquet has them, and no JSON has.
    made[0] |= {"f": math.nan, "d": -math.inf}
    made[1] |= {"f": math.inf, "d": math.nan}
    given = commit_rows(lake.ledger, spec, lake.log, made, lake.opens)
    found = typed.delta().to_pyarrow_table().sort_by("_offset")
    assert found.num_rows == ROWS
    for name in given.schema.names:
        if name in ("j", "aj"):
            # A document is what PostgreSQL has made of it.
            continue
        assert found.schema.field(name).type == given.schema.field(name).type, name
        # -0.0 is told from 0.0, and NaN is like NaN.
        assert list(map(repr, found[name].to_pylist())) == list(map(repr, given[name].to_pylist())), name
    documents = {'{"a": 1, "ab": [1.50, null, "é"]}', "[]", '"null"', "100", "false", None}
    assert set(found["j"].to_pylist()) == documents


def prepared(lake: LakeOf, columns: str, row: dict) -> tuple[Pipeline, Begun]:
    """A transaction of a line of its own, each of whose records gives this row, and which is yet to be committed."""
    other = LakeOf(lake.ledger, lake.where.beside("other"), lake.log, columns)
    (to,) = other.spec.sinks[0].destinations
    spec = SPEC.model_copy(update={"name": "other", "sinks": [Append("other", columns=columns, to=to)]})
    migrate(lake.ledger.url, [spec])
    begun = start(lake.ledger, spec, lake.log, "a")
    for part in begun.slices:
        work = a_try(lake.ledger, begun, part.number, spec)
        made = {"other": [{**row, **at} for at in places(work)]}
        cast_vote(lake.ledger, spec, work.token, vote_of(spec, work, write_all(lake.ledger, spec, work, made)))
    return spec, begun


def test_what_an_array_cannot_hold_is_refused(lake):
    spec, begun = prepared(lake, "l array<double>", {"l": [1.0, math.nan]})
    said = "other: delta:.*: column l has a day outside .*, or NaN or an infinity in an array"
    with pytest.raises(DestinationRefused, match=said):
        commit(lake.ledger, spec, begun.claim, lake.opens)
    assert lake.where.beside("other").delta().to_pyarrow_table().num_rows == 0


@pytest.mark.parametrize("cell", ["0001-12-31 BC", "10000-01-01"])
def test_a_day_that_readers_of_a_lake_do_not_know_is_refused(lake, cell):
    spec, begun = prepared(lake, "d date", {"d": date(2026, 1, 1)})
    # Python has no such day.
    with psycopg.connect(lake.ledger.url) as conn:
        conn.execute('update ratchet_delta."public.other" set d = %s::date where _offset = 3', [cell])
    with pytest.raises(DestinationRefused, match="column d has a day outside of the years 1 to 9999"):
        commit(lake.ledger, spec, begun.claim, lake.opens)
    assert lake.where.beside("other").delta().to_pyarrow_table().num_rows == 0


@pytest.mark.invariant("I1")
def test_texts_are_what_they_were_wherever_they_stand(bare, log, where):
    lake = LakeOf(bare, where, log, "b string", {"partition_by": ()})
    migrate(lake.ledger.url, [lake.spec])
    texts = ["\ufeffabc", "\ufeff", "", "\\.", 'a"b', "a,b", "a\r\nb", "\n", "NULL", "\\N", " ", "0"]
    lake.run("a", of=lambda at: {"b": texts[at["_offset"] % len(texts)]})
    found = lake.table().to_pylist()
    assert all(row["b"] == texts[row["_offset"] % len(texts)] for row in found) and len(found) > len(texts)


def test_a_version_that_the_table_does_not_take_is_no_matter_of_waiting(lake):
    lake.run("a")
    before = lake.rows()
    lake.delta().alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(DestinationRefused, match="its mark tells what it has taken"):
        lake.run("a", clear_number=1, drop=1)
    assert lake.rows() == before and lake.mark().step == 1


def test_a_column_that_differs_in_case_alone_is_refused(lake):
    lake.where.create(("A", pa.int64()))
    with pytest.raises(DestinationRefused, match="has a column A, and a differs from it only in case"):
        lake.run("a")
    assert lake.delta().version() == 0


def test_a_table_that_is_divided_by_what_no_name_holds_is_refused(lake):
    kinds = [("_txid", pa.int64()), ("a", pa.int64()), ("mine", pa.decimal128(5, 2))]
    lake.where.create(*kinds, partition_by=["mine"])
    with pytest.raises(DestinationRefused, match="is divided by mine, a decimal"):
        lake.run("a")
    assert lake.table().num_rows == 0


@pytest.mark.invariant("I1")
def test_the_texts_by_which_a_table_is_divided_are_kept_or_refused(bare, log, where):
    lake = LakeOf(bare, where, log, "a int, b string, d date", {"partition_by": ("b", "d")})
    migrate(lake.ledger.url, [lake.spec])
    texts = ["a/b", "a=b", "100%", "é\n", "..", " ", None]
    days = [date(1, 1, 1), date(9999, 12, 31), None]
    lake.run("a", of=lambda at: {"a": 1, "b": texts[at["_offset"] % 7], "d": days[at["_offset"] % 3]})
    found = lake.table().to_pylist()
    assert [(row["b"], row["d"]) for row in found] == [(texts[r["_offset"] % 7], days[r["_offset"] % 3]) for r in found]
    assert lake.rows() == appended(lake.ledger)
    assert lake.delta().metadata().partition_columns == ["b", "d"]
    with pytest.raises(DestinationRefused, match="column b, by which the table is divided, has an empty text"):
        lake.run("b", of=lambda at: {"a": 1, "b": "", "d": None})
    assert lake.mark().step == 1


def test_a_table_that_has_rows_of_somebody_else_is_refused(lake):
    lake.where.write(pa.table({"a": pa.array([1], pa.int64())}))
    with pytest.raises(DestinationRefused, match="has rows already, and none is this pipeline's"):
        lake.run("a")
    assert lake.table().num_rows == 1
    # Nor are they deleted by an attach.
    detach(lake.ledger, "line", lake.address, "for the test", "me")
    with pytest.raises(DestinationRefused, match="has rows already"):
        attach(lake.ledger, lake.spec, lake.address, How.ANEW, "for the test", "me", lake.opens)
    assert lake.table().num_rows == 1


@pytest.mark.parametrize("made", [True, False])
def test_a_table_of_another_pipeline_is_refused(lake, made):
    if made:
        lake.where.create(("a", pa.int64()))
    with lake.open("other") as other:
        other.start(Mark(0, 1))
    with pytest.raises(DestinationRefused, match="is a destination of other: rows already"):
        lake.run("a")
    assert lake.table().num_rows == 0


@pytest.mark.invariant("I1")
def test_an_empty_table_that_was_made_by_hand_is_taken_as_it_is(lake):
    kinds = [("_txid", pa.int64()), ("a", pa.int64()), ("mine", pa.string())]
    lake.where.create(*kinds, partition_by=["_txid"])
    lake.run("a")
    lake.run("b")
    lake.run("a", clear_number=1, drop=1)
    assert lake.rows() == appended(lake.ledger)
    assert lake.delta().metadata().partition_columns == ["_txid"]


def test_a_column_of_another_type_is_refused(lake):
    lake.where.create(("a", pa.string()))
    with pytest.raises(DestinationRefused, match="column a is string, and is written as int64"):
        lake.run("a")
    assert lake.table().num_rows == 0


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"name": "lake/orders"}, "is no absolute path of a directory"),
        ({"name": "/lake/../orders"}, "is no absolute path of a directory"),
        ({"name": "/"}, "is no absolute path of a directory"),
        ({"name": "/lake/a%20b"}, "has no '%'"),
        ({"name": "/lake/a\\b"}, "no backslash"),
    ],
)
def test_what_is_no_directory_is_refused(given, error):
    with pytest.raises(SpecError, match=error):
        DeltaLake(**given)


@pytest.mark.parametrize(
    ("columns", "by", "error"),
    [
        ("a bigint", "b", "partition_by 'b' is not one of columns: a"),
        ("a bigint, l array<int>", "l", "does not hold values of type array<int>"),
        ("a bigint, l decimal(5,2)", "l", "does not hold values of type decimal"),
        ("a bigint, l binary", "l", "does not hold values of type binary"),
        ("a bigint, l double", "l", "does not hold values of type double"),
        ("a bigint, l int", ("l", "l"), "names a column twice"),
        ("a bigint", "a", "names every column"),
    ],
)
def test_columns_that_a_lake_cannot_be_given_are_refused(columns, by, error):
    with pytest.raises(SpecError, match=error):
        Append("rows", columns=columns, to=DeltaLake("/lake/orders", partition_by=by))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"name": "s3://lake/orders"}, "store: name the Airflow connection, of type aws"),
        ({"name": "/lake/orders", "store": "a"}, "store: /lake/orders is a directory, which has none"),
        ({"name": "gs://lake/orders", "store": "a"}, "other stores are not tried yet"),
        ({"name": "abfss://lake@account/orders", "store": "a"}, "other stores are not tried yet"),
        ({"name": "s3a://lake/orders", "store": "a"}, "write s3://lake/orders"),
        ({"name": "S3://lake/orders", "store": "a"}, "write s3://lake/orders"),
        ({"name": "s3://lake", "store": "a"}, "is a whole bucket"),
        ({"name": "s3://lake/", "store": "a"}, "is a whole bucket"),
        ({"name": "s3:///orders", "store": "a"}, "'' is no name of a bucket"),
        ({"name": "s3://Lake/orders", "store": "a"}, "'Lake' is no name of a bucket"),
        ({"name": "s3://key:canary@lake/orders", "store": "a"}, "has no login in it"),
        ({"name": "s3://lake/a//orders", "store": "a"}, "between single slashes"),
        ({"name": "s3://lake/../orders", "store": "a"}, "neither '.' nor '..' alone"),
        ({"name": "s3://lake/a%20b", "store": "a"}, "letters without accents, digits"),
        ({"name": "s3://lake/orders?versionId=1", "store": "a"}, "letters without accents, digits"),
        ({"name": "s3://lake/" + "a" * 701, "store": "a"}, "at most 700 characters, and this one has 701"),
    ],
)
def test_what_is_no_place_in_an_object_store_is_refused(given, error):
    with pytest.raises(SpecError, match=error):
        DeltaLake(**given)


def test_one_table_has_one_address():
    assert DeltaLake("//lake//orders/").address == DeltaLake("/lake/orders").address == "delta:/lake/orders"
    assert DeltaLake("s3://lake/Orders/", store="a").address == "delta:s3://lake/Orders"
