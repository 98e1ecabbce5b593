"""Where an interval ends: the first record that is later and not absurdly so, looked for as far as a plan takes."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.ledger.topics import Topics
from ratchet.ledger.work import OffsetRange
from ratchet.source import interval
from ratchet.source.interval import Ahead, IntervalEnd, Stamps, interval_ends

AT, LATEST = 100, 200
EARLY, LATER, ABSURD = 50, 150, 4_070_908_800_000
END = datetime.fromtimestamp(AT / 1000, UTC)
NOW = datetime.fromtimestamp(LATEST / 1000, UTC)


class Partition:
    """A log of times in milliseconds: None is a hole, a marker or an aborted record, whose time Kafka goes by too."""

    def __init__(self, entries: list[tuple[int, bool]], start: int, beginning: int = 0):
        self.entries, self.start, self.beginning = entries, min(start, len(entries)), beginning

    @property
    def found(self) -> int:
        """Kafka's answer."""
        return next((at for at, (millis, _) in enumerate(self.entries) if millis >= AT), -1)

    def end(self, since: int) -> int:
        """The first offset from there on at which the interval ends."""
        of = enumerate(self.entries)
        return next((at for at, (m, counts) in of if at >= since and counts and AT <= m <= LATEST), len(self.entries))


def ends_of(logs: dict[int, Partition], most: int) -> tuple[dict[int, int], dict[int, Ahead], list[OffsetRange]]:
    """What is found, and every range that was looked at."""
    looked: list[OffsetRange] = []

    def read(ranges):
        looked.extend(ranges)
        for r in ranges:
            kept = [at for at in range(r.from_offset, r.until_offset) if logs[r.partition].entries[at][1]]
            for piece in np.array_split(np.array(kept, np.int64), 3):
                millis = np.array([logs[r.partition].entries[at][0] for at in piece], np.int64)
                yield Stamps(r.partition, piece, millis)

    end = IntervalEnd(END, NOW, {p: log.start for p, log in logs.items()}, most)
    found, stable = {p: log.found for p, log in logs.items()}, {p: len(log.entries) for p, log in logs.items()}
    return *interval_ends(Topics.one("t"), end, found, stable, read), looked


entries = st.lists(st.tuples(st.sampled_from([EARLY, EARLY, LATER, ABSURD]), st.booleans()), max_size=60)
logs = st.dictionaries(st.integers(0, 3), st.builds(Partition, entries, st.integers(0, 60)), min_size=1)


@pytest.fixture(autouse=True)
def small_looks(monkeypatch):
    monkeypatch.setattr(interval, "FIRST_LOOK", 2)


@settings(max_examples=400, deadline=None)
@given(logs, st.integers(1, 100))
@example({0: Partition([(EARLY, True), (ABSURD, True), (EARLY, True), (LATER, True)], 0)}, 100)
@example({0: Partition([(ABSURD, True)] + [(EARLY, True)] * 9 + [(LATER, True)], 6)}, 100)
@example({0: Partition([(ABSURD, True)] * 50, 0), 1: Partition([(EARLY, True)] * 5, 0)}, 10)
@example({0: Partition([(LATER, False), (EARLY, True)], 0)}, 10)
@example(
    {0: Partition([(EARLY, True)] * 6 + [(LATER, False)] + [(EARLY, True)] * 2, 8), 1: Partition([(LATER, True)], 0)}, 1
)
def test_the_end_is_the_first_later_record_that_is_no_absurd_one(of, most):
    ends, ahead, looked = ends_of(of, most)
    assert set(ends) == set(of)
    cut_short = False
    for p, log in of.items():
        if ends[p] >= log.start:
            # Nothing that ends the interval is taken, and no absurd time or marker holds back what lies behind it.
            first = log.end(log.start)
            assert ends[p] <= first
            cut_short |= ends[p] < first
        else:
            assert log.end(0) == ends[p]
        if p in ahead:
            absurd = [at for at in range(log.start, ends[p]) if log.entries[at] == (ABSURD, True)]
            assert (ahead[p].offset, ahead[p].millis) == (absurd[0], ABSURD)
            assert ahead[p].records == len(absurd)
        else:
            looked_at = [at for r in looked if r.partition == p for at in range(r.from_offset, r.until_offset)]
            assert not [at for at in looked_at if log.start <= at < ends[p] and log.entries[at] == (ABSURD, True)]
    if cut_short:
        assert sum(max(0, ends[p] - log.start) for p, log in of.items()) >= most, "a plan takes all that is known"


@settings(max_examples=200, deadline=None)
@given(logs, st.integers(1, 100))
def test_no_more_is_looked_at_than_a_plan_takes_and_a_first_look_at_each(of, most):
    looked = ends_of(of, most)[2]
    beyond = sum(max(0, r.until_offset - max(r.from_offset, of[r.partition].start)) for r in looked)
    # Of each partition the last look may find its end at once.
    last = sum(max(interval.FIRST_LOOK, most / k) for k in range(1, len(of) + 1))
    assert beyond <= most + last + len(of) * interval.FIRST_LOOK
    assert len(looked) <= len(of) * (2 + most)


def test_a_time_of_the_interval_has_a_zone_and_one_long_ago_is_the_beginning():
    with pytest.raises(ValueError, match="no time zone"):
        IntervalEnd(datetime(2024, 5, 1), NOW, {}, 1)
    assert IntervalEnd(datetime(1950, 1, 1, tzinfo=UTC), NOW, {}, 1).since == 0
    assert IntervalEnd(END + timedelta(microseconds=1), NOW, {}, 1).since == AT + 1


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (Ahead(7, ABSURD, 1), "stamped 2099-01-01 00:00:00 UTC"),
        (Ahead(7, 1_714_521_600_000_000, 3), "stamped so, the first 56301-01-11 00:00:00 UTC"),
    ],
)
def test_a_time_is_said_though_its_year_has_five_digits(ahead, said):
    assert str(ahead) == said
