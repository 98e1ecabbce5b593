"""A reading over brokers that do everything that brokers may do: it is exact, or says why not."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest

from ratchet.errors import BrokerUnreachable, IncompleteRead, RecordsLost, SettingsError, TopicChanged, UnknownTopic
from ratchet.ledger.work import OffsetRange
from ratchet.source import columnar
from ratchet.source.columnar import ColumnarSource
from ratchet.source.port import Origin
from ratchet.source.wire import (
    CORRUPT,
    NOT_ALLOWED,
    OK,
    OUT_OF_RANGE,
    UNKNOWN_TOPIC,
    Answer,
    Fetched,
    Layout,
    Lost,
    TopicLayout,
    Wanted,
)
from tests.source.batches import CONTROL, LZ4, NONE, TRANSACTIONAL, ZSTD, Batch, Record, marker
from tests.source.topics import ends, rows

NOT_LEADER, UNKNOWN_TOPIC_ID, STORAGE_ERROR = 6, 100, 56
PASSING = (NOT_LEADER, UNKNOWN_TOPIC_ID, STORAGE_ERROR, OUT_OF_RANGE, OUT_OF_RANGE, OUT_OF_RANGE)


@dataclass
class Brokers:
    """Three brokers and one topic, in memory; with `faults` they misbehave by `chance`, that often."""

    logs: dict[int, list[Batch]]
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    faults: float = 0.0
    now: float = 0.0
    topic_id: UUID = field(default_factory=uuid4)
    error: int = OK
    """What the metadata says of the topic."""
    refuse: dict[int, int] = field(default_factory=dict)
    """What a fetch of a partition says."""
    start: int = 0
    stable: int = -1
    """What an answer says that the last stable offset is."""
    fetches: int = 0
    small: bool = False
    """An answer has room for the first partition that has something."""
    dead: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.leaders = {p: self.chance.randrange(3) for p in self.logs}
        self.aborted = {p: aborted_of(log) for p, log in self.logs.items()}

    def misbehave(self) -> bool:
        return self.chance.random() < self.faults

    # What a Cluster does

    servers = "brokers"

    def layout(self, topics: Sequence[str]) -> Layout:
        if self.misbehave():
            raise Lost("nobody answers")
        leaders = {p: n for p, n in self.leaders.items() if not self.misbehave()}
        return Layout({}, {t: TopicLayout(self.error, self.topic_id, leaders) for t in topics})

    def connect(self, node: int) -> Connection:
        if node in self.dead or self.misbehave():
            raise Lost("refused")
        return Connection(self, node)

    def close(self) -> None:
        pass


class Connection:
    def __init__(self, brokers: Brokers, node: int):
        self.brokers, self.node, self.address = brokers, node, f"broker-{node}"
        self.wanted: list[Wanted] | None = None
        self.open = True
        # Always readable, as if an answer had come.
        self._readable, self._other = socket.socketpair()
        self._other.send(b"x")

    def fileno(self) -> int:
        return self._readable.fileno()

    def close(self) -> None:
        self.open = False
        self._readable.close()
        self._other.close()

    def fetch(self, wanted: Sequence[Wanted], size: int) -> None:
        assert self.wanted is None
        if not self.open or self.brokers.misbehave():
            raise Lost("it is gone")
        self.wanted = list(wanted)

    def log_start(self, topic: str, partition: int) -> int | None:
        if self.brokers.misbehave():
            raise Lost("it is gone now")
        return None if self.brokers.misbehave() else self.brokers.start

    def fetched(self) -> Answer:
        brokers = self.brokers
        brokers.fetches += 1
        brokers.now += 0.01
        assert self.wanted is not None
        wanted, self.wanted = self.wanted, None
        if brokers.misbehave():
            raise Lost("it ended")
        if brokers.misbehave():
            return Answer(brokers.chance.choice([0.0, 0.5]), [])
        if self.node in brokers.dead:
            raise Lost("it died")
        parts = [self._part(piece) for piece in wanted]
        if brokers.small:
            brokers.now += 1
            served = next((n for n, part in enumerate(parts) if part.records), None)
            parts = [part if n == served else replace(part, records=b"") for n, part in enumerate(parts)]
        if not any(part.records for part in parts):
            brokers.now += 0.5
        return Answer(0.0, brokers.chance.sample(parts, len(parts)))

    def _part(self, piece: Wanted) -> Fetched:
        brokers = self.brokers
        p = piece.partition
        if brokers.misbehave():
            brokers.leaders[p] = brokers.chance.randrange(3)
        error = brokers.refuse.get(p, OK)
        if brokers.leaders[p] != self.node:
            error = NOT_LEADER
        elif piece.position < brokers.start:
            error = OUT_OF_RANGE
        elif error == OK and brokers.misbehave():
            error = brokers.chance.choice(PASSING)
        served = [b for b in brokers.logs[p] if b.end > piece.position][: brokers.chance.randint(1, 4)]
        if error or brokers.misbehave():
            served = []
        content = b"".join(batch.bytes() for batch in served)
        if served and brokers.misbehave():
            # The end of an answer is cut, but never its first batch.
            content = content[: brokers.chance.randint(len(served[0].bytes()), len(content))]
        aborted = tuple((9, first) for first, end in brokers.aborted[p] if end > piece.position)
        return Fetched("t", p, error, brokers.start, brokers.stable, aborted, content)


def log_of(chance: random.Random) -> tuple[list[Batch], list[tuple]]:
    """Batches of a partition with transactions and holes; (offset, value) of what counts."""
    log: list[Batch] = []
    counting: list[tuple] = []
    undecided: list[Batch] = []
    base = chance.randrange(3)
    for _ in range(chance.randint(1, 25)):
        made = [Record(i, b"%d" % (base + i)) for i in range(chance.randint(1, 5))]
        kind = chance.choice(["plain", "plain", "bound", "end"])
        if kind == "end" and undecided:
            commit = chance.random() < 0.5
            batch = marker(base, 9, commit)
            if commit:
                counting += [(row[0], row[3]) for part in undecided for row in part.rows()]
            undecided = []
        elif kind == "bound":
            batch = Batch(base, made, chance.choice([NONE, LZ4]), attributes=TRANSACTIONAL, producer=9)
            undecided.append(batch)
        else:
            batch = Batch(base, made, chance.choice([NONE, ZSTD]))
            counting += [(row[0], row[3]) for row in batch.rows()]
        log.append(batch)
        base = batch.end + chance.choice([0, 0, 0, 7])
    log.append(marker(base, 9, False))
    return log, counting


def aborted_of(log: list[Batch]) -> list[tuple[int, int]]:
    """(first offset, end of the marker) of each aborted transaction; producer 9 is the only one that has any."""
    found, first = [], None
    for batch in log:
        if batch.attributes & CONTROL:
            aborts = batch.records[0].key == b"\x00\x00\x00\x00"
            if aborts and first is not None:
                found.append((first, batch.end))
            first = None
        elif batch.attributes & TRANSACTIONAL and first is None:
            first = batch.base
    return found


@pytest.fixture
def reading_of(monkeypatch):
    """A reading over `Brokers`, on their clock."""

    def read(brokers: Brokers, ranges: Sequence[OffsetRange], origins: dict[str, Origin] | None = None):
        def sleep(seconds: float) -> None:
            brokers.now += seconds

        monkeypatch.setattr(columnar, "time", SimpleNamespace(monotonic=lambda: brokers.now, sleep=sleep))
        monkeypatch.setattr(columnar, "Cluster", lambda settings: brokers)
        return ColumnarSource({"bootstrap.servers": "x:1"}, origins, fetch_bytes=1000).read(ranges)

    return read


def test_whatever_brokers_do_a_reading_is_exact(reading_of):
    for seed in range(1_500):
        chance = random.Random(seed)
        made = {p: log_of(chance) for p in range(chance.randint(1, 5))}
        brokers = Brokers({p: log for p, (log, _) in made.items()}, chance, chance.choice([0.0, 0.02, 0.1, 0.15]))
        ranges: list[OffsetRange] = []
        for p, (log, _) in made.items():
            cuts = sorted(chance.randint(0, log[-1].end) for _ in range(chance.choice([2, 4])))
            ranges += [OffsetRange("t", p, a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
        reading = reading_of(brokers, ranges)
        found = rows(reading)
        expected = Counter(
            (p, offset, value)
            for p, (_, counting) in made.items()
            for offset, value in counting
            if any(r.partition == p and r.from_offset <= offset < r.until_offset for r in ranges)
        )
        assert Counter((row[0], row[1], row[4]) for row in found) == expected, seed
        for p in made:
            offsets = [row[1] for row in found if row[0] == p]
            assert offsets == sorted(offsets), seed
            assert reading.reached["t", p] == ends(ranges)["t", p], seed
        assert reading.records == len(found)


def plain(*sizes: int) -> dict[int, list[Batch]]:
    """A log of batches of so many records in partition 0."""
    log, base = [], 0
    for size in sizes:
        log.append(Batch(base, [Record(i, b"%d" % (base + i)) for i in range(size)]))
        base += size
    return {0: log}


WHOLE = [OffsetRange("t", 0, 0, 9)]


@pytest.mark.parametrize(
    ("change", "error", "seconds"),
    [
        ({"refuse": {0: NOT_LEADER}}, BrokerUnreachable, 20),
        ({"refuse": {0: UNKNOWN_TOPIC_ID}}, BrokerUnreachable, 20),
        ({"refuse": {0: OUT_OF_RANGE}}, IncompleteRead, 20),
        ({"refuse": {0: OUT_OF_RANGE}, "start": 3}, RecordsLost, 0),
        ({"refuse": {0: NOT_ALLOWED}}, SettingsError, 0),
        ({"error": NOT_ALLOWED}, SettingsError, 0),
        ({"error": UNKNOWN_TOPIC}, UnknownTopic, 2),
        ({"faults": 1.0}, BrokerUnreachable, 10),
    ],
)
def test_what_does_not_pass_is_an_error_in_its_time(reading_of, change, error, seconds):
    brokers = Brokers(plain(4, 5), **change)
    reading = reading_of(brokers, WHOLE)
    with pytest.raises(error, match="brokers|t-0"):
        list(reading)
    assert reading.records == 0 and reading.reached == {("t", 0): 0}
    assert seconds <= brokers.now <= seconds + 1.5


def test_a_log_that_the_broker_finds_broken(reading_of):
    with pytest.raises(columnar.BrokenBatch, match="t-0 at brokers: the broker finds its log broken .* offset 0"):
        list(reading_of(Brokers(plain(9), refuse={0: CORRUPT}), WHOLE))


def test_an_end_that_does_not_come_is_waited_for_by_asking(reading_of):
    brokers = Brokers(plain(4))
    reading = reading_of(brokers, WHOLE)
    with pytest.raises(IncompleteRead, match=r"t-0\[0,9\) could be read up to offset 4 only"):
        list(reading)
    assert reading.records == 4 and reading.reached == {("t", 0): 4}
    assert 20 <= brokers.now <= 21 and brokers.fetches > 30


def test_the_wait_begins_anew_with_every_record(reading_of):
    brokers = Brokers(plain(1))
    reading = reading_of(brokers, WHOLE)
    look = brokers.chance.randint

    def later(a: int, b: int) -> int:
        # A record more for each 15 seconds; the whole takes two minutes.
        known = brokers.logs[0][-1].end
        if known < 1 + brokers.now // 15:
            brokers.logs[0].append(Batch(known, [Record(0, b"%d" % known)]))
        return look(a, b)

    brokers.chance.randint = later
    assert [row[1] for row in rows(reading)] == list(range(9))
    assert brokers.now > 100


def test_partitions_take_turns_and_a_wait_for_a_turn_is_no_standstill(reading_of):
    logs = {p: plain(*[1] * 4)[0] for p in range(60)}
    brokers = Brokers(logs, small=True)
    brokers.leaders = dict.fromkeys(logs, 0)
    brokers.chance.randint = lambda a, b: a
    reading = reading_of(brokers, [OffsetRange("t", p, 0, 4) for p in logs])
    found = rows(reading)
    assert [sorted(row[0] for row in found[n : n + 60]) for n in range(0, 240, 60)] == [list(range(60))] * 4
    assert brokers.now > 200


def test_a_leader_that_died_is_not_asked_again(reading_of):
    brokers = Brokers(plain(4, 5))
    brokers.leaders, brokers.chance.randint = {0: 1}, lambda a, b: a
    reading = reading_of(brokers, WHOLE)
    next(reading)
    brokers.dead, brokers.leaders = {1}, {0: 2}
    assert [row[1] for row in rows(reading)] == [4, 5, 6, 7, 8]
    assert brokers.now < 2


def test_a_broker_that_does_not_know_the_topic_yet_is_asked_again(reading_of):
    brokers = Brokers(plain(4, 5))
    brokers.chance.randint = lambda a, b: a
    reading = reading_of(brokers, WHOLE)
    next(reading)
    layout = brokers.layout

    def behind(topics: Sequence[str]) -> Layout:
        brokers.error = UNKNOWN_TOPIC if brokers.now < 10 else OK
        if brokers.now >= 10:
            brokers.refuse = {}
        return layout(topics)

    brokers.layout, brokers.refuse = behind, {0: NOT_LEADER}
    assert reading.records + len(rows(reading)) == 9
    assert 10 <= brokers.now < 12


def test_another_topic_of_the_same_name_is_seen_at_once_and_in_the_middle(reading_of):
    brokers = Brokers(plain(4, 5))
    with pytest.raises(TopicChanged, match="its id is .*, not an-older-one"):
        list(reading_of(brokers, WHOLE, {"t": Origin(0, "an-older-one")}))
    first = brokers.topic_id
    reading = reading_of(brokers, [OffsetRange("t", 0, 0, 12)], {"t": Origin(0, str(first))})
    next(reading)
    brokers.topic_id, brokers.refuse = uuid4(), {0: UNKNOWN_TOPIC_ID}
    with pytest.raises(TopicChanged, match=f"{brokers.topic_id}, not {first}"):
        list(reading)


COMPACTED = {"t": Origin(compacted=True)}


def test_of_a_compacted_log_a_range_ends_where_it_has_nothing_more_that_is_decided(reading_of):
    brokers = Brokers(plain(4), stable=9)
    reading = reading_of(brokers, [OffsetRange("t", 0, 0, 6), OffsetRange("t", 0, 7, 9)], COMPACTED)
    assert [row[1] for row in rows(reading)] == [0, 1, 2, 3]
    assert reading.reached["t", 0] == 9 and brokers.now < 3


@pytest.mark.parametrize(("origins", "stable"), [(COMPACTED, 8), ({}, 9)])
def test_what_is_undecided_or_missing_of_a_log_that_is_not_compacted_is_waited_for(reading_of, origins, stable):
    brokers = Brokers(plain(4), stable=stable)
    with pytest.raises(IncompleteRead, match="could be read up to offset 4 only"):
        list(reading_of(brokers, WHOLE, origins))
    assert brokers.now >= 20


def test_an_answer_that_others_have_filled_is_no_end_of_a_compacted_range(reading_of):
    logs = {p: plain(*[1] * 4)[0] for p in range(20)}
    brokers = Brokers(logs, small=True, stable=4)
    reading = reading_of(brokers, [OffsetRange("t", p, 0, 4) for p in logs], COMPACTED)
    assert Counter((row[0], row[1]) for row in rows(reading)) == Counter((p, o) for p in logs for o in range(4))


def test_records_that_went_while_it_read_are_lost_even_if_the_broker_skips_them(reading_of):
    logs = plain(4, 5)
    brokers = Brokers({0: logs[0][1:]})
    # As after a race of a fetch with retention: the answer begins later than asked, and so does the log.
    brokers.start = 0
    reading = reading_of(brokers, WHOLE)
    part = Connection._part

    def skipping(self, piece):
        found = part(self, piece)
        return Fetched(found.topic, found.partition, OK, 4, -1, (), found.records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_part", skipping)
        with pytest.raises(RecordsLost, match="offsets 0 to 3, its log begins at 4"):
            list(reading)
