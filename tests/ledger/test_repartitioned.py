"""Keys that go to other partitions, and the move by which a person says from where on, against a real PostgreSQL."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text

from ratchet.errors import IllegalMove, Refused, Repartitioned, TopicChanged
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import sources
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss, void
from ratchet.operate.outcome import lines_of
from ratchet.operate.prune import prune
from ratchet.operate.repartition import repartitioned
from ratchet.operate.snapshot.status import status
from ratchet.operate.snapshot.words import halt_of, next_source_of
from ratchet.operate.verify import verify
from ratchet.protocol.another import waiting_records
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact
from ratchet.protocol.plan import reached
from ratchet.sinks.lookup import sink_of

from .moving import BEGUN, KEYS, SPEC, drain, is_exact, one, say
from .staging import always_active, do, positions_of, start

KEPT_NOT = SPEC.model_copy(update={"keep_deltas": timedelta(0)})


@pytest.mark.invariant("I3")
def test_keys_of_partitions_that_were_added_follow_what_the_old_ones_still_hold(moving, topic):
    topic.produce(*KEYS)
    prepared = start(moving, SPEC, topic, "a")
    do(moving, SPEC, prepared, topic.make)
    topic.produce(*KEYS[:8])
    topic.add_partitions(4)
    topic.produce(*KEYS[4:], "k20")
    topic.produce("k2", "k7", gone=True)
    said = (
        "topic t has 4 partitions, 2 were there before: producers give keys to other partitions now, and last has no "
        "order column .*; nothing was planned; `ratchet repartitioned moving --reason …` goes on"
    )
    for run in ("b", "c"):
        with pytest.raises(Repartitioned, match=said):
            begin(moving, SPEC, Run("dag", run), topic.offsets, always_active)
    tried = say(moving, topic, dry_run=True)
    assert lines_of(tried) == [
        "moving: keys are in other partitions from the offsets below on: source 2 begins there, when all that is "
        "before them is planned; of a key in both, its record in the later source is the last",
        "moving: t-0 goes on at offset 13; it was planned up to 4",
        "moving: t-1 goes on at offset 12; it was planned up to 3",
        "moving: t-2 goes on at offset 0; it was planned up to 0",
        "moving: t-3 goes on at offset 0; it was planned up to 0",
        "this was a dry run: nothing was changed",
    ]
    with moving.begin() as conn:
        assert len(conn.execute(select(sources)).all()) == 1
    assert lines_of(say(moving, topic)) == lines_of(tried)[:-1]
    with moving.begin() as conn:
        (event,) = [e for e in history.read(conn, SPEC.name) if e.move == "repartitioned"]
        assert (event.detail["why"], event.detail["source"]) == ("partitions were added", 2)
    waits = "source 2 begins when source 1 is planned to its end: t-0 from 4 to 13, t-1 from 3 to 12"
    assert next_source_of(status(moving, SPEC.name)) == waits
    # What is prepared stays so, and what comes meanwhile waits for the next source.
    topic.produce("k0", "k3", "k2")
    assert waiting_records(moving, SPEC, topic.offsets).records == 18
    commit(moving, SPEC, prepared.claim)
    settle(moving, SPEC, Run("dag", "a"), succeeded=True)
    taken = [at for run in "bcd" for at in positions_of(one(moving, topic, run))]
    assert sorted(taken) == [*((0, o) for o in range(4, 13)), *((1, o) for o in range(3, 12))]
    assert waiting_records(moving, SPEC, topic.offsets).records > 0
    with moving.begin() as conn:
        line = read_line(conn, SPEC.name)
        assert line is not None and line.source == 1 and reached(conn, line) == (1, {0: 13, 1: 12, 2: 0, 3: 0})
    drain(moving, topic, "e")
    is_exact(moving, topic)
    assert status(moving, SPEC.name).next_source is None
    with moving.begin() as conn:
        begun = conn.execute(select(sources.c.source, sources.c.cause, sources.c.first_txid))
        assert list(map(tuple, begun)) == [(1, "first", 1), (2, "repartitioned", 5)]
    topic.produce(*KEYS)
    drain(moving, topic, "f")
    is_exact(moving, topic)
    with moving.begin() as conn:
        conn.execute(text("update ratchet.sources set first_txid = 6 where source = 2"))
    faults = [fault for check in verify(moving, SPEC) for fault in check.faults]
    assert set(faults) == {"transaction 5 is of source 2, which begins with transaction 6"}


@pytest.mark.invariant("I3")
@pytest.mark.parametrize("state", ["half done", "prepared, and a later time was given", "halted"])
def test_what_an_unfinished_plan_has_beyond_the_time_that_is_given_is_left_to_the_next_source(moving, topic, state):
    """Keys move among the partitions that are there, so the next plan has a key in two."""
    topic.produce(*KEYS)
    drain(moving, topic, "a")
    topic.produce("k0", "k1", "k3")
    since = topic.now
    # Another hash: each key goes to the other partition.
    topic.divided = 1
    topic.produce("k1", "k5", "k2", "k1")
    topic.produce("k3", gone=True)
    topic.divided = 2
    begun = start(moving, SPEC, topic, "b")
    start(moving, SPEC, topic, "c")
    if state == "half done":
        do(moving, SPEC, Begun(begun.claim, begun.slices[:1], begun.how, ""), topic.make)
    else:
        do(moving, SPEC, begun, topic.make)
    if state == "halted":
        for run, adopting in (("b", "x"), ("x", "y"), ("y", None)):
            with pytest.raises(Refused, match="is in partition .* `ratchet repartitioned moving --at TIME --reason …`"):
                commit(moving, SPEC, begun.claim)
            settle(moving, SPEC, Run("dag", run), succeeded=False, reason="refused")
            if adopting:
                begun = start(moving, SPEC, topic, adopting)
                do(moving, SPEC, begun, topic.make)
        assert "ratchet repartitioned moving" in halt_of(status(moving, SPEC.name))
    with pytest.raises(IllegalMove, match="has 2 partitions, and had as many before; .* since when with --at"):
        say(moving, topic)
    if "later" in state:
        assert not say(moving, topic, topic.now).changes
        with pytest.raises(Refused, match="is in partition"):
            commit(moving, SPEC, begun.claim)
    said = lines_of(say(moving, topic, since))
    left = [line.partition(", leaves ")[2] for line in said if ", leaves " in line]
    assert sum(int(r.split(",")[1].split(")")[0]) - int(r.split("[")[1].split(",")[0]) for r in left) == 5, said
    assert not status(moving, SPEC.name).halt
    for run in ("bc", "c")[state == "halted"]:
        settle(moving, SPEC, Run("dag", run), succeeded=False, reason="it was taken out")
    drain(moving, topic, "d")
    is_exact(moving, topic)


@pytest.mark.invariant("I3")
def test_a_revision_of_what_was_before_keys_moved_does_not_win_over_what_came_after(moving, topic):
    topic.produce(*KEYS[:6])
    assert isinstance(one(moving, topic, "a"), Begun)
    topic.add_partitions(4)
    topic.produce(*KEYS[:4])
    say(moving, topic)
    drain(moving, topic, "b")
    is_exact(moving, topic)
    # Nor is what came after, revised, a clash with what was before.
    for run, partitions in (("a", {0, 1}), ("b0", {0, 1}), ("b1", {2, 3})):
        again = start(moving, SPEC, topic, run, 1)
        assert again.claim.revision == 1 and {p for p, _ in positions_of(again)} == partitions
        do(moving, SPEC, again, topic.make)
        commit(moving, SPEC, again.claim)
        is_exact(moving, topic)


@pytest.mark.invariant("I3")
def test_keys_that_move_win_over_a_base_and_within_the_next_source_they_must_stay(moving, topic):
    topic.produce(*KEYS)
    topic.produce("k3", gone=True)
    drain(moving, topic, "a")
    assert "are merged into the base" in compact(moving, KEPT_NOT)
    topic.add_partitions(4)
    topic.produce(*KEYS[:7])
    say(moving, topic)
    drain(moving, topic, "b")
    is_exact(moving, topic)
    assert "are merged into the base" in compact(moving, KEPT_NOT)
    is_exact(moving, topic)
    # A producer that has not heard of the new partitions yet.
    topic.divided = 2
    topic.produce("k6")
    begun = start(moving, SPEC, topic, "c")
    do(moving, SPEC, begun, topic.make)
    with pytest.raises(Refused, match=r"key k6 is in partition 0 at offset \d+ and in partition 2 at offset 1"):
        commit(moving, SPEC, begun.claim)


def pruned(ledger: Ledger) -> None:
    """Take all out of the ledger that can be."""
    compact(ledger, KEPT_NOT)
    with suppress(IllegalMove):
        prune(ledger, KEPT_NOT, "old", "somebody")


@pytest.mark.invariant("I1")
def test_what_is_pruned_of_earlier_sources_is_not_taken_again_by_a_later_one(moving, topic):
    topic.produce(*KEYS)
    drain(moving, topic, "a")
    topic.add_partitions(4)
    early = topic.now
    topic.produce(*KEYS)
    say(moving, topic)
    drain(moving, topic, "b")
    # The newest transaction stays in the ledger, and is of one partition.
    topic.produce("k2")
    drain(moving, topic, "c")
    pruned(moving)
    with moving.begin() as conn:
        line = read_line(conn, SPEC.name)
        assert line is not None and line.pruned == line.head - 1
    is_exact(moving, topic)
    say(moving, topic, early)
    topic.produce(*KEYS)
    drain(moving, topic, "d")
    is_exact(moving, topic)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.invariant("I3")
def test_however_often_partitions_are_added_the_last_record_of_each_key_stays(moving, topic, seed):
    chance = random.Random(seed)
    waiting: list[tuple[Begun, str]] = []
    one(moving, topic, "first")
    for step in range(12):
        topic.produce(*chance.choices(KEYS, k=chance.randrange(8)))
        topic.produce(*chance.choices(KEYS, k=chance.randrange(3)), gone=True)
        if len(topic.records) < 16 and chance.random() < 0.4:
            # Also while a source waits already.
            topic.add_partitions(len(topic.records) * 2)
            if chance.random() < 0.5:
                say(moving, topic)
        if chance.random() < 0.3:
            pruned(moving)
        run = f"r{step}"
        try:
            begun = begin(moving, SPEC, Run("dag", run), topic.offsets, always_active)
        except Repartitioned:
            say(moving, topic)
            continue
        if isinstance(begun, Begun):
            waiting.append((begun, run))
        while waiting and chance.random() < 0.6:
            begun, run = waiting.pop(0)
            do(moving, SPEC, begun, topic.make)
            commit(moving, SPEC, begun.claim)
            settle(moving, SPEC, Run("dag", run), succeeded=True)
    for begun, run in waiting:
        do(moving, SPEC, begun, topic.make)
        commit(moving, SPEC, begun.claim)
        settle(moving, SPEC, Run("dag", run), succeeded=True)
    drain(moving, topic, "end")
    is_exact(moving, topic)


@pytest.mark.invariant("I3")
def test_keys_of_a_topic_that_was_made_again_may_be_in_other_partitions(moving, topic):
    topic.produce(*KEYS)
    drain(moving, topic, "a")
    old, topic.topic_id = dict(topic.last), "second"
    topic.records, topic.last = {0: [], 1: [], 2: []}, {}
    topic.divided = 3
    topic.produce(*KEYS[:9])
    topic.produce("k5", gone=True)
    with pytest.raises(TopicChanged, match="deleted and made again"):
        begin(moving, SPEC, Run("dag", "b"), topic.offsets, always_active)
    accept_loss(moving, SPEC, topic.offsets, "it was made again", "somebody")
    drain(moving, topic, "b")
    last = sink_of(SPEC, "last").target.c
    with moving.begin() as conn:
        state = dict(map(tuple, conn.execute(select(last.k, last.a))))
    assert state == {key: value for key, value in (old | topic.last).items() if value is not None}
    assert [fault for check in verify(moving, SPEC) for fault in check.faults] == []


def test_what_was_voided_before_its_turn_is_not_taken_again(moving, topic):
    topic.produce(*KEYS)
    since = BEGUN + timedelta(seconds=3)
    start(moving, SPEC, topic, "a")
    start(moving, SPEC, topic, "b")
    void(moving, SPEC, 2, "it is of no use", "somebody")
    with pytest.raises(IllegalMove, match="transaction 2 is voided, and its turn has not come"):
        say(moving, topic, since)
    void(moving, SPEC, 1, "this neither", "somebody")
    assert [start_.offset for start_ in say(moving, topic, since).opened.starts] == [6, 6]


def test_keys_are_said_to_have_moved_only_where_that_means_something(moving, topic):
    topic.produce(*KEYS)
    start(moving, SPEC, topic, "a")
    topic.add_partitions(3)
    spec = SPEC.model_copy(update={"sinks": SPEC.sinks[:1]})
    with pytest.raises(IllegalMove, match="no sink needs to know"):
        repartitioned(moving, spec, topic.offsets, "added", "somebody")
    topic.end = topic.stable | {0: topic.stable[0] + 4}
    with pytest.raises(IllegalMove, match="which of these records are from before .* is known when it is decided"):
        say(moving, topic, topic.now)
    topic.end = {}

    def meanwhile(*asked):
        start(moving, spec, topic, "b")
        return topic.offsets(*asked)

    with pytest.raises(IllegalMove, match="a run has planned meanwhile; nothing was decided"):
        repartitioned(moving, SPEC, meanwhile, "added", "somebody")
    # That run's spec has no sink to which it matters, and has taken the partition.
    with pytest.raises(IllegalMove, match="has 3 partitions, and had as many before"):
        say(moving, topic)
    topic.topic_id = "second"
    with pytest.raises(TopicChanged, match="made again; nothing was planned; `ratchet accept-loss moving"):
        say(moving, topic)


def test_a_time_that_has_not_come_says_nothing_of_where_keys_are(moving, topic):
    topic.produce("k0", "k1")
    start(moving, SPEC, topic, "a")
    with pytest.raises(IllegalMove, match="has not come yet"):
        repartitioned(moving, SPEC, topic.offsets, "tomorrow", "amy", datetime.now(UTC) + timedelta(hours=1))
