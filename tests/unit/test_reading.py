"""The reading that the decoder is held against: it makes up nothing about characters itself."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratchet import Json, Topic
from tests.spark.reading import NoRow, read

TOPIC = Topic("t", value=Json("s string, y binary"))
PRIVATE_USE = [chr(c) for c in range(0xE000, 0xF900)]
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)


@given(texts, st.booleans())
@example("".join(PRIVATE_USE), True)
@example("".join(PRIVATE_USE), False)
def test_every_text_is_read_as_itself_escaped_or_not(text, escaped):
    value = json.dumps({"s": text, "other": {text: text}}, ensure_ascii=escaped).encode()
    assert read(TOPIC, None, value)["s"] == text


@pytest.mark.parametrize("control", [chr(c) for c in range(0x20)])
def test_a_control_character_as_itself_is_in_no_text_and_is_white_space_in_base64(control):
    for value in (f'{{"s": "a{control}"}}', f'{{"{control}": 1}}', f'{{"x": [{{"z": "{control}{control}"}}]}}'):
        with pytest.raises(NoRow, match="control character"):
            read(TOPIC, None, value.encode())
    spaced = f'{{"y": "{control}QUJD{control}{control}QQ=={control}"}}'
    assert read(TOPIC, None, spaced.encode())["y"] == b"ABCA"


@pytest.mark.parametrize("character", [*PRIVATE_USE[:2], "\u00a0", "\x7f"])
def test_no_other_character_is_white_space_in_base64(character):
    for escaped in (True, False):
        with pytest.raises(NoRow, match="base64"):
            read(TOPIC, None, json.dumps({"y": f"QUJD{character}"}, ensure_ascii=escaped).encode())


@pytest.mark.parametrize("half", ["\\ud800", "\\udc00", "\\ude00\\ud83d", "\\udc00\t"])
@pytest.mark.parametrize("column", ["s", "y", "other"])
def test_half_of_a_pair_is_in_no_row(half, column):
    with pytest.raises(NoRow, match="surrogate"):
        read(TOPIC, None, f'{{"{column}": "{half}"}}'.encode())
