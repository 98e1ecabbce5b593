"""Specs: a legal one is what it was made of; of an illegal one the field is named, and nothing but SpecError comes."""

import re
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from ratchet import Accumulate, Append, Condition, Json, MaxChange, MaxDeadLetters, Pipeline, Topic, Upsert
from ratchet.errors import SpecError

PARTS = (Pipeline, Topic, Json, Append, Accumulate, Upsert, MaxDeadLetters, MaxChange, Condition)
GOOD = {
    Pipeline: {
        "name": "p",
        "source": Topic("t", value=Json("a int")),
        "transform": "m:f",
        "sinks": [Append("rows", columns="a int")],
    },
    Topic: {"name": "t", "value": Json("a int")},
    Json: {"columns": "a int"},
    Append: {"name": "t", "columns": "a int"},
    Accumulate: {"name": "t", "key": "k int", "count": "n"},
    Upsert: {"name": "t", "key": "k int", "columns": "a int"},
    MaxDeadLetters: {"ratio": 0.5},
    MaxChange: {"sink": "rows", "factor": 2},
    Condition: {"name": "c", "sql": "true"},
}
words = st.sampled_from(
    ["a", "a int", "a int, b decimal(10,2)", "k string not null", "x double", "rows", "s.rows", "ratchet.rows", "m:f",
     "", "append", "delete", "stable", "interval", "@daily", "A", "a\n", "1a", "\ud800", "a\x00", "x" * 70, "nan", "5"]
)  # fmt: skip
sinks = st.sampled_from([Append("a", columns="a int"), Accumulate("b", key="a int", count="n"), {"kind": "append"}])
anything = st.one_of(
    st.lists(sinks),
    words,
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4),
    st.timedeltas(),
    st.sampled_from([object(), print, Append, *(kind(**given) for kind, given in GOOD.items())]),
    st.lists(words | st.dictionaries(words, words, max_size=2), max_size=3),
    st.dictionaries(words | st.sampled_from(["kind", "name", "columns"]), words, max_size=4),
    st.lists(
        st.sampled_from([Append("a", columns="a int"), Accumulate("b", key="a int", count="n"), {"kind": "append"}])
    ),
)


@settings(max_examples=600)
@given(st.sampled_from(PARTS), st.data())
def test_any_values_at_all_are_a_spec_or_a_spec_error_that_names_the_field(part, data):
    known = st.sampled_from([*part.model_fields, "extra"])
    said = GOOD[part] | data.draw(st.dictionaries(known, anything, min_size=1, max_size=2))
    check(part, said)


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        (MaxDeadLetters, {"ratio": float("nan")}),
        (MaxChange, {"factor": float("nan")}),
        (MaxChange, {"factor": float("inf")}),
        (Json, {"columns": f"a decimal({'9' * 5000},1)"}),
        (Pipeline, {"name": "\u0661"}),
        (Pipeline, {"keep_deltas": timedelta.min}),
    ],
)
def test_numbers_that_mean_nothing_are_refused(part, changed):
    (field,) = changed
    with pytest.raises(SpecError, match=rf"{part.__name__}\.{field}"):
        part(**GOOD[part] | changed)


@settings(max_examples=200)
@given(st.sampled_from([p for p in PARTS if p.positional()]), st.lists(anything, max_size=4), st.data())
@example(Topic, ["t"], None)
def test_fields_by_position_are_those_fields(part, values, data):
    names = dict(zip(part.positional(), values, strict=False))
    rest = {name: value for name, value in GOOD[part].items() if name not in part.positional()[: len(values)]}
    try:
        made = part(*values, **rest)
    except SpecError as error:
        if len(values) <= len(part.positional()):
            with pytest.raises(SpecError, match=re.escape(str(error))):
                part(**rest, **names)
        return
    assert made == part(**rest, **names)


@pytest.mark.parametrize("part", [p for p in PARTS if p.positional()])
def test_a_field_given_by_position_and_by_name_is_refused(part):
    (first, *_), rest = part.positional(), GOOD[part]
    with pytest.raises(SpecError, match=rf"{part.__name__}\.{first}"):
        part(rest[first], **rest)


def check(part: type[BaseModel], said: dict) -> None:
    try:
        made = part(**said)
    except SpecError as error:
        # The field, or for what is wrong between fields the whole spec with the field's name behind it.
        named = re.findall(rf"{part.__name__}\.([a-z_]+)|^([A-Z]\w+)\.", str(error))
        assert named and all(a in {*said, "spec"} for a, b in named if not b), str(error)
        return
    again = part(**dict(made))
    assert again == made and repr(again) == repr(made)
    if isinstance(made, Pipeline):
        assert again.plan_hash == made.plan_hash
        assert len({sink.table for sink in made.sinks}) == len(made.sinks)
        assert 1 <= made.max_in_flight <= 32 and made.max_records <= 1000 * made.slice_records
        assert made.plan == "stable" or made.schedule is not None
