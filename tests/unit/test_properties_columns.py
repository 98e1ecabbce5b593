"""Column declarations: what is legal comes back the same, what is not is a SpecError, and nothing else happens."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.errors import SpecError
from ratchet.spec.columns import Column, parse_columns

names = st.builds(str.__add__, st.sampled_from("abz"), st.text("az09_", max_size=62))
decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: f"decimal({p},{s})"))
types = decimals | st.sampled_from(
    ["string", "boolean", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "binary"]
)
columns = st.builds(Column, names, types, st.booleans())
declared = st.lists(columns, min_size=1, max_size=8, unique_by=lambda c: c.name)
gaps = st.text(" \t\n", min_size=1, max_size=3)
pieces = st.sampled_from(
    [
        *"a b_1 A int INT decimal decimal( (10,2) (39,2) (010,2) (2,10) ( ) , ,, not null _x é ١ 0 int, -- ; '".split(),
        " ",
    ]
)


@settings(max_examples=200)
@given(declared)
def test_what_is_declared_comes_back(wanted):
    assert parse_columns(", ".join(map(str, wanted))) == tuple(wanted)


@settings(max_examples=200)
@given(declared, gaps, st.booleans())
def test_white_space_and_case_mean_nothing(wanted, gap, upper):
    said = ",".join(f"{gap}{column}".replace(" ", gap) for column in wanted).replace("(", f" ({gap}")
    assert parse_columns(said.upper() if upper else said) == tuple(wanted)


@settings(max_examples=400)
@given(st.text(max_size=40) | st.lists(pieces, max_size=10).map(" ".join) | st.lists(pieces, max_size=10).map("".join))
@example("a decimal(\u0661\u0660,2)")
@example(f"a decimal({'9' * 5000},2)")
@example("a decimal(010,2)")
@example("a intnot null")
@example("a not null")
def test_any_text_is_columns_that_spark_and_postgresql_know_or_a_spec_error(ddl):
    try:
        found = parse_columns(ddl)
    except SpecError:
        return
    for column in found:
        assert re.fullmatch(r"[a-z][a-z0-9_]{0,62}", column.name)
        assert column.type in {
            "string", "boolean", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "binary",
        } or is_decimal(column.type), column  # fmt: skip
    assert parse_columns(", ".join(map(str, found))) == found


@settings(max_examples=200)
@given(declared, st.data())
def test_a_column_that_is_repeated_or_illegal_is_named(wanted, data):
    at = data.draw(st.sampled_from(wanted))
    bad, said = data.draw(
        st.sampled_from(
            [
                (f" {at.name} int", f"column {at.name!r} is declared twice"),
                ("_offset int", "'_offset' is not a legal column name"),
                ("zz serial", "column 'zz' has the unknown type 'serial'"),
                ("zz decimal(39,0)", "column 'zz' has the unknown type 'decimal(39,0)'"),
                ("", "an empty column"),
            ]
        )
    )
    ddl = ", ".join([*map(str, wanted), bad])
    with pytest.raises(SpecError, match=re.escape(said)):
        parse_columns(ddl)


def is_decimal(kind: str) -> bool:
    found = re.fullmatch(r"decimal\(([1-9][0-9]?),(0|[1-9][0-9]?)\)", kind)
    return bool(found) and int(found[2]) <= int(found[1]) <= 38
