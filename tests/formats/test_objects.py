"""Columns from objects: whole columns are read as the definition reads each field."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from math import inf, nan
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.formats.object_columns import ObjectColumns, vector
from ratchet.formats.objects import Objects
from ratchet.formats.port import NoRow
from ratchet.spec.columns import parse_columns
from ratchet.values.arrow import arrow_type
from ratchet.values.unfit import Unfit

KINDS = [
    "string",
    "boolean",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(5,2)",
    "decimal(38,0)",
    "decimal(38,38)",
    "date",
    "time",
    "timestamp",
    "timestamp(seconds)",
    "timestamp(nanos)",
    "binary",
    "uuid",
    "json",
    "array<int>",
    "map<string, double>",
    "struct<a: int not null, b: string>",
]
ZONES = st.sampled_from([None, UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12, minutes=-30))])
SCALARS = {
    "nothing": st.none(),
    "text": st.text(max_size=5) | st.sampled_from(["2024-05-01", "10:00", "1.25", "\x00", "\ud800"]),
    "truth": st.booleans(),
    "number": st.integers(-(2**70), 2**70) | st.integers(-5, 5) | st.sampled_from([2**31, -(2**63), 10**400]),
    "float": st.floats() | st.floats(width=32) | st.sampled_from([1e39, 1714557600.123456]),
    "decimal": st.decimals() | st.decimals(-999, 999, places=2) | st.sampled_from([Decimal("1E+3"), Decimal("1.230")]),
    "moment": st.datetimes(timezones=ZONES) | st.sampled_from([datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))]),
    "day": st.dates(),
    "time": st.times() | st.times(timezones=st.just(UTC)),
    "bytes": st.binary(max_size=17),
    "uuid": st.uuids(),
}
ANY = st.recursive(
    st.one_of(*SCALARS.values()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "\x00", 1]), inner),
    max_leaves=6,
)
# Mostly a column has fields of one type.
COLUMNS = st.one_of(*(st.lists(of, max_size=6) for of in SCALARS.values()), st.lists(ANY, max_size=4))


def by_definition(kind, cells):
    read, declined = [], []
    for row, value in enumerate(cells):
        try:
            read.append(Objects().cell(kind, value))
        except Unfit:
            read.append(None)
            declined.append(row)
    return pa.array(read, arrow_type(kind)), declined


@pytest.mark.parametrize("said", KINDS)
@settings(max_examples=150, deadline=None)
@given(cells=COLUMNS)
def test_a_column_that_is_read_at_once_is_what_the_definition_says(said, cells):
    ((column),) = parse_columns(f"c {said}")
    whole, (expected, declined) = vector(column.type, cells), by_definition(column.type, cells)
    assert whole.declined.tolist() == declined
    kept = np.setdiff1d(np.arange(len(cells)), declined)
    # Of floats the bytes are compared: no NaN is equal to another.
    assert str(whole.array.take(pa.array(kept))) == str(expected.take(pa.array(kept)))


@pytest.mark.parametrize(
    ("said", "value", "cell"),
    [
        ("bigint", 2**63 - 1, 2**63 - 1),
        ("double", 3, 3.0),
        ("double", nan, nan),
        ("float", -inf, -inf),
        ("float", 0.1, float(np.float32(0.1))),
        ("decimal(5,2)", 7, Decimal("7.00")),
        ("decimal(5,2)", Decimal("1E+2"), Decimal("100.00")),
        ("decimal(5,2)", "1.5", Decimal("1.50")),
        ("timestamp", datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2))), 1714557600_000_000),
        ("timestamp", datetime(2024, 5, 1, 10), 1714557600_000_000),
        ("timestamp(seconds)", 1714557600.123456, 1714557600_123_456),
        ("timestamp(millis)", 1714557600123, 1714557600_123_000),
        ("date", date(2024, 5, 1), date(2024, 5, 1)),
        ("time", time(10, 0, 0, 5), "10:00:00.000005"),
        ("uuid", UUID(int=5).bytes, "00000000-0000-0000-0000-000000000005"),
        ("json", {"b": [1, 2.5, Decimal("1.50"), b"x", None], "a": date(2024, 5, 1)}, None),
        ("map<string, int>", {"a": 1}, [("a", 1)]),
    ],
)
def test_a_field_is_kept_exactly(said, value, cell):
    ((column),) = parse_columns(f"c {said}")
    found = Objects().cell(column.type, value)
    assert str(found) == (str(cell) if cell is not None else '{"a": "2024-05-01", "b": [1, 2.5, 1.50, "eA==", null]}')


@pytest.mark.parametrize(
    ("said", "value", "error"),
    [
        ("int", True, "found true, wanted int"),
        ("int", 2**31, "found 2147483648, wanted int"),
        ("boolean", 1, "found 1, wanted boolean"),
        ("string", b"x", "found 1 bytes, wanted string"),
        ("binary", "x", 'found "x", wanted binary'),
        ("decimal(5,2)", 1.5, "found 1.5, wanted decimal(5,2)"),
        ("decimal(5,2)", Decimal("1.005"), "found 1.005, wanted decimal(5,2)"),
        ("float", 1e39, "found 1e+39, wanted a finite float"),
        ("date", datetime(2024, 5, 1), "found 2024-05-01 00:00:00, wanted date"),
        ("timestamp", 5, "found 5, wanted timestamp"),
        ("time", time(10, tzinfo=UTC), "found 10:00:00+00:00, wanted time"),
        ("array<double>", [1.0, inf], "[1]: found inf, wanted a finite double"),
        ("json", {"a": [nan]}, "found nan, wanted json"),
        ("json", {1: 2}, "found the name 1, wanted json, whose names are texts"),
        ("struct<a: int not null>", {"a": None}, ".a: found null, wanted int not null"),
        ("struct<a: int not null>", [], "found a list, wanted struct<a: int not null>"),
    ],
)
def test_a_field_that_cannot_be_kept_is_refused(said, value, error):
    ((column),) = parse_columns(f"c {said}")
    with pytest.raises(Unfit) as caught:
        Objects().cell(column.type, value)
    told = caught.value.said("")
    assert told.removeprefix(": ") == error


def test_a_path_leads_into_fields_and_says_where_it_ends():
    columns = parse_columns("a int from o.a, b int from o.b not null, c string")
    given = [{"o": {"a": 1, "b": 2}}, {"o": None}, {"o": 5}, {}, {"o": {"b": 3}}, NoRow("the value: none"), "x"]
    decoded = ObjectColumns(columns, "one map").decoded(given)
    assert decoded.errors.to_pylist() == [
        None,
        "column b: found nothing, wanted int not null",
        "column a: found 5, wanted fields with a",
        "column b: found nothing, wanted int not null",
        None,
        "the value: none",
        'the value: found "x", wanted one map',
    ]
    assert decoded.parents.to_pylist() == [0, 4]
    assert decoded.columns.to_pylist() == [{"a": 1, "b": 2, "c": None}, {"a": None, "b": 3, "c": None}]
    assert decoded.found == {"a", "b"} and decoded.beside == {"c": frozenset(["o"])}
