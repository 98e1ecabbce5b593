"""The checksum's definition, held to vectors that a real Spark has confirmed (tests/spark/test_slice.py)."""

import math
import os
import struct
import subprocess
import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from ratchet.sinks.buffers import Fixed
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


ARROW = {
    "string": [pa.string(), pa.large_string()],
    "binary": [pa.binary(), pa.large_binary()],
    "boolean": [pa.bool_()],
    "smallint": [pa.int16()],
    "int": [pa.int32()],
    "bigint": [pa.int64()],
    "float": [pa.float32()],
    "double": [pa.float64()],
    "date": [pa.date32()],
    "timestamp": [pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("us")],
    "decimal(1,0)": [pa.decimal128(1, 0), pa.decimal128(38, 0)],
    "decimal(12,2)": [pa.decimal128(12, 2), pa.decimal128(38, 2)],
    "decimal(18,18)": [pa.decimal128(18, 18), pa.decimal128(19, 18)],
    "decimal(19,0)": [pa.decimal128(19, 0), pa.decimal128(38, 0)],
    "decimal(27,9)": [pa.decimal128(27, 9)],
    "decimal(38,0)": [pa.decimal128(38, 0)],
    "decimal(38,18)": [pa.decimal128(38, 18)],
}
"""The Arrow types in which a declared type may come."""

VALUES = {
    "string": st.text() | st.text(max_size=8).map(lambda text: text * 9),
    "binary": st.binary() | st.binary(max_size=8).map(lambda data: data * 9),
    "boolean": st.booleans(),
    "smallint": st.sampled_from([-(2**15), -1, 0, 1, 2**15 - 1]) | st.integers(-(2**15), 2**15 - 1),
    "int": st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]) | st.integers(-(2**31), 2**31 - 1),
    "bigint": st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1),
    "float": st.sampled_from([-0.0, 0.0, math.nan, math.inf, 2.0**-149]) | st.floats(width=32),
    "double": st.sampled_from([-0.0, 0.0, math.nan, -math.inf, 5e-324]) | st.floats(),
    "date": st.dates(),
    "timestamp": st.sampled_from([datetime.min, datetime(1969, 12, 31, 23, 59, 59, 999999), datetime.max]).map(
        lambda at: at.replace(tzinfo=UTC)
    )
    | st.datetimes(timezones=st.just(UTC)),
}


def decimals(kind):
    digits, scale = map(int, kind.removeprefix("decimal(").removesuffix(")").split(","))
    most = 10**digits - 1
    powers = [sign * 2**bits - less for bits in range(127) for sign in (1, -1) for less in (0, 1)]
    edges = st.sampled_from([n for n in (most, -most, *powers) if -most <= n <= most])
    return (edges | st.integers(-most, most)).map(lambda n: Decimal(f"{n}e-{scale}"))


VALUES |= {kind: decimals(kind) for kind in ARROW if kind.startswith("decimal")}


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


@st.composite
def slices(draw, kinds):
    """Columns, a batch whose arrays begin and end anywhere in their buffers, and its rows."""
    columns = [parse_columns(f"c{n} {kind}")[0] for n, kind in enumerate(kinds)]
    count = draw(st.integers(0, 20))
    arrays, cells = [], []
    for column in columns:
        before, after = draw(st.integers(0, 17)), draw(st.integers(0, 3))
        value = VALUES[str(column.type)]
        if draw(st.booleans()):
            value = value | st.none()
        total = before + count + after
        values = draw(st.lists(value, min_size=total, max_size=total))
        arrays.append(array_of(values, draw(st.sampled_from(ARROW[str(column.type)]))).slice(before, count))
        cells.append(values[before : before + count])
    batch = pa.record_batch(arrays, [c.name for c in columns])
    return columns, batch, list(zip(*cells, strict=True))


@pytest.mark.parametrize(("row", "expected"), list(zip(ROWS, VECTORS, strict=True)))
def test_vectors(row, expected):
    assert row_hash(COLUMNS, row) == expected
    assert batch_checksum(COLUMNS, batch_of(COLUMNS, [row])) == expected


def test_a_batch_sums_the_vectors():
    assert batch_checksum(COLUMNS, batch_of(COLUMNS, ROWS)) == sum(VECTORS) % MODULUS


@pytest.mark.parametrize("kind", ARROW)
@given(data=st.data())
def test_a_batch_of_one_column_sums_the_hashes_of_its_rows(kind, data):
    columns, batch, rows = data.draw(slices([kind]))
    assert batch_checksum(columns, batch) == expected_sum(columns, rows)


@given(st.lists(st.sampled_from(sorted(ARROW)), min_size=2, max_size=6).flatmap(slices), st.integers(0, 20))
def test_a_batch_sums_the_hashes_of_its_rows_also_in_parts(made, cut):
    columns, batch, rows = made
    assert batch_checksum(columns, batch) == expected_sum(columns, rows)
    parts = batch_checksum(columns, batch.slice(0, cut)) + batch_checksum(columns, batch.slice(cut))
    assert parts % MODULUS == expected_sum(columns, rows)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_every_length_up_to_four_stripes_of_xxh64(kind):
    columns = parse_columns("a binary")
    cells = [bytes(range(7, 7 + length)) for length in range(129)]
    batch = pa.record_batch([pa.array(cells, kind)], ["a"])
    for length, cell in enumerate(cells):
        assert batch_checksum(columns, batch.slice(length, 1)) == row_hash(columns, [cell])
    assert batch_checksum(columns, batch) == expected_sum(columns, [[cell] for cell in cells])


@given(st.integers(-(10**38) + 1, 10**38 - 1))
@example(0)
@example(-1)
@example(10**38 - 1)
@example(-(2**63))
@example(2**63)
@example(-(2**64))
@example(2**64 - 1)
def test_long_decimals_in_a_batch(unscaled):
    columns = parse_columns("a decimal(38,5)")
    rows = [[Decimal(f"{unscaled}e-5")]]
    assert batch_checksum(columns, batch_of(columns, rows)) == row_hash(columns, *rows)


@given(st.sampled_from([0, 2**63]), st.integers(1, 2**52 - 1))
def test_every_nan_counts_as_one(sign, payload):
    columns = parse_columns("d double")
    bits = sign | 0x7FF << 52 | payload
    (value,) = struct.unpack("<d", struct.pack("<Q", bits))
    batch = pa.record_batch([pa.array(np.array([bits], np.uint64).view(np.float64))], ["d"])
    assert batch_checksum(columns, batch) == row_hash(columns, [value]) == row_hash(columns, [math.nan])


@given(st.sampled_from([0, 2**31]), st.integers(1, 2**23 - 1))
def test_every_nan_of_four_bytes_counts_as_one(sign, payload):
    columns = parse_columns("f float")
    bits = sign | 0xFF << 23 | payload
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    batch = pa.record_batch([pa.array(np.array([bits], np.uint32).view(np.float32))], ["f"])
    assert batch_checksum(columns, batch) == row_hash(columns, [value]) == row_hash(columns, [math.nan])


@pytest.mark.parametrize("kind", ARROW)
def test_what_lies_under_a_null_does_not_count(kind):
    columns = parse_columns(f"a {kind}")
    arrow = ARROW[kind][-1]
    junk = [pa.py_buffer(b"\xa5" * 64)]
    if str(arrow).endswith(("string", "binary")):
        junk = [pa.py_buffer(struct.pack("<4q", 0, 7, 14, 21)), *junk]
    array = pa.Array.from_buffers(arrow, 3, [pa.py_buffer(b"\0"), *junk])
    batch = pa.record_batch([array], ["a"])
    assert batch_checksum(columns, batch) == expected_sum(columns, [[None]] * 3)


def test_arrays_of_nulls_and_of_empty_strings_have_no_data():
    columns = parse_columns("a string")
    nulls = pa.nulls(9, pa.string())
    assert batch_checksum(columns, pa.record_batch([nulls], ["a"])) == expected_sum(columns, [[None]] * 9)
    empty = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(bytes(12)), pa.py_buffer(b"")])
    assert batch_checksum(columns, pa.record_batch([empty], ["a"])) == expected_sum(columns, [[""]] * 2)


def test_buffers_that_are_not_aligned():
    columns = parse_columns("a bigint, b int, c string")
    data = struct.pack("<x2q2i3i", 2**40, -1, 7, -7, 0, 4, 9) + b"fourfives"
    buffer = pa.py_buffer(data)
    arrays = [
        pa.Array.from_buffers(pa.int64(), 2, [None, buffer.slice(1, 16)]),
        pa.Array.from_buffers(pa.int32(), 2, [None, buffer.slice(17, 8)]),
        pa.Array.from_buffers(pa.string(), 2, [None, buffer.slice(25, 12), buffer.slice(37)]),
    ]
    batch = pa.record_batch(arrays, ["a", "b", "c"])
    assert batch_checksum(columns, batch) == expected_sum(columns, [(2**40, 7, "four"), (-1, -7, "fives")])


def test_columns_are_found_by_name_and_others_left_out():
    columns = parse_columns("a int, b string")
    batch = pa.record_batch([["x"], pa.array([0.5]), pa.array([1], pa.int32())], ["b", "_other", "a"])
    assert batch_checksum(columns, batch) == row_hash(columns, [1, "x"])
    with pytest.raises(KeyError):
        batch_checksum(parse_columns("a int, c int"), batch)


def test_no_columns_and_no_rows():
    batch = batch_of(COLUMNS, ROWS)
    assert batch_checksum([], batch) == 42 * len(ROWS)
    assert batch_checksum(COLUMNS, batch.slice(1, 0)) == 0


@pytest.mark.parametrize(
    ("declared", "arrow"),
    [
        ("int", pa.int64()),
        ("bigint", pa.int32()),
        ("double", pa.float32()),
        ("string", pa.binary()),
        ("string", pa.string_view()),
        ("string", pa.dictionary(pa.int32(), pa.string())),
        ("string", pa.null()),
        ("date", pa.date64()),
        ("timestamp", pa.timestamp("ns")),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("decimal(12,2)", pa.decimal128(12, 3)),
        ("decimal(12,2)", pa.decimal256(12, 2)),
    ],
)
def test_another_arrow_type_than_declared_is_refused(declared, arrow):
    with pytest.raises(TypeError, match="column a "):
        batch_checksum(parse_columns(f"a {declared}"), pa.record_batch([pa.nulls(1, arrow)], ["a"]))


@pytest.mark.parametrize("unscaled", [2**63, -(2**63) - 1, 10**38 - 1])
def test_a_short_decimal_of_more_than_64_bits_is_refused(unscaled):
    columns = parse_columns("a decimal(12,2)")
    value = Decimal(f"{unscaled}e-2")
    batch = pa.record_batch([pa.array([None, value], pa.decimal128(38, 2))], ["a"])
    with pytest.raises(OverflowError):
        row_hash(columns, [value])
    with pytest.raises(OverflowError):
        batch_checksum(columns, batch)
    assert batch_checksum(columns, batch.slice(0, 1)) == row_hash(columns, [None])


def test_a_reader_that_loses_rows_is_refused():
    from ratchet.sinks.xxh64 import link

    with pytest.raises(ValueError, match="1 values for 2 rows"):
        link(np.zeros(2, np.uint64), np.empty(0, np.uint8), 0, Fixed(np.zeros(1, np.int64)))


def run_apart(code, **settings):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_who_hashes_rows_does_not_wait_for_the_compiler():
    code = """
import sys
from ratchet.sinks.checksum import row_hash
from ratchet.spec.columns import parse_columns
row_hash(parse_columns("a int"), [7])
print("numba" in sys.modules)
"""
    assert run_apart(code) == "False"


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    code = """
import pyarrow as pa
from ratchet.sinks.checksum import batch_checksum
from ratchet.spec.columns import parse_columns
print(batch_checksum(parse_columns("a string"), pa.record_batch([["ratchet"]], ["a"])))
"""
    (tmp_path / "file").touch()
    settings = {
        "NUMBA_CACHE_DIR": str(tmp_path / "file" / "below"),
        "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator",
    }
    assert run_apart(code, **settings) == str(0x32DBCD585E2CCC69)


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
