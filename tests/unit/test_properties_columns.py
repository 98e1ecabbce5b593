"""Column declarations: what is legal comes back the same, what is not is a SpecError, and nothing else happens."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.errors import SpecError
from ratchet.spec.columns import Column, FieldPath, RecordPart, parse_columns
from ratchet.spec.types import (
    BINARY,
    NAMED,
    STRING,
    TIMESTAMP,
    Array,
    Decimal,
    Map,
    Member,
    Struct,
    Timestamp,
    is_document,
    is_scalar,
)

names = st.builds(str.__add__, st.sampled_from("abzAZ"), st.text("az09_Z", max_size=62))
decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: Decimal(p, s)))
moments = st.builds(Timestamp, st.sampled_from([None, "seconds", "millis", "micros", "nanos"]), st.booleans())
scalars = decimals | moments | st.sampled_from(list(NAMED.values()))
field_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | names


def _structs(inner):
    members = st.builds(Member, field_names, inner, st.booleans())
    return st.lists(members, min_size=1, max_size=3, unique_by=lambda m: m.name.lower()).map(lambda m: Struct(tuple(m)))


types = st.recursive(
    scalars, lambda inner: st.builds(Array, inner) | st.builds(Map, inner) | _structs(inner), max_leaves=4
)
paths = st.lists(field_names, min_size=1, max_size=3).map(lambda parts: FieldPath(tuple(parts)))
columns = st.builds(Column, names, types, st.booleans(), st.none() | paths).map(
    lambda c: Column(c.name, c.type, c.nullable) if c.origin == FieldPath((c.name,)) else c
)
declared = st.lists(columns, min_size=1, max_size=8, unique_by=lambda c: c.name.lower())
plain = st.lists(
    st.builds(Column, names, types, st.booleans()), min_size=1, max_size=8, unique_by=lambda c: c.name.lower()
)
gaps = st.text(" \t\n", min_size=1, max_size=3)
pieces = st.sampled_from(
    [
        *(
            "a b_1 A int INT decimal decimal( (10,2) (39,2) (010,2) (2,10) ( ) , ,, not null _x é ١ 0 int, -- ; ' from "
            'order.id . "a b" " "" array< < > map< string, struct< : timestamp (millis) strict _key _headers.x uuid'
        ).split(),
        " ",
    ]
)


@settings(max_examples=200)
@given(declared)
def test_what_is_declared_comes_back(wanted):
    assert parse_columns(", ".join(map(str, wanted))) == tuple(wanted)


@settings(max_examples=200)
@given(plain.filter(lambda cs: '"' not in ", ".join(map(str, cs))), gaps)
def test_white_space_means_nothing(wanted, gap):
    said = ",".join(f"{gap}{column}".replace(" ", gap) for column in wanted)
    assert parse_columns(re.sub("([(<>,:])", rf"{gap}\1{gap}", said)) == tuple(wanted)


@pytest.mark.parametrize("kind", [*map(str, NAMED.values()), "decimal(10,2)", "timestamp(millis) strict", "array<int>"])
def test_the_case_of_a_type_means_nothing_and_that_of_a_name_is_kept(kind):
    assert parse_columns(f"orderId {kind.upper()} NOT NULL") == parse_columns(f"orderId {kind} not null")
    assert parse_columns(f"orderId {kind}")[0].source == FieldPath(("orderId",))


@settings(max_examples=400)
@given(st.text(max_size=40) | st.lists(pieces, max_size=10).map(" ".join) | st.lists(pieces, max_size=10).map("".join))
@example("a decimal(\u0661\u0660,2)")
@example(f"a decimal({'9' * 5000},2)")
@example("a decimal(010,2)")
@example("a intnot null")
@example("a not null")
@example("a " + "array<" * 5000 + "int")
@example("a " + "array<" * 30 + "int" + ">" * 30)
def test_any_text_is_columns_or_a_spec_error(ddl):
    try:
        found = parse_columns(ddl)
    except SpecError:
        return
    for column in found:
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", column.name)
        assert is_scalar(column.type) or is_document(column.type) or isinstance(column.type, Array)
    assert parse_columns(", ".join(map(str, found))) == found


@settings(max_examples=200)
@given(declared, st.data())
def test_a_column_that_is_repeated_or_illegal_is_named(wanted, data):
    at = data.draw(st.sampled_from(wanted))
    bad, said = data.draw(
        st.sampled_from(
            [
                (f" {at.name} int", f"column {at.name!r} is declared twice"),
                (f" {at.name.swapcase()} int", f"column {at.name.swapcase()!r} differs from {at.name!r} only in case"),
                ("_offset int", "'_offset' is not a legal column name"),
                ("y serial", "column 'y' has the unknown type 'serial'"),
                ("y decimal(39,0)", "column 'y' has the unknown type 'decimal(39,0)'"),
                ("y map<int, int>", "column 'y' has the unknown type 'map<int, int>'"),
                ("y timestamp(weeks)", "column 'y' has the unknown type 'timestamp(weeks)'"),
                ("y struct<a: int, A: int>", "column 'y' has the unknown type 'struct<a: int, A: int>'"),
                ("y int default 5", "column 'y': 'default 5' is not understood"),
                ("y int from @id", "column 'y': from takes the name of a field, in quotes where it is odd"),
                ("y int from _topic", "column 'y': the name of the record's topic is a string, and not a int"),
                ("y string from _timestamp", "column 'y': the record's timestamp is a timestamp, and not a string"),
                ("y string from _key.id", "column 'y': _key has no such part"),
                ('y int from "\ud800"', "column 'y': '\\ud800' holds half of a surrogate pair"),
                ("", "an empty column"),
            ]
        )
    )
    ddl = ", ".join([*map(str, wanted), bad])
    with pytest.raises(SpecError, match=re.escape(said)):
        parse_columns(ddl)


@pytest.mark.parametrize(
    ("ddl", "column"),
    [
        ("order_id int from order.id not null", Column("order_id", NAMED["int"], False, FieldPath(("order", "id")))),
        ("order_id int not null from order.id", Column("order_id", NAMED["int"], False, FieldPath(("order", "id")))),
        ('ts timestamp from "@timestamp"', Column("ts", TIMESTAMP, True, FieldPath(("@timestamp",)))),
        ('a string from "x.y"."say ""hi"""', Column("a", STRING, True, FieldPath(("x.y", 'say "hi"')))),
        ("id string from _id", Column("id", STRING, True, FieldPath(("_id",)))),
        ("at timestamp from _timestamp", Column("at", TIMESTAMP, True, RecordPart("_timestamp"))),
        ('k string from "_key"', Column("k", STRING, True, FieldPath(("_key",)))),
        ("k binary from _key", Column("k", BINARY, True, RecordPart("_key"))),
        ('t string from _headers."trace-id"', Column("t", STRING, True, RecordPart("_headers", "trace-id"))),
    ],
)
def test_where_a_value_comes_from(ddl, column):
    assert parse_columns(ddl) == (column,)
    assert parse_columns(str(column)) == (column,)
