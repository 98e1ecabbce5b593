"""A log that was cut and has grown again is told from the one that was read, at the very offset where they part."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise, takewhile

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.source.lineage import Compared, EpochEnd, Lineage, compare, compared, trimmed


@dataclass
class Replica:
    """A partition's log on one broker: the epoch of each record, and where each epoch began, as brokers keep it."""

    start: int = 0
    records: list[int] = field(default_factory=list)
    """The epochs of the records from offset 0 on, also of those that are deleted."""
    led: dict[int, int] = field(default_factory=dict)
    """{epoch in which it was the leader: where its log ended when it became so}."""

    def epochs(self) -> dict[int, int]:
        """{epoch: its first offset}; of what retention has deleted the last epoch stays, from the log's start on."""
        seen = {e: at for e, at in self.led.items() if at <= len(self.records)}
        for offset, epoch in enumerate(self.records):
            seen[epoch] = min(seen.get(epoch, offset), offset)
        # An epoch that begins where an earlier one did takes its place.
        seen = {e: at for e, at in seen.items() if not any(f > e and then <= at for f, then in seen.items())}
        before = [e for e, at in seen.items() if at <= self.start]
        kept = {e: at for e, at in seen.items() if at > self.start}
        return ({max(before): self.start} if before else {}) | kept

    def ends(self, asked: int) -> EpochEnd:
        """As Kafka's LeaderEpochFileCache answers."""
        epochs = self.epochs()
        above = [e for e in epochs if e > asked]
        below = [e for e in epochs if e <= asked]
        if not above:
            return EpochEnd(asked, len(self.records)) if asked in epochs else EpochEnd(-1, -1)
        return EpochEnd(max(below, default=asked), epochs[min(above)])


class Partition:
    """Three replicas, any of which may become the leader, with what it has."""

    def __init__(self) -> None:
        self.replicas = [Replica(led={0: 0}), Replica(), Replica()]
        self.leader, self.epoch = self.replicas[0], 0

    def elect(self, number: int) -> None:
        self.leader, self.epoch = self.replicas[number], self.epoch + 1
        self.leader.led[self.epoch] = len(self.leader.records)

    def write(self, count: int) -> None:
        self.leader.records += [self.epoch] * count

    def follow(self, number: int, behind: int) -> None:
        """Become equal to the leader, but for its last records."""
        follower = self.replicas[number]
        if follower is not self.leader:
            same = len(common(follower.records, self.leader.records))
            follower.records = self.leader.records[: max(same, len(self.leader.records) - behind)]
            follower.led = {e: at for e, at in follower.led.items() if at < same}
            follower.start = min(max(follower.start, self.leader.start), len(follower.records))

    def retain(self, count: int) -> None:
        self.leader.start = max(self.leader.start, len(self.leader.records) - count)


def common(a: list[int], b: list[int]) -> list[int]:
    """What two logs have in common: an offset and an epoch are one record."""
    return [x for x, _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))]


def held_against(leader: Replica, known: Lineage, epoch: int) -> Compared:
    asking = compare(known, epoch, leader.start)
    try:
        asked = next(asking)
        for _ in range(100):
            asked = asking.send(leader.ends(asked))
    except StopIteration as done:
        return done.value
    raise AssertionError("it asks without end")


number = st.integers(0, 2)
steps = st.lists(
    st.tuples(st.just("elect"), number, st.just(0))
    | st.tuples(st.just("write"), st.integers(1, 4), st.just(0))
    | st.tuples(st.just("follow"), number, st.integers(0, 3))
    | st.tuples(st.just("retain"), st.integers(0, 4), st.just(0))
    | st.tuples(st.just("plan"), st.integers(0, 3), st.just(0)),
    max_size=30,
)


TWO_UNCLEAN = [("write", 4, 0), ("follow", 1, 0), ("follow", 2, 3), ("elect", 2, 0), ("write", 3, 0), ("plan", 0, 0)]
"""A leader that has less than another replica, which becomes the next one with what it has."""


EMPTY = [("write", 1, 0), ("elect", 1, 0), ("write", 2, 0), ("retain", 0, 0), ("plan", 0, 0), ("write", 1, 0)]
"""A line that begins with a log of which nothing is left."""


TAKEN = [("write", 1, 0), ("elect", 1, 0), ("write", 1, 0), ("elect", 1, 0), ("plan", 0, 0), ("retain", 0, 0)]
"""A replica comes back with a record that was lost before what the line has read there, and retention has taken."""


@settings(max_examples=1000)
@given(steps)
@example([*TAKEN, ("plan", 0, 0), ("elect", 0, 0)])
@example([*EMPTY, ("elect", 0, 0), ("write", 1, 0)])
@example([*TWO_UNCLEAN, ("elect", 1, 0)])
@example([*TWO_UNCLEAN, ("elect", 1, 0), ("write", 4, 0)])
def test_the_offset_where_a_log_parts_from_the_one_that_was_read_is_found(given_steps):
    partition = Partition()
    known: Lineage = ()
    read: list[int] = []
    began = 0
    for what, a, b in [*given_steps, ("plan", 0, 0)]:
        if what != "plan":
            getattr(partition, what)(*((a, b) if what == "follow" else (a,)))
            continue
        leader = partition.leader
        found = held_against(leader, known, partition.epoch)
        parted = len(common(read, leader.records))
        if leader.start <= len(read) and known:
            # Of what is not deleted every record that is another one is found, and no other.
            kept = len(read) if found.kept is None else min(found.kept, len(read))
            if parted >= began:
                assert max(kept, leader.start) == max(parted, leader.start)
            else:
                # Below where the line began only what has come since is owed to it.
                assert all(epoch < known[0][0] for epoch in leader.records[max(parted, leader.start) : kept])
        if not known:
            began = leader.start
        elif parted < len(read) or leader.start > len(read):
            # A person decides; a new line begins with what is there.
            return
        known = trimmed(found.lineage, leader.start)
        # Of what retention has taken nothing is known any more, as of what was there before the line.
        began = max(began, leader.start)
        assert all(e < f and 0 <= at < then for (e, at), (f, then) in pairwise(known))
        assert known[-1][0] == partition.epoch
        read = leader.records[: max(len(read), leader.start, len(leader.records) - a)]


def test_a_leader_with_a_lower_epoch_than_was_known_is_of_a_restored_cluster():
    assert held_against(Replica(records=[0] * 80, led={0: 0}), ((0, 0), (3, 50)), 0) == Compared(((0, 0),), 50)
    assert held_against(Replica(records=[0] * 80, led={0: 0, 2: 60}), ((0, 0), (3, 50)), 2).kept == 50


def test_an_epoch_without_records_of_which_a_replica_knows_nothing_is_no_cut():
    """As where a replica was moved to another disk, and no record has come since."""
    moved = Replica(records=[8] * 600, led={8: 0})
    assert held_against(moved, ((8, 0), (9, 600)), 10) == Compared(((8, 0),), 600)
    assert held_against(moved, (), 10) == Compared((), None)
    # Of such a partition nothing is said.
    assert compared(lambda asked: {p: moved.ends(e) for p, e in asked.items()}, {}, {0: 10}, {0: 0}) == {}


def test_partitions_are_compared_together_and_what_is_deleted_is_not_remembered():
    logs = {0: Replica(records=[0, 2, 2], led={0: 0, 4: 3}), 1: Replica(start=3, records=[0, 2, 2, 5], led={5: 3})}
    rounds: list[dict[int, int]] = []

    def ask(asked: dict[int, int]) -> dict[int, EpochEnd]:
        rounds.append(dict(asked))
        return {p: logs[p].ends(epoch) for p, epoch in asked.items()}

    found = compared(ask, {0: ((0, 0), (1, 2))}, {0: 4, 1: 5}, {0: 0, 1: 3})
    assert found == {0: Compared(((0, 0), (2, 1), (4, 3)), 1), 1: Compared(((5, 3),), None)}
    assert rounds[0] == {0: 1, 1: 4} and all(set(asked) == {0} for asked in rounds[1:])


def test_an_epoch_that_the_leaders_log_has_not_is_not_in_common():
    assert held_against(Replica(records=[5] * 3, led={5: 0}), ((0, 0), (3, 2)), 5) == Compared(((5, 0),), 0)
