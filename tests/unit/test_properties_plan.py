"""Plans and cuts: every offset is planned once and lies in one slice; caps hold; what is lost is out, and no more."""

import json
from collections import Counter
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.ledger.topics import Topics
from ratchet.ledger.work import OffsetRange
from ratchet.protocol.plan import backlog, cut, plan, read_ranges, without, write_ranges
from ratchet.source.offsets import TopicOffsets

PARTITIONS = st.integers(0, 6)
HUGE = 2**58


def ends(greatest: int = 300):
    """{partition: (beginning, previous until or None, last stable offset, wanted or None)}."""
    one = st.tuples(
        *[st.integers(0, greatest)] * 2, st.none() | st.integers(0, greatest), st.none() | st.integers(0, greatest)
    )
    return st.dictionaries(PARTITIONS, one, max_size=6)


def planned_from(of, most):
    """(the plan, where each partition starts, where each one's backlog ends)."""
    beginning = {p: min(a, b) for p, (a, b, _, _) in of.items()}
    stable = {p: max(a, b) for p, (a, b, _, _) in of.items()}
    previous = {p: before for p, (_, _, before, _) in of.items() if before is not None}
    wanted = {p: end for p, (_, _, _, end) in of.items() if end is not None} or None
    offsets = TopicOffsets(Topics.one("t", "id"), beginning, stable)
    # A partition that comes to a topic that the line knows has lost what is deleted of it.
    start = {p: previous.get(p, 0) for p in of}
    until = {p: max(start[p], min(stable[p], (wanted or {}).get(p, stable[p]))) for p in of}
    if wanted is None:
        assert backlog(previous, offsets) == sum(until.values()) - sum(start.values())
    return plan(previous, offsets, most, wanted), start, until


@settings(max_examples=250)
@given(ends() | ends(HUGE), st.integers(1, 500) | st.integers(1, HUGE))
def test_a_plan_starts_where_the_last_one_ended_and_takes_no_more_than_there_is_or_may(of, most):
    planned, start, until = planned_from(of, most)
    waiting = {p: until[p] - start[p] for p in of}
    assert [r.partition for r in planned] == sorted({r.partition for r in planned})
    for r in planned:
        assert r.from_offset == start[r.partition] < r.until_offset <= until[r.partition]
    assert sum(map(len, planned)) == min(most, sum(waiting.values()))
    # In proportion: no partition is more than an offset away from its share.
    taken, total = {r.partition: len(r) for r in planned}, sum(waiting.values())
    for p, n in waiting.items():
        assert abs(taken.get(p, 0) * total - n * min(most, total)) < max(total, 1)
    # What rounding leaves over goes to the largest remainders, of equal ones to the first.
    if most < total:
        more = {p for p, n in waiting.items() if taken.get(p, 0) > n * most // total}
        ranked = sorted(waiting, key=lambda p: (-(waiting[p] * most % total), p))
        assert more == set(ranked[: len(more)])


@settings(max_examples=150)
@given(ends(), st.integers(1, 200))
def test_plans_one_after_the_other_take_every_offset_once(of, most):
    _, start, until = planned_from(of, most)
    offsets, previous, taken = TopicOffsets(Topics.one("t", "id"), start, until), dict(start), Counter()
    while planned := plan(previous, offsets, most):
        taken.update((r.partition, o) for r in planned for o in range(r.from_offset, r.until_offset))
        previous |= {r.partition: r.until_offset for r in planned}
    assert taken == Counter((p, o) for p in of for o in range(start[p], until[p]))


ranges = st.lists(st.tuples(PARTITIONS, st.integers(0, 200), st.integers(0, 60)), unique_by=lambda r: r[0], max_size=6)


@settings(max_examples=250)
@given(ranges, st.integers(1, 80) | st.integers(1, 1000))
def test_a_cut_loses_and_doubles_nothing_and_its_slices_are_alike(of, most):
    planned = [OffsetRange("t", p, start, start + n) for p, start, n in sorted(of) if n]
    slices = cut(planned, most)
    every = Counter((r.partition, o) for r in planned for o in range(r.from_offset, r.until_offset))
    assert (
        Counter((r.partition, o) for s in slices for r in s.ranges for o in range(r.from_offset, r.until_offset))
        == every
    )
    assert [s.number for s in slices] == list(range(len(slices)))
    sizes = [len(s) for s in slices]
    assert all(0 < n <= most for n in sizes) and len(slices) <= -(-every.total() // most)
    assert len(set(sizes[:-1])) <= 1 and (not sizes or sizes[-1] <= sizes[0])
    assert all(len(r) for s in slices for r in s.ranges)
    for s in slices:
        named = s.name.split(" · ")
        assert named[:3] == [f"t-{r.partition} [{r.from_offset},{r.until_offset})" for r in s.ranges[:3]]
        assert named[3:] == ([f"and {len(s.ranges) - 3} more"] if len(s.ranges) > 3 else [])
        stored = json.loads(json.dumps(write_ranges(s.ranges)))
        assert read_ranges(Topics.one("t"), stored) == s.ranges


few = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 200), st.integers(0, 60)), unique_by=lambda r: r[0])


@settings(max_examples=250)
@given(few, st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.booleans()), max_size=6), st.randoms())
@example([(0, 0, 9)], [(0, 2, False), (0, 3, False)], Random(2))
@example([(0, 0, 9)], [(0, 2, False), (0, 3, False)], Random(3))
def test_of_what_is_lost_nothing_is_read_and_of_the_rest_all(of, told, rng):
    """Retention goes on and on: each loss begins where the last one ended, or at the beginning again."""
    stored = [[p, start, start + n] for p, start, n in sorted(of) if n]
    begins = {p: start for p, start, _ in stored}
    ends_at, lost = dict(begins), []
    for p, n, from_the_beginning in told:
        if p in begins and n:
            lost.append((p, begins[p] if from_the_beginning else ends_at[p], ends_at[p] + n))
            ends_at[p] += n
    rng.shuffle(lost)
    left = without(stored, lost)
    assert left == [[p, max(start, ends_at[p]), until] for p, start, until in stored if ends_at[p] < until]
    assert without(left, lost) == left


@given(st.integers(-5, 50), st.integers(-5, 50))
def test_a_range_is_half_open_and_never_negative(start, until):
    if 0 <= start <= until:
        assert len(OffsetRange("t", 0, start, until)) == until - start
    else:
        with pytest.raises(ValueError, match="not a range"):
            OffsetRange("t", 0, start, until)
