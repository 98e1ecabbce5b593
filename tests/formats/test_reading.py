"""The reading that the formats are held against: it makes up nothing about characters itself."""

import json
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratchet import Json, Topic

from .parsing import NoRow
from .reading import Arrived, read

TOPIC = Topic("t", value=Json("s string, y binary, j json"))
PRIVATE_USE = [chr(c) for c in range(0xE000, 0xF900)]
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)


def row(value: bytes) -> dict:
    (found,) = read(TOPIC, value, Arrived())
    return found


@given(texts, st.booleans())
@example("".join(PRIVATE_USE), True)
@example("".join(PRIVATE_USE), False)
def test_every_text_is_read_as_itself_escaped_or_not(text, escaped):
    value = json.dumps({"s": text, "other": {text: text}, "j": {text: [text]}}, ensure_ascii=escaped).encode()
    assert row(value)["s"] == text
    assert row(value)["j"] == {text: [text]}


@given(st.recursive(st.none() | st.booleans() | st.integers(-99, 99), lambda inner: st.lists(inner, max_size=3)))
def test_what_is_no_string_is_the_characters_that_were_sent(value):
    said = json.dumps(value, separators=(" , ", ":"))
    assert row(f'{{"s":\t{said} \n}}'.encode())["s"] == (None if value is None else said)


@pytest.mark.parametrize("control", [chr(c) for c in range(0x20)])
def test_a_control_character_as_itself_is_in_no_text(control):
    for value in (f'{{"s": "a{control}"}}', f'{{"{control}": 1}}', f'{{"x": [{{"z": "{control}{control}"}}]}}'):
        with pytest.raises(NoRow, match="control character"):
            row(value.encode())


@pytest.mark.parametrize("half", ["\\ud800", "\\udc00", "\\ude00\\ud83d"])
@pytest.mark.parametrize("column", ["s", "y", "j", "other"])
def test_half_of_a_pair_is_in_no_row(half, column):
    with pytest.raises(NoRow, match="surrogate"):
        row(f'{{"{column}": "{half}"}}'.encode())


def test_a_number_keeps_its_digits_and_a_name_is_there_once():
    assert row(b'{"j": {"a": 1, "a": 1.50}}')["j"] == {"a": Decimal("1.50")}
    assert row(b'{"s": 1, "s": "x"}')["s"] == "x"
