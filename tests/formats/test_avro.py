"""Avro: what fastavro has written comes back as it was, and what is none of its schema does not come back."""

import json
import struct
from datetime import UTC, datetime, time
from decimal import Context, Decimal
from io import BytesIO
from uuid import UUID

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet import Avro
from ratchet.formats.avro_decoder import AvroDecoder, Written
from ratchet.formats.avro_schema import reader_of, schema_of
from ratchet.formats.port import Use
from ratchet.formats.walked import OneSchema
from ratchet.spec.columns import parse_columns

from .conformance import rows_of

INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
MOMENTS = st.datetimes(timezones=st.just(UTC))
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))


def decimals(digits: int, places: int):
    return st.integers(-(10**digits) + 1, 10**digits - 1).map(lambda n: Decimal(n).scaleb(-places, Context(prec=60)))


def logical(of: str, kind: str, **more) -> dict:
    return {"type": of, "logicalType": kind, **more}


def millis(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


# Name: (type in Avro, type of the column, values, what the column has of one).
KINDS = {
    "boolean": ("boolean", "boolean", st.booleans(), None),
    "int": ("int", "int", INTS, None),
    "long": ("long", "bigint", LONGS, None),
    "long as decimal": ("long", "decimal(19,0)", LONGS, Decimal),
    "float": ("float", "float", st.floats(width=32, allow_nan=False), None),
    "double": ("double", "double", st.floats(allow_nan=False), None),
    "bytes": ("bytes", "binary", st.binary(), None),
    "fixed": ({"type": "fixed", "name": "Five", "size": 5}, "binary", st.binary(min_size=5, max_size=5), None),
    "string": ("string", "string", TEXTS, None),
    "enum": ({"type": "enum", "name": "E", "symbols": ["x", "y"]}, "string", st.sampled_from("xy"), None),
    "decimal": (logical("bytes", "decimal", precision=38, scale=10), "decimal(38,10)", decimals(38, 10), None),
    "fixed decimal": (
        logical("fixed", "decimal", name="D", size=9, precision=20, scale=2),
        "decimal(20,2)",
        decimals(20, 2),
        None,
    ),
    "date": (logical("int", "date"), "date", st.dates(), None),
    "time": (logical("long", "time-micros"), "time", st.times(), lambda t: t.isoformat("microseconds")),
    "time in ms": (
        logical("int", "time-millis"),
        "time",
        st.times().map(millis),
        lambda t: t.isoformat("microseconds"),
    ),
    "moment": (logical("long", "timestamp-micros"), "timestamp", MOMENTS, None),
    "moment in ms": (logical("long", "timestamp-millis"), "timestamp", MOMENTS.map(millis), None),
    "local": (logical("long", "local-timestamp-micros"), "timestamp", st.datetimes(), lambda t: t.replace(tzinfo=UTC)),
    "uuid": (logical("string", "uuid"), "uuid", st.uuids(), str),
    "nullable": (["null", "int"], "int", st.none() | INTS, None),
    "several": (["null", "string", "long"], "json", st.none() | INTS, lambda n: None if n is None else str(n)),
    "array": ({"type": "array", "items": "int"}, "array<int>", st.lists(INTS), None),
    "map": ({"type": "map", "values": "long"}, "map<string, bigint>", st.dictionaries(TEXTS, LONGS), dict.items),
    "record": (
        {"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]},
        "struct<a: int, b: string>",
        st.fixed_dictionaries({"a": INTS, "b": TEXTS}),
        None,
    ),
}


def record(*kinds) -> dict:
    """A schema with fields f0, f1, … of these types."""
    return {"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": kind} for i, kind in enumerate(kinds)]}


def written(schema: dict, value: object) -> bytes:
    into = BytesIO()
    schemaless_writer(into, parse_schema(schema), value)
    return into.getvalue()


def decoded(columns: str, schema: dict | str, *values: bytes):
    """([rows or None], [error or None]) of these values."""
    decoder = Avro(columns, schema=schema if isinstance(schema, str) else json.dumps(schema)).decoder(Use())
    found = decoder.decode(pa.array(values, pa.binary()))
    return rows_of(found, len(values)), found.errors.to_pylist()


def number(n: int) -> bytes:
    """A number as Avro writes it."""
    n, out = (n << 1) ^ (n >> 63), b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def comparable(cell: object) -> object:
    return str(cell) if isinstance(cell, time | UUID) else list(cell) if isinstance(cell, type({}.items())) else cell


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_was_written_comes_back_exactly(data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=6, unique=True))
    schema = record(*(KINDS[kind][0] for kind in kinds))
    columns = ", ".join(f"f{i} {KINDS[kind][1]}" for i, kind in enumerate(kinds))
    row = st.tuples(*(KINDS[kind][2] for kind in kinds))
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    sent = [written(schema, {f"f{i}": cell for i, cell in enumerate(row)}) for row in rows]
    found, errors = decoded(columns, schema, *sent)
    shown = [KINDS[kind][3] or (lambda cell: cell) for kind in kinds]
    expected = [[tuple(comparable(show(cell)) for show, cell in zip(shown, row, strict=True))] for row in rows]
    assert errors == [None] * len(rows)
    assert [[tuple(map(comparable, row)) for row in of] for of in found] == expected


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_bytes_are_a_row_or_an_error(data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))
    schema = record(*(KINDS[kind][0] for kind in kinds))
    columns = ", ".join(f"f{i} {KINDS[kind][1]}" for i, kind in enumerate(kinds))
    good = written(schema, {f"f{i}": data.draw(KINDS[kind][2]) for i, kind in enumerate(kinds)})
    spoilt = data.draw(st.binary(max_size=40)) if not good else _spoilt(data, good)
    (rows,), (error,) = decoded(columns, schema, spoilt)
    assert (rows is None) == (error is not None)
    if rows is not None:
        # What is taken has been read to its last byte: cut short, it is none.
        assert not spoilt or decoded(columns, schema, spoilt[:-1])[0] == [None]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_columns_that_are_read_at_once_are_what_the_definition_says(data):
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4, unique=True))
    wanted = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=len(kinds), max_size=len(kinds)))
    schema = record(*(KINDS[kind][0] for kind in kinds))
    columns = parse_columns(", ".join(f"f{i} {KINDS[kind][1]}" for i, kind in enumerate(wanted)))
    row = st.tuples(*(KINDS[kind][2] for kind in kinds))
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    sent = [written(schema, {f"f{i}": cell for i, cell in enumerate(row)}) for row in rows]
    sent.insert(data.draw(st.integers(0, len(sent))), data.draw(st.binary(max_size=9)))
    parsed = schema_of(json.dumps(schema))
    values = pa.array(sent, pa.binary())
    # Beside a reader's schema each value is an object first.
    at_once, one_by_one = (
        AvroDecoder(columns, OneSchema(Written(parsed, reader, columns))).decode(values)
        for reader in (None, reader_of(json.dumps(schema)))
    )
    assert at_once.errors.to_pylist() == one_by_one.errors.to_pylist()
    assert str(at_once.columns) == str(one_by_one.columns) and at_once.parents == one_by_one.parents
    assert (at_once.found, at_once.beside) == (one_by_one.found, one_by_one.beside)


@pytest.mark.parametrize("text", ["", "é", "€", "😀", "\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff"])
def test_texts_of_all_lengths_are_read(text):
    sent = number(len(text.encode())) + text.encode()
    assert decoded("f0 string", record("string"), sent)[0] == [[(text,)]]


@given(st.binary(max_size=6) | st.text(max_size=3).map(lambda text: text.encode() + b"\xf4\x90\x80\x80"))
def test_what_is_no_text_is_what_python_takes_for_none(sent):
    try:
        good = "\x00" not in sent.decode()
    except UnicodeDecodeError:
        good = False
    (rows,), _ = decoded("f0 string", record("string"), number(len(sent)) + sent)
    assert (rows is not None) == good


def _spoilt(data, good: bytes) -> bytes:
    at = data.draw(st.integers(0, len(good) - 1))
    return good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 2)) :]


def test_all_digits_of_a_decimal_are_kept_whatever_precision_its_schema_says():
    schema = record(logical("bytes", "decimal", precision=4, scale=2))
    sent = number(4) + (123456789).to_bytes(4, "big")
    assert decoded("f0 decimal(9,2)", schema, sent)[0] == [[(Decimal("1234567.89"),)]]
    assert decoded("f0 decimal(4,2)", schema, sent)[1] == ["column f0: found 1234567.89, wanted decimal(4,2)"]


@pytest.mark.parametrize(
    ("kind", "sent", "said"),
    [
        (["null", "int"], number(2), "a number that a union of 2 types does not have, at byte 0"),
        (["null", "int"], number(-1) + number(7), "a number that a union of 2 types does not have, at byte 0"),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, number(-1), "a number that E does not have, at byte 0"),
        ("boolean", b"\x02", "a boolean that is neither 0 nor 1, at byte 0"),
        ("int", number(2**31), "a number that int does not have, at byte 0"),
        ("long", b"\xff" * 9 + b"\x7f", "a number of more than 64 bits, at byte 0"),
        ("bytes", number(-3) + b"abc", "a length below 0, at byte 0"),
        ("bytes", number(3) + b"ab", "it ends too early, at byte 0"),
        ("int", number(3) + b"x", "bytes behind its end, at byte 1"),
        (logical("int", "time-millis"), number(-1), "a number that time-millis does not have, at byte 0"),
        (logical("int", "date"), number(3_000_000), "a number that date does not have, at byte 0"),
        (logical("long", "timestamp-millis"), number(2**60), "a number that timestamp-millis does not have"),
        ({"type": "array", "items": "null"}, number(2**40) + number(0), "more items than it has bytes, at byte 0"),
        ({"type": "array", "items": "int"}, number(-1) + number(2) + b"\x02\x00", "a block of another size than it"),
        ({"type": "array", "items": "int"}, number(-1) + number(99) + b"\x02\x00", "it ends too early"),
        ({"type": "map", "values": "int"}, number(1) + number(1) + b"\xff\x02\x00", "a text that is no UTF-8"),
    ],
)
def test_what_fastavro_would_bend_is_an_error_that_says_where(kind, sent, said):
    (rows,), (error,) = decoded("f1 int", record(kind), sent)
    assert rows is None and error.startswith("the value: found ") and said in error


LISTS = {"type": "record", "name": "N", "fields": [{"name": "f0", "type": {"type": "array", "items": "N"}}]}
MAPS = {"type": "record", "name": "N", "fields": [{"name": "f0", "type": {"type": "map", "values": "N"}}]}
CHAIN = {"type": "record", "name": "N", "fields": [{"name": "f0", "type": ["null", "N"]}]}


@pytest.mark.parametrize(
    ("schema", "down", "end", "up", "levels"),
    [
        (CHAIN, number(1), number(0), b"", 500),
        (LISTS, number(1), number(0), number(0), 250),
        (MAPS, number(1) + number(0), number(0), number(0), 250),
    ],
)
def test_records_within_each_other_have_a_limit_below_which_they_are_read(schema, down, end, up, levels):
    def sent(depth: int) -> bytes:
        return down * (depth - 1) + end + up * (depth - 1)

    values = [sent(levels), sent(levels + 1), sent(100_000)]
    _, errors = decoded("other int", schema, *values)
    assert errors[0] is None
    assert all("more than 500 records, arrays and maps within each other" in error for error in errors[1:])
    of = Written(schema_of(json.dumps(schema)), reader_of(json.dumps(schema)), ())
    assert isinstance(of.value(values[0]), dict), "resolved to a reader's schema"


LIST = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "long"}, {"name": "next", "type": ["null", "Node"]}],
}
TREE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "long"}, {"name": "kids", "type": {"type": "array", "items": "Node"}}],
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (LIST, {"v": 1, "next": {"v": 2, "next": {"v": 3, "next": None}}}),
        (TREE, {"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": []}]}),
    ],
)
def test_a_record_that_is_a_part_of_itself_has_its_own_fields(schema, value):
    rows, errors = decoded("v bigint", schema, written(schema, value), written(schema, value))
    assert (rows, errors) == ([[(1,)], [(1,)]], [None, None])


def test_a_block_that_says_its_size_is_read():
    sent = number(-2) + number(2) + number(5) + number(6) + number(0)
    assert decoded("f0 array<int>", record({"type": "array", "items": "int"}), sent)[0] == [[([5, 6],)]]


def test_of_a_name_that_a_map_has_twice_the_last_value_counts():
    sent = number(2) + (number(1) + b"k" + number(1)) + (number(1) + b"k" + number(2)) + number(0)
    found, _ = decoded("f0 map<string, int>", record({"type": "map", "values": "int"}), sent)
    assert [list(cell) for ((cell,),) in found] == [[("k", 2)]]


def test_no_number_is_a_value_of_a_float_and_an_error_within_json():
    sent = struct.pack("<d", float("nan"))
    (((cell,),),), _ = decoded("f0 double", record("double"), sent)
    assert cell != cell
    schema = record({"type": "record", "name": "I", "fields": [{"name": "x", "type": "double"}]})
    assert decoded("f0 json", schema, sent)[1] == ["column f0: found nan, wanted json"]


def test_a_type_that_is_not_known_is_the_number_under_it():
    moment = number(1714557600_123456789)
    schema = record(logical("long", "timestamp-nanos"))
    assert decoded("f0 timestamp(nanos)", schema, moment)[0] == [[(datetime(2024, 5, 1, 10, 0, 0, 123456, UTC),)]]
    assert decoded("f0 bigint", schema, moment)[0] == [[(1714557600_123456789,)]]
    assert decoded("f0 timestamp", schema, moment)[1] == ["column f0: found 1714557600123456789, wanted timestamp"]


def test_a_value_that_is_no_record_is_that_of_the_only_column():
    assert decoded("id string", '"string"', number(1) + b"x")[0] == [[("x",)]]
    assert decoded("id bigint", '["null", "long"]', number(0), number(1) + number(5))[0] == [[(None,)], [(5,)]]
    assert decoded("id bigint, b int", '"long"', number(5))[1] == ["the value: found 5, wanted one Avro record"]


def test_fields_are_found_by_paths_through_records_and_unions():
    schema = record(["null", {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}], "In")
    columns = "a int from f0.x, b int from f1.x, c int from f1.y"
    found = Avro(columns, schema=json.dumps(schema)).decoder(Use())
    made = found.decode(pa.array([b"\x00\x06", b"\x02\x04\x06"], pa.binary()))
    assert rows_of(made, 2) == [[(None, 3, None)], [(2, 3, None)]]
    assert made.found == {"a", "b"} and made.beside == {"c": frozenset({"x"})}


@pytest.mark.parametrize(("kind", "bits"), [("smallint", 16), ("int", 32)])
def test_a_number_that_the_column_does_not_hold_is_an_error(kind, bits):
    numbers = [2 ** (bits - 1) - 1, 2 ** (bits - 1), -(2 ** (bits - 1)), -(2 ** (bits - 1)) - 1]
    rows, errors = decoded(f"f0 {kind}", record("long"), *map(number, numbers))
    assert rows == [[(numbers[0],)], None, [(numbers[2],)], None]
    assert errors[1::2] == [f"column f0: found {n}, wanted {kind}" for n in numbers[1::2]]
