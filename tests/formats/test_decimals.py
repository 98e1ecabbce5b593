"""A decimal is the number that was sent, or refused, whatever its type and whatever is beside it in a batch."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet import Json, Topic

from .messages import Message
from .test_messages import faults


@st.composite
def types(draw: st.DrawFn) -> tuple[int, int]:
    """(precision, scale), the widest ones often: there Arrow's 128 bits overflow."""
    precision = draw(st.sampled_from([38, 38, 37, 30, 20]) | st.integers(1, 38))
    return precision, draw(st.sampled_from([0, precision // 2, precision]) | st.integers(0, precision))


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """As they are sent, of up to some digits more than there is room for."""
    whole = draw(st.integers(0, 10 ** draw(st.integers(1, 40))))
    fraction = draw(st.sampled_from(["", ".0", ".5", ".45"]) | st.integers(0, 10**12).map(lambda n: f".{n}"))
    return f"{draw(st.sampled_from(['', '-']))}{whole}{fraction}"


@settings(max_examples=500, deadline=None)
@given(types(), st.lists(numbers(), min_size=1, max_size=3))
@example((38, 38), ["-5405249.45"])
@example((38, 18), ["1000000000000000000000"])
def test_a_decimal_is_what_was_sent_or_refused(kind, sent):
    topic = Topic("t", value=Json("d decimal({},{})".format(*kind)))
    assert faults(topic, [Message(None, b'{"d": %s}' % number.encode(), ()) for number in sent])


@pytest.mark.parametrize("number", ["5405249.45", "7405249.45", "9405249.45"])
def test_the_widest_scale_has_room_for_nothing_but_a_fraction(number):
    topic = Topic("t", value=Json("d decimal(38,38)"))
    found = faults(topic, [Message(None, b'{"d": %s}' % number.encode(), ())])
    assert (found["good"], found["bad"]) == (0, 1)
