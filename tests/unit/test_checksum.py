"""The checksum's definition, held to vectors that a real Spark has confirmed (tests/spark/test_slice.py)."""

import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ratchet.sinks.checksum import row_hash
from ratchet.spec.columns import parse_columns

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


@pytest.mark.parametrize(("row", "expected"), list(zip(ROWS, VECTORS, strict=True)))
def test_vectors(row, expected):
    assert row_hash(COLUMNS, row) == expected


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
