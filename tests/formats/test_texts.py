"""Columns from texts: whole columns are read as the definition reads each text."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet import Bytes, Text
from ratchet.formats.cells import Cells
from ratchet.formats.envelope import HEADERS as HEADERS_TYPE
from ratchet.formats.headers import last
from ratchet.formats.port import Use
from ratchet.formats.texts import vector
from ratchet.spec.columns import parse_columns
from ratchet.values.arrow import arrow_type
from ratchet.values.unfit import Unfit

from .test_objects import KINDS

DIGITS = st.from_regex(r"[-+]?[0-9]{1,20}(\.[0-9]{1,10})?([eE][-+]?[0-9]{1,4})?", fullmatch=True)
TEXTS = {
    "any": st.text(max_size=6),
    "digits": DIGITS,
    "whole": st.integers(-(2**66), 2**66).map(str) | st.integers(-9, 9).map(lambda n: f"{n:04}"),
    "floats": st.floats(allow_nan=False).map(repr) | st.floats(width=32).map(str),
    "odd": st.sampled_from(
        ["", "null", " 1", "1 ", "1\n", "0x1F", "1.", ".5", "-", "nan", "inf", "1e400", "-00", "007.5", "1_0", "٣"]
    ),
    "truth": st.sampled_from(["true", "false", "True", "t", "1"]),
    "days": st.dates().map(str) | st.sampled_from(["0000-01-01", "2023-02-29", "2024-5-1", "2024-05-01T"]),
    "times": st.times().map(str) | st.sampled_from(["24:00", "10:00"]),
    "moments": st.datetimes().map(lambda m: m.isoformat() + "Z")
    | st.sampled_from(["2024-05-01 10:00:00.123456789+02"]),
    "uuids": st.uuids().map(str),
    "json": st.sampled_from(["[1, null]", "{}", '{"a": 1}', '"x"', "[", " []", "[1.5]"]),
    "base64": st.sampled_from(["eA==", "eA=", "eA", "e A = ="]),
}
SENT = st.one_of(
    *(st.lists(st.none() | of.map(str.encode), max_size=6) for of in TEXTS.values()),
    st.lists(st.none() | st.binary(max_size=3) | st.one_of(*TEXTS.values()).map(str.encode), max_size=6),
)


def by_definition(kind, sent, base64):
    read, declined, cut = [], [], []
    for row, text in enumerate(sent):
        reader, cell = Cells(), None
        try:
            cell = None if text is None else reader.of_text(kind, text, base64=base64)
        except Unfit:
            declined.append(row)
        read.append(cell)
        cut += [row] * reader.cut
    return pa.array(read, arrow_type(kind)), declined, cut


@pytest.mark.parametrize("said", [*KINDS, "timestamp strict", "timestamp(micros) strict"])
@settings(max_examples=60, deadline=None)
@given(sent=SENT, base64=st.booleans(), begin=st.integers(0, 2))
@example(sent=[b"16777217", b"3.40282356e38", b"-0", b"-0e1", b"-0.0", b"1e-50", b"0.1"], base64=False, begin=0)
@example(sent=[b"2147483648", b"-2147483648", b"32768", None], base64=False, begin=0)
def test_a_column_that_is_read_at_once_is_what_the_definition_says(said, sent, base64, begin):
    ((column),) = parse_columns(f"c {said}")
    whole = vector(column.type, pa.array(sent, pa.binary()).slice(begin), base64=base64)
    sent = sent[begin:]
    expected, refused, cut = by_definition(column.type, sent, base64)
    declined = whole.declined.tolist()
    # What is declined is read by the definition; what is not must be what that says.
    assert set(declined) >= set(refused)
    kept = np.setdiff1d(np.arange(len(sent)), declined)
    assert str(whole.array.take(pa.array(kept))) == str(expected.take(pa.array(kept)))
    assert [row for row in whole.cut.tolist() if row in kept] == [row for row in cut if row in kept]
    assert whole.array.type == arrow_type(column.type) and len(whole.array) == len(sent)


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("string", [b"a", b""]),
        ("int", [b"1", b"-2", None]),
        ("bigint", [b"1", b"99999999999"]),
        ("double", [b"1", b"2.5e3"]),
        ("float", [b"0.1"]),
        ("boolean", [b"true", b"false"]),
        ("decimal(5,2)", [b"1.5", b"12"]),
        ("date", [b"2024-05-01"]),
        ("timestamp", [b"2024-05-01T10:00:00Z"]),
        ("timestamp(millis)", [b"1714557600123"]),
    ],
)
def test_usual_texts_are_not_declined(said, sent):
    ((column),) = parse_columns(f"c {said}")
    assert vector(column.type, pa.array(sent, pa.binary())).declined.tolist() == []


@pytest.mark.parametrize(("sent", "cell"), [(b"007", 7.0), (b"+1", 1.0), (b"-00.5", -0.5), (b"-00", 0.0)])
def test_a_float_may_have_zeros_and_a_plus_in_front_as_other_numbers_may(sent, cell):
    ((column),) = parse_columns("c double")
    assert str(Cells().of_text(column.type, sent)) == str(cell)


HEADERS = st.lists(
    st.none()
    | st.lists(st.tuples(st.sampled_from(["a", "b", "A"]), st.none() | st.binary(max_size=2)), max_size=4).map(
        lambda pairs: [{"key": key, "value": value} for key, value in pairs]
    ),
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(sent=HEADERS, begin=st.integers(0, 2))
def test_of_headers_of_one_name_the_last_counts(sent, begin):
    expected = [next((h["value"] for h in reversed(of or ()) if h["key"] == "a"), None) for of in sent[begin:]]
    assert last(pa.array(sent, HEADERS_TYPE).slice(begin), "a").to_pylist() == expected


@settings(max_examples=100, deadline=None)
@given(sent=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)))
def test_values_that_are_texts_or_bytes_come_back(sent):
    values = pa.array([text.encode() for text in sent], pa.binary())
    texts, whole = (declared.decoder(Use()).decode(values) for declared in (Text("line string"), Bytes("line binary")))
    assert texts.columns.column("line").to_pylist() == sent
    assert whole.columns.column("line").to_pylist() == values.to_pylist()
    assert not texts.errors.drop_null() and not whole.errors.drop_null()


@pytest.mark.parametrize(
    ("declared", "value", "error"),
    [
        ("line string", b"a\xff", "column line: found a\ufffd, which is not UTF-8, wanted string"),
        ("line string", b"a\x00", "column line: found text with U+0000, wanted string"),
        ("degrees double", b"", "column degrees: found an empty text, wanted double"),
        ("degrees double", b"21,5", "column degrees: found 21,5, wanted double"),
        ("doc json not null", b"null", "column doc: found null, wanted json not null"),
        ("at timestamp strict", b"2024-05-01T10:00:00.123456789Z", "no digits beyond microseconds"),
    ],
)
def test_a_text_that_is_none_of_its_columns_type_is_an_error(declared, value, error):
    (said,) = Text(declared).decoder(Use()).decode(pa.array([value], pa.binary())).errors.to_pylist()
    assert error in said


def test_digits_that_a_text_has_lost_are_counted():
    sent = pa.array([b"2024-05-01T10:00:00.123456789Z", b"2024-05-01T10:00:00Z", b"x"], pa.binary())
    decoded = Text("at timestamp").decoder(Use()).decode(sent)
    assert decoded.cut == 1 and decoded.errors.null_count == 2
