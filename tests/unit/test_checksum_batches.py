"""The checksum of a batch is the sum of the hashes of its rows, in whatever Arrow arrays they come."""

import math
import os
import struct
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratchet.sinks.buffers import Fixed
from ratchet.sinks.checksum import MODULUS, batch_checksum, row_hash
from ratchet.spec.columns import parse_columns

from .test_checksum import COLUMNS, ROWS, array_of, batch_of, expected_sum

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
