"""Several topics in one pipeline, under Airflow."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from .line import Line

pytestmark = pytest.mark.timeout(300)


def sent(line: Line, *topics: str) -> Counter[tuple[str, int, int, int]]:
    """(topic, partition, offset, v) of each record, as another reader has them."""
    return Counter((t, p, offset, json.loads(value)["v"]) for t in topics for p, offset, _, value in line.topic(t))


@pytest.mark.invariant("I1")
def test_several_topics_are_one_line_that_another_joins_and_a_clear_revises_those_of_its_run(several: Line):
    several.publish(40, topic="several-eu")
    several.publish(30, topic="several-us")
    run = several.trigger()
    assert several.ended(run) == "success"
    first = sent(several, "several-eu", "several-us")
    assert len(first) == 70 and several.placed() == first
    # A slice may be of several.
    names = [each["name"] for each in several.returned(several.name, "begin")]
    assert any("several-eu-0 [" in name and " · several-us-0 [" in name for name in names), names
    several.create_topic("several-ca")
    several.publish(20, topic="several-ca")
    several.publish(5, topic="several-us")
    other = several.trigger()
    assert several.ended(other) == "success"
    assert "topic several-ca joins the line by join=earliest: several-ca-0 at 0" in several.last_log(other, "begin")
    everything = sent(several, "several-eu", "several-us", "several-ca")
    assert len(everything) == 95 and several.placed() == everything
    several.multiply(10)
    several.clear(run)
    assert several.ended(run) == "success"
    revised = Counter((t, p, offset, v * 10) for t, p, offset, v in first)
    assert several.placed() == revised + (everything - first)
    several.command("verify", several.name)
