"""Logs that are cut, or lose records, while another source waits to begin, against a real PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
from sqlalchemy import select

from ratchet.errors import RecordsLost, Repartitioned
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss
from ratchet.operate.outcome import lines_of
from ratchet.operate.repartition import repartitioned
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.plan import course_of
from ratchet.sinks.lookup import sink_of

from .moving import BEGUN, KEYS, SPEC, Produced, drain, one, ranges_of, say
from .staging import always_active, start


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
class Cut(Produced):
    """A topic whose log of partition 0 is cut at an offset, and has grown again since."""

    at: int | None = None

    def offsets(self, before=None, known=None):
        if known is not None:
            cut = {0: ((0, 0), (1, self.at))} if self.at is not None else {}
            self.lineages = {p: cut.get(p, ((0, 0),)) for p in self.records}
            self.kept = {p: of[1][1] for p, of in self.lineages.items() if len(of) > 1 and len(known.get(p, ())) == 1}
        return super().offsets(before, known)


@pytest.mark.invariant("I1")
def test_a_cut_of_what_is_planned_is_told_though_nothing_of_its_partition_is_left_to_plan(moving):
    topic = Cut(records={0: [], 1: []})
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
    topic.at = 4
    with pytest.raises(RecordsLost, match="t-0 was cut at offset 4"):
        start(moving, many, topic, "c")
    with pytest.raises(RecordsLost, match="t-0 was cut at offset 4"):
        repartitioned(moving, SPEC, topic.offsets, "again", "amy", BEGUN)
