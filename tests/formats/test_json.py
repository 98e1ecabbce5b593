"""What JSON values mean: real data that was once misread, what would be guessed or rounded, and what is said of it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from ratchet.formats.json_decoder import JsonDecoder
from ratchet.formats.missing import nearest
from ratchet.formats.port import NoRow
from ratchet.spec.columns import parse_columns
from ratchet.values.unfit import EXCERPT


def rows(columns: str, value: bytes, form: str = "object") -> list[tuple]:
    """The rows of a value, by its own reading and among many; an AssertionError with its error if it has one."""
    form = JsonDecoder(parse_columns(columns), form)
    for values in ([value], [b"[]" if form._rows == "array" else b"{}"] * 30 + [value]):
        decoded = form.decode(pa.array(values, pa.binary()))
        error = decoded.errors[len(values) - 1].as_py()
        assert error is None, error
    found = form.decode(pa.array([value], pa.binary())).columns
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def error(columns: str, value: bytes, form: str = "object") -> str:
    decoded = JsonDecoder(parse_columns(columns), form).decode(pa.array([value, value], pa.binary()))
    assert decoded.columns.num_rows == 0
    said, again = decoded.errors.to_pylist()
    assert said == again is not None
    return said


TEN = datetime(2024, 5, 1, 10, tzinfo=UTC)
REAL = [
    ("orderId bigint, customerName string", b'{"orderId":1,"customerName":"a"}', [(1, "a")]),
    (
        "payload string",
        b'{"id":1,"payload":{"price":12345678901234.56789,"qty":100000000.0}}',
        [('{"price":12345678901234.56789,"qty":100000000.0}',)],
    ),
    ("payload string", b'{"id":2,"payload":5.10}', [("5.10",)]),
    (
        "id bigint, amount decimal(12,2)",
        b'{"id":1,"amount":12.50,"discount":{"amount":"10%"}}',
        [(1, Decimal("12.50"))],
    ),
    ("at timestamp", b'{"at":"2024-05-01T10:00Z"}', [(TEN,)]),
    ("at timestamp", b'{"at":"2024-05-01 10:00:00+00"}', [(TEN,)]),
    ("at timestamp(millis)", b'{"at":1714557600000}', [(TEN,)]),
]


@pytest.mark.parametrize(("columns", "value", "expected"), REAL)
def test_real_data_that_was_once_misread(columns, value, expected):
    assert rows(columns, value) == expected


def test_an_array_of_objects_is_rows_where_the_spec_says_so():
    assert rows("id bigint", b'[{"id":1},{"id":2}]', "array") == [(1,), (2,)]
    assert error("id bigint", b'[{"id":1},{"id":2}]').startswith("the value: found [{")
    assert error("id bigint", b'[{"id":1},{"id":"x"}]', "array") == 'row 1, column id: found "x", wanted bigint'


@pytest.mark.parametrize("behind", [b'{"id":1}', b"\x02\x06abc"])
def test_the_framing_of_a_schema_registry_is_named(behind):
    said = error("id bigint", b"\x00\x00\x00\x00\x07" + behind)
    assert (
        said == "the value: found a schema registry's framing (five bytes in front, schema 7), wanted one JSON object"
    )


@pytest.mark.parametrize("name", ["@timestamp", "_id", "user-id", "orderId", "a.b", "", 'say "hi"', "größe"])
def test_names_are_matched_exactly(name):
    quoted = '"' + name.replace('"', '""') + '"'
    said = json.dumps({name.upper() + "!": 6, name: 5}).encode()
    assert rows(f"x int from {quoted}", said) == [(5,)]


def test_names_that_differ_only_in_case_are_two_fields():
    assert rows("id int, other int from ID", b'{"ID": 2, "id": 1}') == [(1, 2)]
    assert rows("id int", b'{"ID": 2}') == [(None,)]


PATHS = [
    ("a int from o.a", b'{"o": {"a": 1}}', [(1,)]),
    ("a int from o.a", b'{"o": null}', [(None,)]),
    ("a int from o.a", b"{}", [(None,)]),
    (
        "a int from o.p.a, b int from o.b, o json",
        b'{"o": {"b": 2, "p": {"a": 1}}}',
        [(1, 2, '{"b": 2, "p": {"a": 1}}')],
    ),
    ("a int from o.a, b string from o.a", b'{"o": {"a": 1}}', [(1, "1")]),
    ("a int, b string from a", b'{"a": 7}', [(7, "7")]),
    ("a int from o.a", b'{"o": {"a": 1}, "o": {"b": 2}}', [(None,)]),
]


@pytest.mark.parametrize(("columns", "value", "expected"), PATHS)
def test_a_value_from_a_path(columns, value, expected):
    assert rows(columns, value) == expected


def test_a_path_through_what_is_no_object_is_an_error():
    assert error("a int from o.a", b'{"o": 5}') == "column a: found 5, wanted an object with a"
    assert error("a int from o.p.a", b'{"o": {"p": [1]}}') == "column a: found [1], wanted an object with a"


def test_of_doubled_names_the_last_wins_whatever_the_first_was():
    assert rows("a int, j json", b'{"a": "x", "a": 2, "j": {"k": 1, "k": 2}}') == [(2, '{"k": 2}')]


def test_a_field_of_another_object_never_spoils_a_declared_one():
    value = b'{"a": 1, "x": {"a": "no", "d": "1e99999"}, "y": [{"a": 1.5}], "d": 1.50}'
    assert rows("a int, d decimal(4,2)", value) == [(1, Decimal("1.50"))]


WRONG = {
    b'{"x": 1e999}': "column x: found 1e999, wanted a finite double",
    b'{"x": "NaN"}': 'column x: found "NaN", wanted double',
    b'{"x": NaN}': "the value: found {",
    b'{"f": 3.4028236e38}': "column f: found 3.4028236e38, wanted a finite float",
    b'{"d": 1.239}': "column d: found 1.239, wanted decimal(10,2)",
    b'{"w": 1e99999999}': "column w: found 1e99999999, wanted",
    b'{"w": "1e-99999999"}': "column w: found ",
    b'{"d": "12,50"}': 'column d: found "12,50", wanted decimal(10,2)',
    b'{"d": "1_000"}': 'column d: found "1_000"',
    b'{"d": "NaN"}': 'column d: found "NaN"',
    b'{"d": "1.5\\n"}': "column d: found ",
    '{"d": "\u0661.\u0665"}'.encode(): "column d: found ",
    b'{"d": 1e-999}': "column d: found 1e-999",
    b'{"d": true}': "column d: found true",
    b'{"w": 1.0000000000000000000000000000000000000001}': "column w: found ",
    b'{"n": ' + b"9" * 39 + b"}": "column n: found ",
    b'{"n": ' + b"9" * 5000 + b"}": "column n: found ",
    b'{"i": 1.5}': "column i: found 1.5, wanted int",
    b'{"i": 1.0}': "column i: found 1.0, wanted int",
    b'{"i": 1e2}': "column i: found 1e2, wanted int",
    b'{"i": "5"}': 'column i: found "5", wanted int',
    b'{"i": true}': "column i: found true, wanted int",
    b'{"i": 3000000000}': "column i: found 3000000000, wanted int",
    b'{"i": ' + b"9" * 5000 + b"}": "column i: found 999",
    b'{"l": 9223372036854775808}': "column l: found 9223372036854775808, wanted bigint",
    b'{"t": 1500000000}': "column t: found 1500000000, wanted timestamp",
    b'{"t": "T10:00"}': 'column t: found "T10:00", wanted timestamp',
    b'{"t": "2013-01-01"}': 'column t: found "2013-01-01", wanted timestamp',
    b'{"t": "2013-01-01T10:00:00Z\\n"}': "column t: found ",
    b'{"t": "2013-01-01T24:00:00Z"}': "column t: found ",
    b'{"t": "0000-01-01T00:00:00Z"}': "column t: found ",
    b'{"t": "0001-01-01T00:00:00+01:00"}': "column t: found ",
    b'{"t": "9999-12-31T23:30:00-01:00"}': "column t: found ",
    b'{"ts": "2013-01-01T10:00:00.123456789Z"}': "column ts: found 2013-01-01T10:00:00.123456789Z, wanted",
    b'{"y": "2013-02-30"}': 'column y: found "2013-02-30", wanted date',
    b'{"y": "2013-2-3"}': "column y: found ",
    b'{"y": "2013-02-03T10"}': "column y: found ",
    b'{"s": "a\\u0000b"}': "column s: found text with U+0000, wanted string",
    b'{"j": {"a": "\\u0000"}}': "column j: found text with U+0000, wanted json",
    b'{"j": 1e200000}': "column j: found 1e200000, wanted json with numbers that PostgreSQL's numeric can hold",
    b'{"s": "\\ud800"}': "the value: found half of a surrogate pair",
    b'{"other": "\\udc00"}': "the value: found half of a surrogate pair",
    b'{"other": "\xff"}': "the value: found invalid UTF-8 at byte 11",
    rb'{"s": "\\\ud800"}': "the value: found half of a surrogate pair",
    b'{"i": 1} trailing': "the value: found {",
    b'{"i": 1}{"i": 2}': "the value: found {",
    b'\xef\xbb\xbf{"i": 1}': "the value: found ",
    b'{"a": 01}': "the value: found ",
    b"{'a': 1}": "the value: found ",
    b"": "the value: found nothing, wanted one JSON object",
    b'{"u": "550e8400"}': 'column u: found "550e8400", wanted uuid',
    b'{"c": "10:00Z"}': 'column c: found "10:00Z", wanted time',
    b'{"b": "QUJD="}': "column b: found ",
    b'{"b": "-_-_"}': "column b: found ",
    b'{"as": [1, 2.5]}': "column as[1]: found 2.5, wanted int",
    b'{"as": 5}': "column as: found 5, wanted array<int>",
    b'{"st": {"a": [{"b": "x"}]}}': 'column st.a[0].b: found "x", wanted int',
    b'{"st": {}}': "column st.a: found nothing, wanted array<struct<b: int>> not null",
    b'{"m": {"k": 1}}': "column m['k']: found 1, wanted boolean",
}
COLUMNS = (
    "x double, f float, d decimal(10,2), w decimal(38,10), n decimal(38,0), i int, l bigint, t timestamp, "
    "ts timestamp strict, y date, s string, j json, u uuid, c time, b binary, as array<int>, "
    "st struct<a: array<struct<b: int>> not null>, m map<string, boolean>"
)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize(("value", "said"), WRONG.items(), ids=lambda v: repr(v)[:40])
def test_what_would_be_guessed_rounded_or_hung_on_is_an_error(value, said):
    assert error(COLUMNS, value).startswith(said)


RIGHT = [
    ("w decimal(38,10)", b'{"w": 1234567890123456789.0123456789}', Decimal("1234567890123456789.0123456789")),
    ("w decimal(38,10)", b'{"w": 1000e-13}', Decimal("1E-10")),
    ("w decimal(38,10)", b'{"w": 0e-50}', Decimal(0)),
    ("w decimal(38,10)", b'{"w": 0e999}', Decimal(0)),
    ("n decimal(38,0)", b'{"n": ' + b"9" * 38 + b".000}", Decimal("9" * 38)),
    ("n decimal(38,0)", b'{"n": 5000e-3}', Decimal(5)),
    ("d decimal(10,2)", b'{"d": 0.0000000000000000000000000000001e30}', Decimal("0.10")),
    ("d decimal(10,2)", b'{"d": "+12.50"}', Decimal("12.50")),
    ("s string", b'{"s": "\\ud83d\\ude00 \\\\ud800"}', "\U0001f600 \\ud800"),
    ("s string", rb'{"s": "\\\\ud800"}', "\\\\ud800"),
    ("s string", rb'{"s": "\\\ud83d\ude00"}', "\\\U0001f600"),
    ("s string", b'{"s": [ 1,\n 2.0 ] }', "[ 1,\n 2.0 ]"),
    ("s string", b'{"s": "\\u0041"}', "A"),
    ("s string", b'{"s": {"a":"\\u0000"}}', '{"a":"\\u0000"}'),
    ("s string", b'{"s": true}', "true"),
    ("s string", b'{"s": null}', None),
    ("j json", b'{"j": null}', None),
    ("j json", b'{"j": "x"}', '"x"'),
    ("x double", b'{"x": 1}', 1.0),
    ("f float", b'{"f": 16777217.0000001}', 16777218.0),
    ("f float", b'{"f": 16777217}', 16777216.0),
    ("f float", b'{"f": 3.40282356779733661637e38}', float(np.finfo(np.float32).max)),
    ("i int", b'{"i": -2147483648}', -(2**31)),
    ("y date", b'{"y": "0001-01-01"}', date(1, 1, 1)),
    ("u uuid", b'{"u": "550E8400E29B41D4A716446655440000"}', "550e8400-e29b-41d4-a716-446655440000"),
    ("c time", b'{"c": "23:59:59.9999999"}', "23:59:59.999999"),
    ("c time", b'{"c": "07:30"}', "07:30:00.000000"),
    ("b binary", b'{"b": "QUJD\\r\\nQQ=="}', b"ABCA"),
    ("a array<string>", b'{"a": ["x", null, 5.10]}', ["x", None, "5.10"]),
    ("m map<string, int>", b'{"m": {"b": 1, "a": null}}', [("b", 1), ("a", None)]),
    ("o struct<a: int, b: string>", b'{"o": {"b": {"k":1.0}, "x": 1}}', {"a": None, "b": '{"k":1.0}'}),
]


@pytest.mark.parametrize(("columns", "value", "expected"), RIGHT, ids=lambda v: str(v)[:40])
def test_what_a_value_means(columns, value, expected):
    assert rows(columns, value) == [(expected,)]


def test_an_error_shows_at_most_200_characters_and_the_fast_way_says_the_same():
    value = b'{"i": "' + b"x" * 5000 + b'"}'
    said = error("i int", value)
    assert said == 'column i: found "' + "x" * (EXCERPT - 1) + "…, wanted int"
    with pytest.raises(NoRow) as raised:
        JsonDecoder(parse_columns("i int")).read(value)
    assert str(raised.value) == said


def test_not_null():
    assert error("a int not null", b"{}") == "column a: found nothing, wanted int not null"
    assert error("a int not null", b'{"a": null}') == "column a: found null, wanted int not null"


def test_a_field_that_no_value_has_is_told_with_the_names_beside_it():
    form = JsonDecoder(parse_columns("order_id int, name string from customer.name, a int, n int"))
    values = [b'{"orderId": 1, "customer": {"Name": "x"}, "a": null, "\\u006e": 1}'] * 3
    decoded = form.decode(pa.array([*values, b"{", b'{"order_id": "bad"}'], pa.binary()))
    assert decoded.found == {"a", "n"}
    assert decoded.beside == {"order_id": frozenset({"orderId", "customer", "a", "n"}), "name": frozenset({"Name"})}
    assert nearest("order_id", decoded.beside["order_id"])[0] == "orderId"
    nothing = form.decode(pa.array([b"{"], pa.binary()))
    assert (nothing.found, nothing.beside) == (frozenset(), {})


def test_cut_digits_are_counted():
    form = JsonDecoder(parse_columns("t timestamp, u timestamp(nanos), c time, l array<timestamp>"))
    values = [
        b'{"t": "2024-05-01T10:00:00.123456789Z"}',
        b'{"t": "2024-05-01T10:00:00.123456000Z"}',
        b'{"t": "2024-05-01T10:00:00.123456789+02"}',
        b'{"u": 1714557600000000001, "c": "10:00:00.1234567"}',
        b'{"u": 1714557600000000000, "l": ["2024-05-01T10:00:00.1234567Z", "2024-05-01T10:00:00.1Z"]}',
        b'{"t": "2024-05-01T10:00:00.123456789Z", "u": "bad"}',
    ]
    decoded = form.decode(pa.array(values, pa.binary()))
    assert decoded.cut == 5 and decoded.errors.null_count == 5
    assert decoded.columns.column("t").to_pylist()[0] == datetime(2024, 5, 1, 10, 0, 0, 123456, tzinfo=UTC)


def test_brackets_within_each_other_have_a_limit_that_does_not_move():
    for inside, outside in ((b"[", b"]"), (b'{"x":', b"}")):
        for name in (b"j", b"other"):
            value = b'{"%s": %s0%s}' % (name, inside * 499, outside * 499)
            assert len(rows("j json", value)) == 1
            deeper = b'{"%s": %s0%s}' % (name, inside * 500, outside * 500)
            assert error("j json", deeper).startswith("the value: found more than 500 brackets within each other")
    # Brackets in a text are none.
    assert rows("s string", b'{"s": "%s"}' % (b"[" * 2_000)) == [("[" * 2_000,)]
