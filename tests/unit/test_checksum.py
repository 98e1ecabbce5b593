"""The checksum's definition, held to vectors that a real Spark has confirmed (tests/spark/test_slice.py)."""

import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ratchet.sinks.checksum import MODULUS, batch_checksum, row_hash
from ratchet.spec.columns import parse_columns
from ratchet.values.arrow import arrow_type

COLUMNS = parse_columns(
    "s smallint, i int, l bigint, f float, d double, b boolean, t string, y binary, da date, ts timestamp, "
    "de decimal(10,2), dx decimal(18,0), dl decimal(38,18)"
)
ROWS = [
    (
        -5,
        2**31 - 1,
        -(2**63),
        1.5,
        -0.1,
        True,
        "hé\n,",
        b"\x00\xff",
        date(1969, 12, 31),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        Decimal("-12345678.90"),
        Decimal("-999999999999999999"),
        Decimal("-99999999999999999999.999999999999999999"),
    ),
    (None,) * 13,
    (
        0,
        0,
        0,
        -0.0,
        math.inf,
        False,
        "",
        b"",
        date(9999, 12, 31),
        datetime(9999, 12, 31, tzinfo=UTC),
        Decimal("0.05"),
        Decimal(0),
        Decimal("0.000000000000000001"),
    ),
    (
        1,
        -1,
        255,
        math.nan,
        math.nan,
        True,
        "x" * 100,
        bytes(range(256)),
        date(1, 1, 1),
        datetime(2026, 2, 28, 1, 2, 3, 4, tzinfo=UTC),
        Decimal("-0.01"),
        Decimal(-1),
        Decimal("-0.000000000000000128"),
    ),
]
VECTORS = [18090014576736093266, 4959852824970007441, 7638921899230627379, 17629437272244072110]


def array_of(values, kind):
    """As pyarrow makes it; a timestamp without a time zone is the one in UTC."""
    if kind == pa.timestamp("us"):
        values = [value and value.replace(tzinfo=None) for value in values]
    return pa.array(values, kind)


def batch_of(columns, rows):
    kinds = [arrow_type(c.type) for c in columns]
    cells = zip(*rows, strict=True)
    arrays = [array_of(values, kind) for values, kind in zip(cells, kinds, strict=True)]
    return pa.record_batch(arrays, [c.name for c in columns])


def expected_sum(columns, rows):
    return sum(row_hash(columns, row) for row in rows) % MODULUS


@pytest.mark.parametrize(("row", "expected"), list(zip(ROWS, VECTORS, strict=True)))
def test_vectors(row, expected):
    assert row_hash(COLUMNS, row) == expected
    assert batch_checksum(COLUMNS, batch_of(COLUMNS, [row])) == expected


def test_a_batch_sums_the_vectors():
    assert batch_checksum(COLUMNS, batch_of(COLUMNS, ROWS)) == sum(VECTORS) % MODULUS


def test_the_chain_in_the_small():
    (column,) = parse_columns("a int")
    seed = xxhash.xxh64_intdigest(struct.pack("<i", 0), seed=42)
    assert row_hash([column], [7]) == xxhash.xxh64_intdigest(struct.pack("<i", 7), seed=seed)
    assert row_hash([column], [None]) == xxhash.xxh64_intdigest(struct.pack("<i", 1), seed=42)


def test_a_null_moved_to_the_next_column_is_another_row():
    columns = parse_columns("a int, b int")
    assert row_hash(columns, [None, 1]) != row_hash(columns, [1, None])


@given(st.integers(-(10**38) + 1, 10**38 - 1))
def test_long_decimals_are_twos_complement_of_least_length(unscaled):
    (column,) = parse_columns("a decimal(38,5)")
    length = next(n for n in range(1, 18) if -(1 << (8 * n - 1)) <= unscaled < 1 << (8 * n - 1))
    seed = xxhash.xxh64_intdigest(struct.pack("<i", 0), seed=42)
    expected = xxhash.xxh64_intdigest(unscaled.to_bytes(length, "big", signed=True), seed=seed)
    assert row_hash([column], [Decimal(f"{unscaled}e-5")]) == expected


def test_documents_uuids_times_and_arrays_in_a_batch():
    columns = parse_columns(
        "j json, u uuid, t time, l array<int>, ls array<string>, lt array<time>, ld array<decimal(5,2)>"
    )
    uuid = "550e8400-e29b-41d4-a716-446655440000"
    rows = [
        ('{"a": 1}', uuid, "07:30:00.000000", [1, None], ["", None], ["07:30:00.000000"], [Decimal("1.50")]),
        (None,) * 7,
        ("[]", uuid, "23:59:59.999999", [], [None], [], [None]),
    ]
    kinds = [pa.string() if str(c.type) == "json" else arrow_type(c.type) for c in columns]
    cells = zip(*rows, strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(cells, kinds, strict=True)]
    batch = pa.record_batch(arrays, [c.name for c in columns])
    assert batch_checksum(columns, batch) == sum(row_hash(columns, row) for row in rows) % MODULUS
    # As the database's driver gives them.
    as_read = ('{"a": 1}', UUID(uuid), time(7, 30), [1, None], ["", None], [time(7, 30)], [Decimal("1.50")])
    assert row_hash(columns, as_read) == row_hash(columns, rows[0])


@pytest.mark.parametrize(
    ("one", "other"), [([1, None], [None, 1]), ([None], []), (["ab"], ["a", "b"]), ([1], [1, None]), ([""], [None])]
)
def test_arrays_that_differ_have_other_hashes(one, other):
    columns = parse_columns("l array<string>" if "" in one or "ab" in one else "l array<int>")
    assert row_hash(columns, [one]) != row_hash(columns, [other])
