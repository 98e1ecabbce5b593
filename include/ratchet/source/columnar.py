"""The columnar source: fetches record batches from the partitions' leaders and decodes them to Arrow, without Spark."""

from __future__ import annotations

import selectors
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ratchet.errors import (
    BrokenBatch,
    BrokerUnreachable,
    IncompleteRead,
    NotGranted,
    RatchetError,
    SettingsError,
    TopicChanged,
    UnknownTopic,
)
from ratchet.ledger.work import OffsetRange
from ratchet.source.aborted import Aborted
from ratchet.source.cluster import Cluster
from ratchet.source.cursor import Cursor, cursors_of
from ratchet.source.frames import Frames, frames_of
from ratchet.source.port import Origin, Partition
from ratchet.source.properties import client_settings, unfit_for_columnar
from ratchet.source.wire import (
    ANSWER_SECONDS,
    CORRUPT,
    INVALID_TOPIC,
    NOT_ALLOWED,
    OK,
    OUT_OF_RANGE,
    UNKNOWN_TOPIC,
    Answer,
    Connection,
    Fetched,
    Lost,
    TopicLayout,
    Wanted,
    error_name,
)

if TYPE_CHECKING:
    from ratchet.source.columns import Decoder

TAKEOVER_SECONDS = 20
"""How long a partition may stand still: Kafka misses a silent broker after 9 seconds, then another one takes over."""
BOOTSTRAP_SECONDS = 10
"""How long to look for a first broker that answers."""
UNKNOWN_SECONDS = 2
"""How long to ask for a topic that nobody knows: a broker may be behind with what was just made."""
PAUSE_SECONDS = 0.2
"""Between two looks for a leader."""

FETCH_BYTES = 8 * 2**20
"""The most bytes of one partition in an answer, and half of those of the answer, unless one batch is larger."""


class ColumnarSource:
    """Reads ranges of Kafka partitions by `properties`, Java-style client properties; fulfils `port.Source`.

    `origins` says what each topic's name stands for. Raises SettingsError for properties that cannot be honoured.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        origins: Mapping[str, Origin] | None = None,
        *,
        fetch_bytes: int = FETCH_BYTES,
    ):
        self._settings: dict[str, Any] = client_settings(dict(properties))
        unfit = unfit_for_columnar(properties)
        if unfit is not None:
            raise SettingsError(f"the columnar source cannot read by this connection: {unfit}")
        self._origins = dict(origins or {})
        self._fetch_bytes = fetch_bytes

    def read(self, ranges: Sequence[OffsetRange]) -> ColumnarReading:
        """Begin to read; see `port.Source`. Nothing is asked of Kafka before the first batch is."""
        return ColumnarReading(self._settings, self._origins, self._fetch_bytes, ranges)


@dataclass
class Leader:
    """A broker that is read from, and the cursors that its next answer is for, in the order of the request."""

    connection: Connection
    cursors: list[Cursor] = field(default_factory=list[Cursor])
    asked_at: float = 0.0
    """When its next answer could be expected: while a quota is used up, the broker does not listen."""
    quiet_until: float = 0.0


@dataclass(frozen=True)
class Piece:
    """What was fetched of a range and is yet to be decoded."""

    range: OffsetRange
    frames: Frames
    aborted: Aborted


class ColumnarReading:
    """One pass over some ranges; see `port.Reading`. Also a context manager that closes it."""

    def __init__(
        self, settings: dict[str, Any], origins: dict[str, Origin], fetch_bytes: int, ranges: Sequence[OffsetRange]
    ):
        self.records = 0
        self.reached: dict[Partition, int] = {}
        self.leader_epochs: dict[Partition, int] = {}
        self._origins, self._fetch_bytes = origins, fetch_bytes
        self._cursors = cursors_of(ranges, fetch_bytes)
        self._topic_ids: dict[str, Any] = {}
        self._cluster = Cluster(settings)
        self._leaders: dict[int, Leader] = {}
        self._look_at = 0.0
        self._away, self._left = 0.0, time.monotonic()
        for cursor in self._cursors:
            self.reached[cursor.partition] = cursor.position
        # An empty range is complete; of the others each has its turn.
        self._cursors = [cursor for cursor in self._cursors if cursor.ranges]
        self._batches = self._read()

    def __enter__(self) -> ColumnarReading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        # While the caller works nothing is asked, and no broker is late.
        self._away += time.monotonic() - self._left
        try:
            return next(self._batches)
        finally:
            self._left = time.monotonic()

    def close(self) -> None:
        """Close every connection; harmless when it has ended."""
        self._batches.close()
        self._disconnect()

    def _disconnect(self) -> None:
        for leader in self._leaders.values():
            leader.connection.close()
        self._leaders.clear()
        self._cluster.close()

    def _read(self) -> Generator[pa.RecordBatch]:
        if not self._cursors:
            return
        # Loads compiled code, which only a process that reads should wait for.
        from ratchet.source.columns import Decoder

        decoder = Decoder()
        try:
            while any(cursor.ranges or cursor.asked for cursor in self._cursors):
                self._find_leaders()
                for node in {c.leader for c in self._cursors if c.leader is not None and c.ranges and not c.asked}:
                    self._ask(node)
                node = self._answered()
                if node is not None:
                    yield from self._take(node, decoder)
        finally:
            self._disconnect()

    # Whom to ask

    def _find_leaders(self) -> None:
        """Give each cursor without a leader the one that the brokers know now."""
        lost = [cursor for cursor in self._cursors if cursor.leader is None and cursor.ranges]
        if not lost or self._clock() < self._look_at:
            return
        began = self._clock()
        self._look_at = began + PAUSE_SECONDS
        first = not self._topic_ids
        try:
            layout = self._cluster.layout(sorted({cursor.place.topic for cursor in lost}))
        except Lost as error:
            self._look_at = self._clock() + PAUSE_SECONDS
            for cursor in lost:
                if cursor.stalled is None:
                    # A look at brokers of which none is there may take long itself.
                    cursor.stalled = began
                self._stall(
                    cursor,
                    BrokerUnreachable(
                        f"no answer from Kafka at {self._cluster.servers} ({error}); "
                        "check that it runs and that bootstrap.servers and the security properties are right"
                    ),
                    BOOTSTRAP_SECONDS if first else TAKEOVER_SECONDS,
                )
            return
        for cursor in lost:
            topic, partition = cursor.partition
            found = layout.topics.get(topic) or TopicLayout(UNKNOWN_TOPIC, None, {})
            if not self._is_known(cursor, found):
                continue
            cursor.leader = found.leaders.get(partition)
            if cursor.leader is None:
                self._stall(cursor, BrokerUnreachable(f"{topic}-{partition} at {self._cluster.servers} has no leader"))

    def _is_known(self, cursor: Cursor, found: TopicLayout) -> bool:
        """Whether the topic is there, and the one that is meant."""
        topic, servers = cursor.place.topic, self._cluster.servers
        if found.error == NOT_ALLOWED:
            raise _not_allowed(topic, servers)
        if found.error in (UNKNOWN_TOPIC, INVALID_TOPIC):
            why = UnknownTopic(f"there is no topic {topic!r} at {servers}; create it or correct the spec's topic")
            self._stall(cursor, why, TAKEOVER_SECONDS if topic in self._topic_ids else UNKNOWN_SECONDS)
            return False
        if found.error != OK and not found.leaders:
            self._stall(cursor, BrokerUnreachable(f"topic {topic!r} at {servers}: {error_name(found.error)}"))
            return False
        wanted = self._origins.get(topic, Origin()).topic_id
        wanted = wanted if wanted is not None else self._topic_ids.get(topic)
        if found.topic_id is not None and wanted is not None and str(found.topic_id) != str(wanted):
            raise TopicChanged(
                f"topic {topic!r} at {servers} was deleted and made again: its id is {found.topic_id}, not {wanted}; "
                "its offsets no longer mean what the ledger says"
            )
        self._topic_ids[topic] = found.topic_id
        return True

    # Asking and waiting

    def _ask(self, node: int) -> None:
        """Ask a broker for the next piece of each of its cursors; the one that has waited longest is first."""
        cursors = [c for c in self._cursors if c.leader == node and c.ranges and not c.asked]
        if not cursors:
            return
        try:
            if node not in self._leaders:
                self._leaders[node] = Leader(self._cluster.connect(node))
            leader = self._leaders[node]
            if leader.cursors:
                # Another answer is due first, which the cursors that have come since then wait for.
                return
            leader.connection.fetch(
                [
                    Wanted(c.place.topic, self._topic_ids[c.place.topic], c.place.partition, c.position, c.size)
                    for c in cursors
                ],
                2 * self._fetch_bytes,
            )
        except Lost as error:
            self._lose(node, cursors, error)
            return
        leader.cursors, leader.asked_at = cursors, max(self._clock(), leader.quiet_until)
        for cursor in cursors:
            cursor.asked = True

    def _lose(self, node: int, cursors: list[Cursor], error: Lost) -> None:
        """Give up a connection; its cursors look for their leaders again."""
        leader = self._leaders.pop(node, None)
        if leader is not None:
            leader.connection.close()
            cursors = leader.cursors or cursors
        self._look_at = max(self._look_at, self._clock() + PAUSE_SECONDS)
        for cursor in [c for c in self._cursors if c.leader == node or c in cursors]:
            cursor.leader, cursor.asked = None, False
            if cursor.ranges:
                self._stall(cursor, BrokerUnreachable(f"the connection to a broker of Kafka was lost: {error}"))

    def _answered(self) -> int | None:
        """A broker whose answer has begun to come; None after a while, or where none is due."""
        due = {node: leader for node, leader in self._leaders.items() if leader.cursors}
        looking = any(cursor.leader is None and cursor.ranges for cursor in self._cursors)
        wait = max(0.0, self._look_at - self._clock()) if looking else float(ANSWER_SECONDS if due else 0)
        if not due:
            time.sleep(wait)
            return None
        with selectors.DefaultSelector() as selector:
            for node, leader in due.items():
                selector.register(leader.connection, selectors.EVENT_READ, node)
            ready = selector.select(wait)
        if ready:
            # The one that was asked first, so that a busy one does not keep the others waiting.
            return min((int(key.data) for key, _ in ready), key=lambda node: due[node].asked_at)
        for node, leader in due.items():
            if self._clock() - leader.asked_at >= ANSWER_SECONDS:
                error = Lost(f"{leader.connection.address} has not answered for {ANSWER_SECONDS} s")
                self._lose(node, leader.cursors, error)
        return None

    # Answers

    def _take(self, node: int, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        """Receive a broker's answer, ask for the next, and decode this one while that one is under way."""
        leader = self._leaders[node]
        try:
            answer = leader.connection.fetched()
        except Lost as error:
            self._lose(node, leader.cursors, error)
            return
        cursors, leader.cursors = leader.cursors, []
        for cursor in cursors:
            cursor.asked = False
        leader.quiet_until = self._clock() + answer.throttled
        pieces = self._pieces(leader.connection, cursors, answer)
        self._ask(node)
        for piece in pieces:
            place = piece.frames.place
            partition = place.topic, place.partition
            source = self._origins.get(place.topic, Origin()).number
            range_ = piece.range
            ends = range_.from_offset, range_.until_offset
            for batch in decoder.decode(piece.frames, piece.aborted, *ends, source, range_.partition):
                self.records += batch.num_rows
                yield batch
            self.reached[partition] = min(piece.frames.position, range_.until_offset)
            covered = piece.frames.upto(range_.until_offset)
            if len(covered):
                self.leader_epochs[partition] = covered.leader_epoch

    def _pieces(self, connection: Connection, cursors: list[Cursor], answer: Answer) -> list[Piece]:
        """What each partition's answer gives to decode; the cursors move on."""
        fetched = {(part.topic, part.partition): part for part in answer.partitions}
        served = any(part.records for part in answer.partitions)
        pieces: list[Piece] = []
        for cursor in cursors:
            part = fetched.get(cursor.partition)
            if part is None:
                if not answer.throttled:
                    self._stall(cursor, BrokerUnreachable(f"a broker of {cursor.ranges[0]} gives no answer for it"))
            elif part.error != OK:
                self._refuse(connection, cursor, part)
            elif part.records:
                pieces.append(self._advance(cursor, part))
                # It had its share: whoever got nothing comes first in the next request.
                self._cursors.remove(cursor)
                self._cursors.append(cursor)
            elif cursor is not cursors[0] and served:
                # The others' records may have filled the answer.
                continue
            elif self._is_compacted(cursor) and cursor.is_empty(part.log_start, part.last_stable):
                self.reached[cursor.partition] = cursor.skip()
            else:
                self._stall(
                    cursor,
                    IncompleteRead(
                        f"{cursor.ranges[0]} could be read up to offset {cursor.position} only: Kafka has nothing "
                        f"there that is decided (its last stable offset is {part.last_stable})"
                    ),
                )
        return pieces

    def _is_compacted(self, cursor: Cursor) -> bool:
        return self._origins.get(cursor.place.topic, Origin()).compacted

    def _advance(self, cursor: Cursor, answer: Fetched) -> Piece:
        frames = frames_of(cursor.place, answer.records, cursor.position)
        if cursor.position < min(int(frames.bases[0]), answer.log_start):
            raise cursor.lost(min(int(frames.bases[0]), answer.log_start))
        return Piece(cursor.move(frames, self._fetch_bytes), frames, answer.aborted)

    def _refuse(self, connection: Connection, cursor: Cursor, answer: Fetched) -> None:
        """Raise what cannot pass by itself; else the cursor looks for its leader again."""
        topic, partition = cursor.partition
        where = f"{topic}-{partition} at {self._cluster.servers}"
        if answer.error == NOT_ALLOWED:
            raise _not_allowed(topic, self._cluster.servers)
        if answer.error == CORRUPT:
            raise BrokenBatch(f"{where}: the broker finds its log broken at or after offset {cursor.position}")
        why: RatchetError = BrokerUnreachable(f"{where} cannot be read: {error_name(answer.error)}")
        if answer.error == OUT_OF_RANGE:
            try:
                start = connection.log_start(topic, partition)
            except Lost:
                # The other partitions of this answer are to be decoded nonetheless: their cursors have moved on.
                connection.close()
                start = None
            if start is not None and start > cursor.position:
                raise cursor.lost(start)
            # A new leader learns late how far its log counts; one that never does has lost the end of it.
            why = IncompleteRead(
                f"{cursor.ranges[0]} could be read up to offset {cursor.position} only: {where} ends before it"
            )
        cursor.leader = None
        self._look_at = max(self._look_at, self._clock() + PAUSE_SECONDS)
        self._stall(cursor, why)

    # Patience

    def _clock(self) -> float:
        """Seconds, without those that the caller spent between two batches."""
        return time.monotonic() - self._away

    def _stall(self, cursor: Cursor, why: RatchetError, seconds: float | None = None) -> None:
        """The cursor did not move; raise `why` when that has lasted so many seconds, TAKEOVER_SECONDS by default."""
        if cursor.stalled is None:
            cursor.stalled = self._clock()
        if self._clock() - cursor.stalled >= (TAKEOVER_SECONDS if seconds is None else seconds):
            raise why


def _not_allowed(topic: str, servers: str) -> NotGranted:
    return NotGranted(f"the user may not read topic {topic!r} at {servers}; grant READ on it, or correct the user")
