"""Logs that are cut, or lose records, while another source waits to begin, against a real PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest
from sqlalchemy import select

from ratchet.errors import IllegalMove, RecordsLost, Repartitioned
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss
from ratchet.operate.outcome import lines_of
from ratchet.operate.repartition import repartitioned
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.plan import course_of
from ratchet.sinks.lookup import sink_of
from ratchet.source.lineage import EpochEnd, compared

from .moving import BEGUN, KEYS, SPEC, Produced, drain, is_exact, one, ranges_of, say
from .staging import always_active, do, start


@pytest.mark.invariant("I1")
def test_a_loss_that_is_accepted_while_a_source_waits_passes_it_over_and_keys_are_asked_about_again(moving, topic):
    topic.produce(*KEYS)
    one(moving, topic, "a")
    topic.add_partitions(4)
    topic.produce(*KEYS)
    say(moving, topic)
    log = partial(accept_loss, moving, SPEC, topic.offsets, "the disk was restored", "somebody")
    topic.kept, topic.lineages = {0: 2}, {p: ((0, 0),) for p in topic.records} | {0: ((0, 0), (2, 2))}
    said = lines_of(log())
    assert "moving: a log was cut: source 3 begins; what was committed of the one before stays" in said
    assert any("source 2, which waited, never begins; `ratchet repartitioned moving" in line for line in said)
    topic.kept = {}
    with pytest.raises(Repartitioned, match="4 partitions, 2 were there before"):
        begin(moving, SPEC, Run("dag", "b"), topic.offsets, always_active)
    say(moving, topic)
    drain(moving, topic, "c")
    last = sink_of(SPEC, "last").target.c
    with moving.begin() as conn:
        assert dict(map(tuple, conn.execute(select(last.k, last.a)))) == topic.last
    assert [fault for check in verify(moving, SPEC) for fault in check.faults] == []


def test_what_retention_takes_beyond_the_end_of_a_source_is_a_loss_of_the_next_one(moving, topic):
    topic.produce(*KEYS)
    one(moving, topic, "a")
    topic.add_partitions(4)
    say(moving, topic)
    topic.produce(*KEYS, *KEYS)
    topic.beginning[0] = 9
    accept = partial(accept_loss, moving, SPEC, topic.offsets, "deleted", "somebody")
    assert "t-0[4,6), 2 offsets, are accepted as lost" in lines_of(accept())[0]
    begun = one(moving, topic, "b")
    assert ranges_of(begun) == ["t-1[3,6)"]
    with pytest.raises(RecordsLost, match=r"t-0\[6,9\)"):
        begin(moving, SPEC, Run("dag", "c"), topic.offsets, always_active)
    assert "t-0[6,9), 3 offsets, are accepted as lost" in lines_of(accept())[0]
    drain(moving, topic, "d")
    assert [fault for check in verify(moving, SPEC) for fault in check.faults] == []


@dataclass
class Led(Produced):
    """A topic whose partitions get other leaders, each with an epoch of its own."""

    epochs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def elect(self, partition: int, at: int | None = None) -> None:
        """Another leader: one that has every record, or whose log ends at that offset."""
        of = self.records[partition]
        del of[len(of) if at is None else at :]
        before = self._epochs(partition)
        self.epochs[partition] = [*((e, start) for e, start in before if start < len(of)), (before[-1][0] + 1, len(of))]
        left = sorted((at, key, value) for of in self.records.values() for key, value, at in of)
        self.last = {key: value for _, key, value in left}
        self._look()

    def offsets(self, before=None, known=None):
        if known is not None and known.lineages is not None:
            now = {p: self._epochs(p)[-1][0] for p in self.records}
            found = compared(self._ends, known.lineages, now, self.beginning)
            self.lineages = {p: log.lineage for p, log in found.items()}
            self.kept = {p: log.kept for p, log in found.items() if log.kept is not None}
        return super().offsets(before, known)

    def _epochs(self, partition: int) -> list[tuple[int, int]]:
        return self.epochs.get(partition, [(0, 0)])

    def _ends(self, asked: dict[int, int]) -> dict[int, EpochEnd]:
        """What leaders answer to questions for epochs."""
        found: dict[int, EpochEnd] = {}
        for partition, epoch in asked.items():
            epochs = self._epochs(partition)
            at = len([e for e, _ in epochs if e <= epoch]) - 1
            ends = [*(start for _, start in epochs[1:]), len(self.records[partition])]
            found[partition] = EpochEnd(epochs[at][0], ends[at]) if at >= 0 else EpochEnd(epoch, epochs[0][1])
        return found


@pytest.mark.invariant("I1")
def test_a_cut_of_what_is_planned_is_told_though_nothing_of_its_partition_is_left_to_plan(moving):
    topic = Led()
    topic.produce(*["k0"] * 6, *["k1"] * 30)
    start(moving, SPEC, topic, "a")
    topic.add_partitions(4)
    repartitioned(moving, SPEC, topic.offsets, "they are four", "amy")
    many = SPEC.model_copy(update={"max_in_flight": 20})
    number, left = 0, {0: 0}
    while 0 in left:
        start(moving, many, topic, f"b{number}")
        number += 1
        with moving.begin() as conn:
            left = course_of(conn, read_line(conn, SPEC.name)).left
    assert left, "the next source waits"
    topic.elect(0, at=4)
    with pytest.raises(RecordsLost, match="t-0 was cut at offset 4"):
        start(moving, many, topic, "c")
    with pytest.raises(RecordsLost, match="t-0 was cut at offset 4"):
        repartitioned(moving, SPEC, topic.offsets, "again", "amy", BEGUN)


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("more", [0, 1, 9], ids="{} records since".format)
def test_a_cut_below_where_the_next_source_begins_is_told_and_keys_are_asked_about_again(moving, more):
    """Nothing that is planned is lost; with other records there, the present source would take some of the next."""
    topic = Led()
    topic.produce(*KEYS, *KEYS)
    one(moving, topic, "a")
    # Leaders that change without a loss, before the decision and after it.
    topic.elect(1)
    topic.add_partitions(4)
    topic.produce(*KEYS)
    assert [str(at.offset) for at in say(moving, topic).opened.starts] == ["15", "15", "0", "0"]
    topic.produce("k1")
    topic.elect(1)
    begun = start(moving, SPEC, topic, "b")
    topic.elect(0, at=10)
    topic.produce(*["k4", "k8"] * more, "k2")
    cut = r"t-0 was cut at offset 10.*, though keys are said to be in other partitions from offset 15 on.*accept-loss"
    for run in ("c", "d"):
        with pytest.raises(RecordsLost, match=f"{cut} moving --reason …` goes on from 7 with every new record"):
            begin(moving, SPEC, Run("dag", run), topic.offsets, always_active)
    with pytest.raises(RecordsLost, match=cut):
        say(moving, topic)
    tried = accept_loss(moving, SPEC, topic.offsets, "the disk is gone", "somebody", dry_run=True)
    said = lines_of(accept_loss(moving, SPEC, topic.offsets, "the disk is gone", "somebody"))
    assert [*said, "this was a dry run: nothing was changed"] == lines_of(tried)
    assert said[:2] == [
        "moving: a log was cut: source 3 begins; what was committed of the one before stays",
        "moving: source 2, which waited, never begins; `ratchet repartitioned moving --reason …` says anew where keys "
        "have moved",
    ]
    with pytest.raises(IllegalMove, match="there is no loss to accept"):
        accept_loss(moving, SPEC, topic.offsets, "again", "somebody")
    with pytest.raises(Repartitioned, match="4 partitions, 2 were there before"):
        begin(moving, SPEC, Run("dag", "c"), topic.offsets, always_active)
    say(moving, topic)
    do(moving, SPEC, begun, topic.make)
    commit(moving, SPEC, begun.claim)
    settle(moving, SPEC, Run("dag", "b"), succeeded=True)
    topic.elect(2)
    drain(moving, topic, "e")
    is_exact(moving, topic)


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("at", [2, 9], ids=["of what is planned", "of what is not"])
def test_where_keys_moved_among_the_partitions_that_are_there_is_asked_again_when_a_loss_passes_over_it(moving, at):
    topic = Led()
    topic.produce(*KEYS[:8])
    one(moving, topic, "a")
    topic.produce(*KEYS)
    since = topic.now
    # Another hash: each key goes to partition 0.
    topic.divided = 1
    topic.produce(*KEYS)
    say(moving, topic, since)
    topic.elect(0, at)
    topic.produce(*KEYS[3:])
    accept_loss(moving, SPEC, topic.offsets, "the disk is gone", "somebody")
    for run in ("b", "c"):
        with pytest.raises(Repartitioned, match="source 2, .*, was passed over .* `ratchet repartitioned moving --at"):
            begin(moving, SPEC, Run("dag", run), topic.offsets, always_active)
    # Another loss that is accepted says nothing of keys.
    topic.elect(0, 1)
    topic.produce(*KEYS[2:])
    accept_loss(moving, SPEC, topic.offsets, "it is gone once more", "somebody")
    with pytest.raises(Repartitioned, match="source 2, .*, was passed over"):
        begin(moving, SPEC, Run("dag", "d"), topic.offsets, always_active)
    say(moving, topic, since)
    drain(moving, topic, "e")
    last = sink_of(SPEC, "last").target.c
    with moving.begin() as conn:
        assert dict(map(tuple, conn.execute(select(last.k, last.a)))) == topic.last
    assert [fault for check in verify(moving, SPEC) for fault in check.faults] == []
