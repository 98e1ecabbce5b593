"""A run that a person starts takes what has arrived, with runs that follow it, and nobody takes what comes later."""

from __future__ import annotations

import pytest

from tests.until import until

from .line import Line

pytestmark = pytest.mark.timeout(300)


@pytest.mark.all
@pytest.mark.invariant("I2")
def test_what_comes_after_a_run_was_asked_for_waits_for_the_next_one(asked: Line):
    before, reached = asked.head(), asked.reached()
    asked.publish(250)
    asked.hold()
    first = asked.trigger()
    asked.held()
    # The run has begun, and others follow it; what comes now was not there.
    asked.publish(100)
    asked.release()
    assert asked.ended(first) == "success"
    until("what had arrived is committed", lambda: asked.reached() == reached + 250)
    until("no run is active", lambda: not asked.active())
    assert asked.head() == before + 3
    with asked.maintained():
        asked.maintain()
        # Now that the consumer group is where the line is, it has nothing to say of one of which nothing is due.
        assert asked.maintain() == "" and not asked.active()
    assert asked.ended(asked.trigger()) == "success"
    assert asked.reached() == reached + 350
    asked.is_whole()
