"""When records are a reason for a run: their number, and how long the oldest has waited."""

from __future__ import annotations

import pytest

from ratchet.protocol.arrivals import (
    FIRST_SECONDS,
    HELD_SECONDS,
    LOOK_ANYHOW_SECONDS,
    MOST_SECONDS,
    REST_SECONDS,
    Arrived,
    Arriving,
)
from ratchet.spec.subscription import Subscription


def arrived(min_records: int = 100, max_wait: float = 60) -> Arrived:
    """One whose topic was empty when it was first seen, at second 0."""
    made = Arrived(Arriving("orders", Subscription(("orders.v1",)), 4, min_records, max_wait))
    made.sees(0, {0: 0, 1: 0})
    made.waiting(0, {})
    return made


def test_enough_records_are_a_reason_at_once_over_all_partitions():
    seen = arrived()
    assert seen.sees(1, {0: 60, 1: 39}) and seen.why(1, seen.waiting(1, {})) is None
    assert seen.sees(2, {0: 60, 1: 40}) and seen.why(2, seen.waiting(2, {})) == "100 records wait"


def test_fewer_are_one_when_the_oldest_has_waited_for_long_enough():
    seen = arrived()
    seen.sees(10, {0: 1, 1: 0})
    seen.sees(50, {0: 1, 1: 5})
    assert seen.why(69, seen.waiting(69, {})) is None
    assert seen.why(70, seen.waiting(70, {})) == "6 records have waited for 60 s"
    # The first was taken: what is left came later.
    assert seen.why(70, seen.waiting(70, {0: 1})) is None
    assert seen.why(110, seen.waiting(110, {0: 1})) == "5 records have waited for 60 s"


def test_records_that_trickle_in_count_as_older_by_a_hundredth_at_most_and_cost_no_memory():
    seen = arrived(min_records=10**9)
    for tick in range(10_000):
        seen.sees(tick / 10, {0: tick + 1})
        seen.waiting(tick / 10, {})
    assert len(seen._grown) <= 201
    seen.waiting(1000, {0: 9_900})
    assert 0 <= 990 - seen._grown[0][0] <= 0.6


def test_what_is_there_at_the_first_look_counts_as_waiting_for_long_enough():
    seen = Arrived(Arriving("orders", Subscription(("orders.v1",)), 4, 100, 3600))
    seen.sees(0, {0: 7})
    assert seen.why(0, seen.waiting(0, {})) == "7 records wait since before this watch"
    assert seen.why(0, seen.waiting(0, {0: 7})) is None


def test_no_record_is_no_reason_however_long_it_has_been():
    seen = arrived(min_records=1)
    assert seen.why(10**6, seen.waiting(10**6, {})) is None


def test_the_line_is_looked_at_only_where_the_topic_grows_or_records_wait_or_at_last():
    seen, ends = arrived(), {0: 5, 1: 0}
    assert seen.sees(1, ends) and seen.waiting(1, {0: 5}) == 0
    assert not seen.sees(2, ends)
    assert seen.sees(1 + LOOK_ANYHOW_SECONDS, ends)
    assert seen.waiting(20, {0: 4}) == 1 and seen.sees(20, ends)
    seen.rests(20)
    assert not seen.sees(20.5, ends) and seen.sees(20 + REST_SECONDS, ends)
    seen.rests(30)
    assert seen.sees(30.5, {0: 6, 1: 0})


def test_a_run_that_is_there_and_does_not_begin_is_waited_for_and_not_for_ever():
    seen = arrived()
    assert not seen.holds(0, False)
    assert seen.holds(1, True) and seen.holds(HELD_SECONDS, True)
    assert not seen.holds(1 + HELD_SECONDS, True)
    assert not seen.holds(2 + HELD_SECONDS, False) and seen.holds(3 + HELD_SECONDS, True), (
        "another one is waited for anew"
    )


def test_a_run_that_changes_nothing_is_asked_for_again_ever_more_seldom():
    seen, at, now, pauses = arrived(), (3, 2), 0.0, []
    for _ in range(9):
        assert seen.may_ask(now, at)
        seen.asked(now, at)
        since = now
        while not seen.may_ask(now, at):
            now += 1
        pauses.append(now - since)
    assert pauses[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS] and pauses[-1] == MOST_SECONDS
    seen.asked(now, at)
    assert seen.may_ask(now, (4, 2)), "the line has moved"
    seen.asked(now, (4, 2))
    assert seen.may_ask(now + FIRST_SECONDS, (4, 2))


@pytest.mark.parametrize("at", [None, (0, 0)])
def test_of_a_line_that_has_not_begun_a_run_is_asked_for_once_too(at):
    seen = arrived()
    assert seen.may_ask(0, at)
    seen.asked(0, at)
    assert not seen.may_ask(FIRST_SECONDS - 1, at) and seen.may_ask(FIRST_SECONDS, at)
