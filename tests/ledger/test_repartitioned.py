"""Keys that go to other partitions, and the move by which a person says from where on, against a real PostgreSQL."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import select, text

from ratchet import Append, Json, Pipeline, Topic, Upsert
from ratchet.errors import IllegalMove, RatchetError, RecordsLost, Refused, Repartitioned, TopicChanged
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import sources
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss, void
from ratchet.operate.attention import may_have_records, may_want_records, standings
from ratchet.operate.migrate import migrate
from ratchet.operate.outcome import lines_of
from ratchet.operate.prune import prune
from ratchet.operate.repartition import repartitioned
from ratchet.operate.status import status
from ratchet.operate.verify import verify
from ratchet.protocol.another import waiting_records
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact
from ratchet.protocol.plan import course_of, reached
from ratchet.sinks.lookup import sink_of
from tests.proof.reference import Made

from .staging import Log, always_active, do, positions_of, start

SPEC = Pipeline(
    name="moving",
    source=Topic("t", key="k string", value=Json("a bigint"), tombstones="delete"),
    transform="tests.ledger.staging:rows_of",
    sinks=[Append("seen", columns="k string, a bigint"), Upsert("last", key="k string", columns="a bigint")],
    max_records=7,
    slice_records=4,
    max_in_flight=4,
)
KEPT_NOT = SPEC.model_copy(update={"keep_deltas": timedelta(0)})
BEGUN = datetime(2024, 5, 1, tzinfo=UTC)


@dataclass
class Topic_(Log):
    """A topic to which one producer gives each key by a hash, as long as it has so many partitions; its time is a
    record's number among all."""

    records: dict[int, list[tuple[str, int | None, int]]] = field(default_factory=lambda: {0: [], 1: []})
    divided: int = 2
    """Among how many partitions the producer divides keys; it may not have heard of the last ones."""
    last: dict[str, int | None] = field(default_factory=dict)
    produced: int = 0

    def __post_init__(self) -> None:
        self._look()

    def produce(self, *keys: str, value: int | None = None, gone: bool = False) -> None:
        for key in keys:
            self.produced += 1
            given = None if gone else self.produced
            self.records[hash_of(key) % self.divided].append((key, given, self.produced))
            self.last[key] = given
        self._look()

    def add_partitions(self, count: int) -> None:
        """The topic has so many from here on, and the producer knows."""
        self.records |= {p: [] for p in range(len(self.records), count)}
        self.divided = count
        self._look()

    @property
    def now(self) -> datetime:
        """The time of the next record."""
        return BEGUN + timedelta(seconds=self.produced + 1)

    def make(self, partition: int, offset: int) -> Made:
        key, value, _ = self.records[partition][offset]
        row = {"k": key, "a": value}
        return {"last": [row | {"_deleted": value is None}], **({} if value is None else {"seen": [row]})}

    def offsets(self, before=None, known=None):
        if before is not None:
            since = (before.at - BEGUN).total_seconds()
            self.wanted[before.at] = {p: sum(at < since for _, _, at in of) for p, of in self.records.items()}
        return super().offsets(before, known)

    def _look(self) -> None:
        self.beginning = dict.fromkeys(self.records, 0)
        self.stable = {p: len(of) for p, of in self.records.items()}


def hash_of(key: str) -> int:
    return int(key[1:])


KEYS = [f"k{n}" for n in range(12)]


@pytest.fixture
def moving(ledger_url, monkeypatch):
    monkeypatch.setattr("ratchet.operate.prune.KEPT", 1)
    migrate(ledger_url, [SPEC])
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def topic():
    return Topic_()


def one(ledger: Ledger, topic: Topic_, run: str, spec: Pipeline = SPEC) -> Begun | Skipped:
    """A run from begin to settle; what begin has said."""
    look(ledger, topic, spec)
    begun = begin(ledger, spec, Run("dag", run), topic.offsets, always_active)
    if isinstance(begun, Begun):
        do(ledger, spec, begun, topic.make)
        commit(ledger, spec, begun.claim)
        settle(ledger, spec, Run("dag", run), succeeded=True)
    return begun


def look(ledger: Ledger, topic: Topic_, spec: Pipeline) -> None:
    """The maintenance, which asks about many lines at once, overlooks no records that wait."""
    try:
        waiting = waiting_records(ledger, spec, topic.offsets)
    except RatchetError:
        # Whoever begins is told.
        return
    with ledger.begin() as conn:
        standing = standings(conn, [spec.name]).get(spec.name)
    if waiting:
        assert may_want_records(spec, standing) and may_have_records(spec, standing, topic.stable)


def drain(ledger: Ledger, topic: Topic_, tag: str) -> None:
    """Runs until nothing is left."""
    for number in range(60):
        begun = one(ledger, topic, f"{tag}{number}")
        if isinstance(begun, Skipped):
            assert begun.reason is Skip.NO_RECORDS
            return
    raise AssertionError("it goes on and on")


def ranges_of(begun: Begun) -> list[str]:
    return [str(r) for part in begun.slices for r in part.ranges]


def is_exact(ledger: Ledger, topic: Topic_) -> None:
    """Every record is there once, the state is what the producer wrote last, and the ledger agrees."""
    seen, last = (sink_of(SPEC, name).target.c for name in ("seen", "last"))
    with ledger.begin() as conn:
        rows = sorted(map(tuple, conn.execute(select(seen._partition, seen._offset, seen.k, seen.a))))
        state = dict(map(tuple, conn.execute(select(last.k, last.a))))
    wanted = [(p, o, k, a) for p, of in topic.records.items() for o, (k, a, _) in enumerate(of) if a is not None]
    assert rows == sorted(wanted)
    assert state == {key: value for key, value in topic.last.items() if value is not None}
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []


def say(ledger: Ledger, topic: Topic_, at: datetime | None = None, **how):
    return repartitioned(ledger, SPEC, topic.offsets, "partitions were added", "somebody", at, **how)


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
    assert status(moving, SPEC.name).next_source == waits
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
        assert "ratchet repartitioned moving" in status(moving, SPEC.name).halt
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
    with pytest.raises(TopicChanged, match="`ratchet accept-loss moving --reason …` comes first"):
        say(moving, topic)


@dataclass
class Cut(Topic_):
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


def test_a_time_that_has_not_come_says_nothing_of_where_keys_are(moving, topic):
    topic.produce("k0", "k1")
    start(moving, SPEC, topic, "a")
    with pytest.raises(IllegalMove, match="has not come yet"):
        repartitioned(moving, SPEC, topic.offsets, "tomorrow", "amy", datetime.now(UTC) + timedelta(hours=1))
