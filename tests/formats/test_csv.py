"""CSV: what Python's writer writes comes back, RFC 4180's own cases, and what is not in it is refused with a reason."""

import csv
import io

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ratchet import Csv
from ratchet.errors import SpecError
from ratchet.formats import csv_decoder
from ratchet.formats.port import Decoded, Use

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6)
ODD = st.text(st.sampled_from('",;\r\n a\\\t\u2028\ufeff'), max_size=6)
FIELDS = st.lists(st.lists(TEXT | ODD, min_size=3, max_size=3), max_size=6)


def decode(declared: Csv, *values: bytes) -> Decoded:
    return declared.decoder(Use()).decode(pa.array(values, pa.binary()))


def rows_of(decoded: Decoded) -> list[tuple]:
    return [tuple(row.values()) for row in decoded.columns.to_pylist()]


def written(rows, separator=",", end="\r\n", quoting=csv.QUOTE_MINIMAL) -> bytes:
    into = io.StringIO(newline="")
    csv.writer(into, delimiter=separator, lineterminator=end, quoting=quoting).writerows(rows)
    return into.getvalue().encode()


@settings(max_examples=150, deadline=None)
@given(
    rows=FIELDS,
    separator=st.sampled_from([",", ";", "\t", "|", "^", "\\", "]", "-"]),
    end=st.sampled_from(["\r\n", "\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
@example(rows=[["\ufeff", "a", ""]], separator=",", end="\n", quoting=csv.QUOTE_ALL)
def test_rows_that_pythons_writer_writes_come_back(rows, separator, end, quoting):
    # Python writes these two bare: a carriage return where lines end in a line feed, and a byte-order mark.
    bare = quoting == csv.QUOTE_MINIMAL
    assume(not bare or end == "\r\n" or not any("\r" in field for row in rows for field in row))
    assume(not bare or not any(row[0].startswith("\ufeff") for row in rows))
    whole = Csv("a string, b string, c string", rows="lines", separator=separator, null=None)
    assert rows_of(decode(whole, written(rows, separator, end, quoting))) == [tuple(row) for row in rows]
    swapped = [(row[2], row[0]) for row in rows]
    headed = Csv("c string, a string", rows="lines", separator=separator, null=None, header=True)
    assert rows_of(decode(headed, written([["a", "b", "c"], *rows], separator, end, quoting))) == swapped
    named = Csv("z string from c, x string from a", names="a,b,c", separator=separator, null=None)
    assert rows_of(decode(named, *(written([row], separator, end, quoting) for row in rows))) == swapped


TYPED = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.decimals(-999, 999, places=2),
    st.none() | st.dates(),
    st.none() | st.text(st.characters(categories=["L"]), min_size=1, max_size=4),
    st.none() | st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(TYPED, max_size=6))
def test_values_of_types_come_back_and_what_is_null_is_left_empty(rows):
    declared = Csv("i bigint, f double, c decimal(5,2), d date, s string, b boolean", rows="lines")
    said = [[str(cell).lower() if isinstance(cell, bool) else cell for cell in row] for row in rows]
    decoded = decode(declared, written(said))
    assert decoded.errors.to_pylist() == [None]
    assert rows_of(decoded) == rows


@settings(max_examples=300, deadline=None)
@given(
    values=st.lists(st.binary(max_size=5) | (ODD | TEXT).map(str.encode), max_size=6),
    rows=st.sampled_from(["line", "lines", "header"]),
    columns=st.sampled_from(["a string", "a string, b int", "a string, b string, c binary"]),
    null=st.sampled_from(["", None, "a"]),
    first=st.sampled_from([b"", b"a\n", b"b,a\r\n", b"a,b,c\n", b"a"]),
)
def test_what_is_read_at_once_is_what_the_definition_says(values, rows, columns, null, first):
    values = [first + value for value in values]
    declared = Csv(columns, rows="line" if rows == "line" else "lines", header=rows == "header", null=null)
    by_arrow = decode(declared, *values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_decoder, "_MOST", 0)  # so that no value is plainly CSV
        by_definition = decode(declared, *values)
    assert by_arrow.found == by_definition.found and by_arrow.beside == by_definition.beside
    assert by_arrow.columns == by_definition.columns
    assert by_arrow.parents == by_definition.parents and by_arrow.errors == by_definition.errors


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (b"aaa,bbb,ccc\r\nzzz,yyy,xxx\r\n", [("aaa", "bbb", "ccc"), ("zzz", "yyy", "xxx")]),
        (b"aaa,bbb,ccc\r\nzzz,yyy,xxx", [("aaa", "bbb", "ccc"), ("zzz", "yyy", "xxx")]),
        (b'"aaa","bbb","ccc"\r\nzzz,yyy,xxx', [("aaa", "bbb", "ccc"), ("zzz", "yyy", "xxx")]),
        (b'"aaa","b\r\nbb","ccc"\r\nzzz,yyy,xxx', [("aaa", "b\r\nbb", "ccc"), ("zzz", "yyy", "xxx")]),
        (b'"aaa","b""bb","ccc"', [("aaa", 'b"bb', "ccc")]),
        (b" aaa,b bb ,ccc", [(" aaa", "b bb ", "ccc")]),
    ],
)
def test_the_cases_of_rfc_4180(value, rows):
    assert rows_of(decode(Csv("a string, b string, c string", rows="lines"), value)) == rows


@pytest.mark.parametrize(
    ("sent", "null", "cell"),
    [("", "", None), ('""', "", ""), ("", None, ""), ("", r"\N", ""), (r"\N", r"\N", None), (r'"\N"', r"\N", r"\N")],
)
def test_null_is_told_from_an_empty_text(sent, null, cell):
    decoded = decode(Csv("a string, b int", null=null), f"{sent},1".encode())
    assert rows_of(decoded) == [(cell, 1)]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"1", "the value: found 1 field, wanted 2"),
        (b"1,2,3", "the value: found 3 fields, wanted 2"),
        (b"", "the value: found 1 field, wanted 2"),
        (b"1,x\n2,y", "the value: found 2 lines, wanted one line of CSV"),
        (b'1,"x', 'the value: found a quote that is not closed: "x, wanted one line of CSV'),
        (b'1,"x"y', "the value: found a closing quote with something behind it (within quotes, quotes are doubled):"),
        (rb'1,"a \"b\" c"', "the value: found a closing quote with something behind it (within quotes, quotes are"),
        (b'1, "x"', "the value: found a quote within a field without quotes, wanted one line of CSV"),
        (b"1,x\r2,y", "the value: found a carriage return alone, wanted one line of CSV"),
        (b"\xef\xbb\xbf1,x", "the value: found a byte-order mark in front, wanted one line of CSV"),
        (b"1,\xff", "the value: found invalid UTF-8 at byte 2, wanted one line of CSV"),
        (b"1.000,x", "column a: found 1.000, wanted int"),
        (b'"1,5",x', "column a: found 1,5, wanted int"),
        (b" 1,x", "column a: found  1, wanted int"),
        (b'"",x', "column a: found an empty text, wanted int"),
        (b"1,", "column b: found null, wanted string not null"),
    ],
)
def test_what_is_no_line_of_csv_is_an_error(value, error):
    (said,) = decode(Csv("a int, b string not null"), value).errors.to_pylist()
    assert said is not None and said.startswith(error)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"a,b\n1,x\n2", "row 1: found 1 field, wanted 2"),
        (b"a,b\n1,x\n\n", "row 1: found 1 field, wanted 2"),
        (b'a,b\n1,x\n2,"y', 'row 1: found a quote that is not closed: "y, wanted lines of CSV'),
        (b'a,"b\n1,x', 'the value: found a quote that is not closed: "b'),
        (b"a,b,a\n1,x,2", 'the value: found the name "a" twice'),
        (b"a,b\n1,x\ny,x", "row 1, column a: found y, wanted int"),
        (b"a,c\n1,x", "row 0, column b: found nothing, wanted string not null"),
    ],
)
def test_one_bad_line_makes_the_value_an_error_that_names_it(value, error):
    declared = Csv("a int, b string not null", rows="lines", header=True)
    decoded = decode(declared, value)
    assert not decoded.columns.num_rows and decoded.errors[0].as_py().startswith(error)


def test_a_name_that_no_first_line_has_is_told_with_those_that_are_there():
    decoded = decode(Csv("id int, note string", rows="lines", header=True), b"id,Note\n1,x", b"id\n")
    assert decoded.found == {"id"} and decoded.beside == {"note": frozenset({"id", "Note"})}
    assert rows_of(decoded) == [(1, None)]


def test_lines_may_have_very_many_fields():
    names = [f"c{n}" for n in range(1_500)]
    declared = Csv("x int from c7, y int from c1499", names=",".join(names))
    decoded = decode(declared, ",".join(map(str, range(1_500))).encode(), b"1,2")
    assert rows_of(decoded) == [(7, 1499)] and decoded.errors[1].as_py() == "the value: found 2 fields, wanted 1500"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Csv("a int", rows="array"), "Csv.rows"),
        (lambda: Csv("a serial"), "Csv.columns: column 'a' has the unknown type"),
        (
            lambda: Csv("a int from b"),
            "columns: column 'a' is the field at its place, and comes from no name; give names",
        ),
        (lambda: Csv("a int from b.c", names="b"), "columns: column 'a': a field has no fields within it"),
        (lambda: Csv("a int", names="b, c"), "columns: column 'a': names has no 'a'"),
        (lambda: Csv("a int", names="a,a"), "Csv.names: give the name of each field once"),
        (lambda: Csv("a int", names="a,"), "Csv.names: give the name of each field once"),
        (lambda: Csv("a int", header=True), 'header: the first line has names where rows="lines"'),
        (lambda: Csv("a int", header=True, rows="lines", names="a"), "header: the first line has names where"),
        (lambda: Csv("a int", separator='"'), "Csv.separator"),
        (lambda: Csv("a int", separator="\n"), "Csv.separator"),
        (lambda: Csv("a int", separator=",\n"), "Csv.separator"),
        (lambda: Csv("a int", separator="é"), "Csv.separator"),
        (lambda: Csv("a int", null='"'), "Csv.null: '\"' cannot stand without quotes"),
        (lambda: Csv("a int", separator="N", null="NULL"), "null: 'NULL' has the separator within it"),
    ],
)
def test_an_illegal_declaration_is_refused_with_the_reason(make, said):
    with pytest.raises(SpecError) as caught:
        make()
    assert said in str(caught.value)
