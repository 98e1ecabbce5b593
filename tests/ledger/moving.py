"""A topic whose keys go to other partitions, and a line that has the last record of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import select

from ratchet import Append, Json, Pipeline, Topic, Upsert
from ratchet.errors import RatchetError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.attention import may_have_records, may_want_records, standings
from ratchet.operate.repartition import repartitioned
from ratchet.operate.verify import verify
from ratchet.protocol.another import waiting_records
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.sinks.lookup import sink_of
from tests.proof.reference import Made

from .staging import Log, always_active, do

SPEC = Pipeline(
    name="moving",
    source=Topic("t", key="k string", value=Json("a bigint"), tombstones="delete"),
    transform="tests.ledger.staging:rows_of",
    sinks=[Append("seen", columns="k string, a bigint"), Upsert("last", key="k string", columns="a bigint")],
    max_records=7,
    slice_records=4,
    max_in_flight=4,
)
BEGUN = datetime(2024, 5, 1, tzinfo=UTC)


@dataclass
class Produced(Log):
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


def one(ledger: Ledger, topic: Produced, run: str, spec: Pipeline = SPEC) -> Begun | Skipped:
    """A run from begin to settle; what begin has said."""
    look(ledger, topic, spec)
    begun = begin(ledger, spec, Run("dag", run), topic.offsets, always_active)
    if isinstance(begun, Begun):
        do(ledger, spec, begun, topic.make)
        commit(ledger, spec, begun.claim)
        settle(ledger, spec, Run("dag", run), succeeded=True)
    return begun


def look(ledger: Ledger, topic: Produced, spec: Pipeline) -> None:
    """The maintenance, which asks about many lines at once, overlooks no records that wait."""
    try:
        waiting = waiting_records(ledger, spec, topic.offsets)
    except RatchetError:
        # Whoever begins is told.
        return
    with ledger.begin() as conn:
        standing = standings(conn, [spec.name]).get(spec.name)
    if waiting:
        assert may_want_records(spec, standing) and may_have_records(standing, topic.stable)


def drain(ledger: Ledger, topic: Produced, tag: str) -> None:
    """Runs until nothing is left."""
    for number in range(60):
        begun = one(ledger, topic, f"{tag}{number}")
        if isinstance(begun, Skipped):
            assert begun.reason is Skip.NO_RECORDS
            return
    raise AssertionError("it goes on and on")


def ranges_of(begun: Begun) -> list[str]:
    return [str(r) for part in begun.slices for r in part.ranges]


def is_exact(ledger: Ledger, topic: Produced) -> None:
    """Every record is there once, the state is what the producer wrote last, and the ledger agrees."""
    seen, last = (sink_of(SPEC, name).target.c for name in ("seen", "last"))
    with ledger.begin() as conn:
        rows = sorted(map(tuple, conn.execute(select(seen._partition, seen._offset, seen.k, seen.a))))
        state = dict(map(tuple, conn.execute(select(last.k, last.a))))
    wanted = [(p, o, k, a) for p, of in topic.records.items() for o, (k, a, _) in enumerate(of) if a is not None]
    assert rows == sorted(wanted)
    assert state == {key: value for key, value in topic.last.items() if value is not None}
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []


def say(ledger: Ledger, topic: Produced, at: datetime | None = None, **how):
    return repartitioned(ledger, SPEC, topic.offsets, "partitions were added", "somebody", at, **how)
