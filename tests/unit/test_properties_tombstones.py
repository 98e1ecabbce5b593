"""The time in which a compacted topic is to be read, against every tombstone that may have been cleaned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from ratchet.protocol.tombstones import _MOST_LOOKS, Look, Term, term, with_look

START = datetime(2030, 1, 1, tzinfo=UTC)
STEP = st.tuples(st.sampled_from(["write", "plan", "look"]), st.integers(0, 1), st.integers(1, 3))


def at(step: int) -> datetime:
    return START + timedelta(hours=step)


@given(st.lists(STEP, min_size=1, max_size=200))
def test_no_unread_record_was_written_before_the_time_counts_from_which_it_may_be_cleaned(steps):
    written: dict[int, list[int]] = {0: [], 1: []}
    ends, looks, kept, first = {0: 0, 1: 0}, [], {}, None
    for now, (what, partition, number) in enumerate(steps):
        match what:
            case "write":
                written[partition] += [now] * number
            case "plan":
                # Never beyond what the newest look has found.
                found = looks[-1].stable[partition] if looks else 0
                ends[partition] = max(ends[partition], min(ends[partition] + number, found))
            case _:
                stable = {p: len(of) for p, of in written.items()}
                kept[now] = timedelta(hours=number)
                looks = with_look(looks, Look(at(now), kept[now], stable), ends)
                first = now if first is None else first
                assert len(looks) <= _MOST_LOOKS + 1
                unread = {p: end for p, end in ends.items() if end < len(written[p])}
                if unread:
                    found = term(looks, unread)
                    for p, end in unread.items():
                        # Since the first look, or since a record that is unread was not there yet.
                        mine = term(looks, {p: end})
                        assert at(first) <= mine.since <= at(max(written[p][end], first))
                        assert mine.kept <= min(of for when, of in kept.items() if at(when) >= mine.since)
                        assert found.until <= mine.until


def test_a_look_that_found_nothing_unread_begins_the_time_and_another_one_does_not():
    looks = [Look(at(0), timedelta(hours=9), {0: 5, 1: 5}), Look(at(1), timedelta(hours=7), {0: 5, 1: 8})]
    assert term(looks, {0: 5}) == Term(at(1), timedelta(hours=7))
    assert term(looks, {1: 5}) == term(looks, {0: 5, 1: 5}) == Term(at(0), timedelta(hours=7))
    assert term(looks, {1: 8}).since == at(1)
    assert term(looks, {0: 0}).since == at(0)


def test_of_many_looks_the_first_stays_and_the_shortest_time_counts():
    looks: list[Look] = []
    for now in range(4 * _MOST_LOOKS):
        looks = with_look(looks, Look(at(now), timedelta(hours=1 if now == 5 else 9), {0: now + 1}), {0: 0})
        assert len(looks) <= _MOST_LOOKS + 1 and looks[-1].at == at(now)
    assert term(looks, {0: 0}) == Term(at(0), timedelta(hours=1))
    assert with_look(looks, Look(at(999), timedelta(hours=9), {0: 999}), {0: 999})[0].at == at(999)


def test_a_look_is_the_same_after_it_was_kept():
    look = Look(at(3), timedelta(milliseconds=86_400_001), {0: 5, 11: 2**40})
    assert Look.read(look.stored) == look
