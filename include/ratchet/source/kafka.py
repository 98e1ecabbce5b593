"""What Kafka says about a topic, an independent count of its records, and offsets for monitoring tools to see."""

# The annotations that pyright brings for kafka-python are of another version.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from time import monotonic
from typing import Any

import kafka.errors as client_errors
import numpy as np
from kafka import IsolationLevel, KafkaConsumer, OffsetAndMetadata, OffsetSpec, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.structs import OffsetAndTimestamp

from ratchet.errors import (
    GroupHasMembers,
    IncompleteRead,
    RecordsLost,
    TopicChanged,
    UnknownTopic,
)
from ratchet.ledger.topics import Topics, titled
from ratchet.ledger.work import OffsetRange
from ratchet.source.client import TIMEOUT_MS
from ratchet.source.columnar import ColumnarSource
from ratchet.source.described import Describing, Subscription, describing
from ratchet.source.interval import IntervalEnd, Stamps, interval_ends, millis, stamps_of
from ratchet.source.lineage import Compared, EpochEnd, Lineage, compared
from ratchet.source.offsets import KnownLogs, TopicOffsets, Undecided
from ratchet.source.port import Origin
from ratchet.source.properties import unfit_for_columnar
from ratchet.source.topics import Place

_OF_MEMBERS = (
    client_errors.UnknownMemberIdError,
    client_errors.IllegalGenerationError,
    client_errors.RebalanceInProgressError,
)
"""What a group with members says to somebody else who wants to set its offsets."""
_EVERYTHING = IsolationLevel.READ_UNCOMMITTED
"""What undecided transactions have written as well."""
_STAMP = attrgetter("offset"), attrgetter("timestamp")


class Kafka(Describing):
    """What the brokers say of topics and groups; use it as a context manager.

    Every method raises SettingsError when a broker's certificate is not trusted or a broker refuses the login,
    NotGranted when the user lacks a right, and BrokerUnreachable when no broker answers for about 10 seconds, or a
    partition has no leader for 20.
    """

    def __init__(self, properties: dict[str, str]):
        super().__init__(properties)
        self._reader: KafkaConsumer | None = None

    def close(self) -> None:
        """Close the connections; harmless when none was opened."""
        self._let_reader_go()
        super().close()

    def offsets(
        self,
        of: str | Sequence[str] | Subscription,
        before: IntervalEnd | None = None,
        known: KnownLogs | None = None,
        since: datetime | None = None,
    ) -> TopicOffsets:
        """Ids, first and last stable offsets of every partition of some topics, in one look; given an interval, also
        where it ends.

        The topics that are `known` keep their numbers. Given what was known of the logs' leader epochs, also what is so
        now; only where a leader has changed are the leaders asked. Given a time, also where its records begin, those of
        undecided transactions among them.

        Raises UnknownTopic, CompactedTopic (other than the subscription says; topics that are only named are not), and
        TopicChanged (one was made again during the look); and NotGranted where records may not be read.
        """
        known = known or KnownLogs()
        asked = [of] if isinstance(of, str) else of

        def look() -> TopicOffsets:
            topics, places = self._found(asked, known)
            names = [*topics.ids]
            kept = self._kept(names, compacted=not isinstance(asked, Sequence) and asked.compacted)
            beginning = self._list_offsets(topics, places, OffsetSpec.EARLIEST)
            latest = self._listed(topics, places, OffsetSpec.LATEST)
            logs = {} if known.lineages is None else self._compared(topics, known.lineages, latest, beginning)
            written = self._listed(topics, places, OffsetSpec.LATEST, _EVERYTHING)
            # What leaders said of their logs is of these offsets only if they were the same leaders all along.
            if any(written[p].leader_epoch != found.leader_epoch for p, found in latest.items()):
                raise client_errors.NotLeaderForPartitionError(f"{topics.title}: leaders are changing")
            held = {p: found.offset for p, found in latest.items() if found.offset < written[p].offset}
            if (now := {name: self._id_of(told) for name, told in self._described(names).items()}) != topics.ids:
                again = titled([repr(name) for name in names if now[name] != topics.ids[name]])
                raise TopicChanged(f"{again} at {self.servers} was deleted and made again just now; try again")
            return TopicOffsets(
                topics,
                beginning,
                {p: found.offset for p, found in latest.items()},
                end={p: found.offset for p, found in written.items()},
                lineages={p: log.lineage for p, log in logs.items()},
                kept={p: log.kept for p, log in logs.items() if log.kept is not None},
                undecided=self._undecided(topics, held) if held else {},
                since=None if since is None else self._since(topics, since, written),
                kept_tombstones=kept,
            )

        named = asked if isinstance(asked, Sequence) else [*asked.names]
        right = describing([*named]) if named else f"DESCRIBE on the topics that {asked.pattern!r} matches"
        found = self._reaching(look, right)
        return found if before is None else self._wanted(found, before)

    def mirror(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Set the committed offsets of a consumer group to exactly `offsets`, {place: next offset}, back or forth.

        The group is for monitoring tools to look at and must have no members: GroupHasMembers if it has, UnknownTopic
        for a partition that is not there; then nothing is set. Kafka forgets the offsets of such a group when they were
        not set for `offsets.retention.minutes`, a week by default.
        """
        wanted = {TopicPartition(*place): OffsetAndMetadata(offset) for place, offset in offsets.items()}
        names = sorted({topic for topic, _ in offsets})
        named = titled([repr(name) for name in names])

        def set_() -> None:
            known = {
                (t, p["partition_index"]) for t, told in self._described(names).items() for p in told["partitions"]
            }
            absent = sorted(set(offsets) - known)
            if absent:
                lacking = ", ".join(f"{topic}-{p}" for topic, p in absent)
                raise UnknownTopic(f"{lacking} at {self.servers} is not there; no offset was set")
            for error in set(self._open().alter_group_offsets(group, wanted).values()):
                if issubclass(error, _OF_MEMBERS):
                    raise GroupHasMembers(
                        f"consumer group {group!r} at {self.servers} has live members, and its offsets are theirs; "
                        f"no offset of {named} was set; stop its consumers, or mirror to a group that nobody uses"
                    )
                if error is not client_errors.NoError:
                    raise error(f"consumer group {group!r}, {named}")

        self._reaching(set_, f"READ on consumer group {group!r} and on {named}")

    def mirrored(self, group: str, topics: Collection[str]) -> dict[Place, int]:
        """{place: committed offset} of a consumer group in topics; empty if it has none, or is not there."""

        def look() -> dict[Place, int]:
            found = self._open().list_group_offsets({group: None})[group]
            return {(tp.topic, tp.partition): said.offset for tp, said in sorted(found.items()) if tp.topic in topics}

        named = titled([repr(name) for name in sorted(topics)])
        return self._reaching(look, f"DESCRIBE on consumer group {group!r} and on {named}")

    def stable_of(self, topics: Collection[str], patterns: Sequence[Subscription] = ()) -> dict[str, dict[int, int]]:
        """{topic: {partition: last stable offset}} of many topics, in one request to each of their leaders.

        Besides those with these names, the ones that any of `patterns` wants. Without those that are not there or not
        shown, and those that have a partition without a leader: who asks for one of them by itself is told why.
        """

        def look() -> dict[str, dict[int, int]]:
            told = self._open().describe_topics(None if patterns else [*topics])
            found = [t for t in told if t["name"] in topics or any(each.wants(t["name"]) for each in patterns)]
            shown = [t for t in found if not t["error_code"] and all(p["leader_id"] >= 0 for p in t["partitions"])]
            places = [TopicPartition(t["name"], p["partition_index"]) for t in shown for p in t["partitions"]]
            if not places:
                return {}
            latest = dict.fromkeys(places, OffsetSpec.LATEST)
            ends = self._open().list_partition_offsets(
                latest, isolation_level=IsolationLevel.READ_COMMITTED, timeout_ms=TIMEOUT_MS
            )
            stable: dict[str, dict[int, int]] = {}
            for place, end in ends.items():
                stable.setdefault(place.topic, {})[place.partition] = end.offset
            return stable

        return self._reaching(look, "DESCRIBE on the topics of the pipelines") if topics or patterns else {}

    def mirrored_of(self, groups: Collection[str]) -> dict[str, dict[Place, int]]:
        """{group: what `mirrored` says of all its topics}, of many, in one request to each of their coordinators."""

        def look() -> dict[str, dict[Place, int]]:
            found = self._open().list_group_offsets(dict.fromkeys(groups))
            return {
                group: {(tp.topic, tp.partition): said.offset for tp, said in found[group].items()} for group in groups
            }

        return self._reaching(look, "DESCRIBE on the consumer groups of the pipelines") if groups else {}

    def committed_records_between(self, r: OffsetRange) -> int:
        """How many committed records a range holds, read by this client and not by Spark.

        It goes by position, so a range that ends in markers or aborted records ends too. Raises
        IncompleteRead when the position does not move for 10 seconds.
        """
        return self._reaching(lambda: self._count(r), f"READ on topic {r.topic!r}")

    def _count(self, r: OffsetRange) -> int:
        return sum(map(len, self._committed(r)))

    def _committed(self, r: OffsetRange) -> Iterator[list[ConsumerRecord]]:
        """The committed records of a range, piece by piece, until the position is at its end.

        One range at a time.
        """
        try:
            yield from self._read_committed(r, self._committed_reader())
        except Exception:
            # One that stays somewhere, or was refused something, is not asked again.
            self._let_reader_go()
            raise

    def _read_committed(self, r: OffsetRange, reader: KafkaConsumer) -> Iterator[list[ConsumerRecord]]:
        tp = TopicPartition(*r.place)
        reader.assign([tp])
        reader.seek(tp, r.from_offset)
        position = r.from_offset
        deadline = monotonic() + TIMEOUT_MS / 1000
        while position < r.until_offset:
            # Short polls: over markers the position moves, but poll() waits for a record.
            polled = reader.poll(timeout_ms=10)
            yield [record for record in polled.get(tp, ()) if record.offset < r.until_offset]
            # None where the broker has not said it in time: then it has not moved.
            before, position = position, reader.position(tp, timeout_ms=TIMEOUT_MS) or position
            if position > before:
                deadline = monotonic() + TIMEOUT_MS / 1000
            elif monotonic() > deadline:
                raise IncompleteRead(f"{r}: an independent reader stays at offset {position}")

    def _let_reader_go(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _committed_reader(self) -> KafkaConsumer:
        # Kept: a new one waits for 0.1 s until it may ask where a partition is.
        if self._reader is None:
            self._reader = KafkaConsumer(
                **self._settings,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="none",
                allow_auto_create_topics=False,
                max_poll_records=20_000,
                request_timeout_ms=TIMEOUT_MS,
                bootstrap_timeout_ms=TIMEOUT_MS,
            )
        return self._reader

    def _since(self, topics: Topics, at: datetime, ends: Mapping[int, OffsetAndTimestamp]) -> dict[int, int]:
        """{partition: its first record of that time or later, else its end}; what comes after the ends is beyond them.

        The times are asked for after the ends were, so that nothing so late lies below the end of one without any.
        """
        found = self._listed(topics, list(ends), millis(at), _EVERYTHING)
        return {p: end.offset if found[p].offset < 0 else min(found[p].offset, end.offset) for p, end in ends.items()}

    def _wanted(self, found: TopicOffsets, end: IntervalEnd) -> TopicOffsets:
        """With where the interval ends, and what is stamped absurdly late before that."""
        topics, partitions = found.topics, sorted(found.stable)

        def look() -> TopicOffsets:
            # What comes after the last stable offsets were asked for is passed over: they are the ends.
            first = self._list_offsets(topics, partitions, end.since)
            wanted, ahead = interval_ends(topics, end, first, found.stable, partial(self._stamps, found, end))
            return replace(found, wanted=wanted, ahead=ahead)

        try:
            return self._reaching(look, describing(topics.names))
        except RecordsLost as error:
            # Where it was planned or will be, the next look at the beginnings says so.
            raise IncompleteRead(
                f"retention deletes records of {topics.title} while their times are looked at; nothing was planned, "
                "the next try looks again"
            ) from error

    def _stamps(self, found: TopicOffsets, end: IntervalEnd, ranges: list[OffsetRange]) -> Iterator[Stamps]:
        """Positions and times of the committed records of ranges, by the reader that slices are read with, or slowly
        by this client where that is Spark's.
        """
        if end.reader == "columnar" and unfit_for_columnar(self._properties) is None:
            origins = {name: Origin(topic_id=topic_id) for name, topic_id in found.topics.ids.items()}
            with ColumnarSource(self._properties, origins).read(ranges) as reading:
                yield from stamps_of(reading)
            return
        for r in ranges:
            for records in self._committed(r):
                offsets, millis = (np.array([of(record) for record in records], np.int64) for of in _STAMP)
                yield Stamps(r.partition, offsets, millis)

    def _list_offsets(self, topics: Topics, partitions: list[int], which: OffsetSpec | int) -> dict[int, int]:
        """{partition: offset} as read_committed readers see it; -1 where there is none."""
        return {p: found.offset for p, found in self._listed(topics, partitions, which).items()}

    def _listed(
        self,
        topics: Topics,
        partitions: list[int],
        which: OffsetSpec | int,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[int, OffsetAndTimestamp]:
        """The offsets with their leader epochs, which of the latest ones are those of the leaders."""
        places = {p: TopicPartition(*topics.place(p)) for p in partitions}
        wanted = dict.fromkeys(places.values(), which)
        found = self._open().list_partition_offsets(wanted, isolation_level=level, timeout_ms=TIMEOUT_MS)
        return {p: found[place] for p, place in places.items()}

    def _compared(
        self,
        topics: Topics,
        known: Mapping[int, Lineage],
        latest: Mapping[int, OffsetAndTimestamp],
        beginning: Mapping[int, int],
    ) -> dict[int, Compared]:
        """Each partition's log beside what was known of it; without those whose brokers keep no leader epochs."""
        epochs = {p: found.leader_epoch for p, found in latest.items() if found.leader_epoch is not None}
        same = {p: Compared(known[p], None) for p, epoch in epochs.items() if p in known and known[p][-1][0] == epoch}
        others = {p: epoch for p, epoch in epochs.items() if p not in same}
        return same | compared(lambda asked: self._epoch_ends(topics, asked, others), known, others, beginning)

    def _epoch_ends(self, topics: Topics, asked: Mapping[int, int], current: Mapping[int, int]) -> dict[int, EpochEnd]:
        """The leaders' answers to {partition: leader epoch}; a leader that is not in its `current` epoch refuses."""
        admin = self._open()
        request = OffsetForLeaderEpochRequest
        places = {TopicPartition(*topics.place(p)): p for p in asked}

        async def ask() -> dict[int, EpochEnd]:
            found: dict[int, EpochEnd] = {}
            for node, mine in (await admin._async_get_leader_for_partitions([*places])).items():
                by_topic: dict[str, list[Any]] = {}
                for tp in mine:
                    part = request.OffsetForLeaderTopic.OffsetForLeaderPartition(
                        partition=tp.partition,
                        current_leader_epoch=current[places[tp]],
                        leader_epoch=asked[places[tp]],
                    )
                    by_topic.setdefault(tp.topic, []).append(part)
                of = [request.OffsetForLeaderTopic(topic=name, partitions=parts) for name, parts in by_topic.items()]
                answer = await admin._manager.send(request(replica_id=-1, topics=of), node_id=node)
                for topic, part in ((each.topic, part) for each in answer.topics for part in each.partitions):
                    if part.error_code:
                        raise client_errors.for_code(part.error_code)(f"{topic}-{part.partition}")
                    found[places[TopicPartition(topic, part.partition)]] = EpochEnd(part.leader_epoch, part.end_offset)
            return found

        return admin._manager.run(ask)

    def _undecided(self, topics: Topics, stable: Mapping[int, int]) -> dict[int, Undecided]:
        """The transactions that begin at these last stable offsets; empty where the brokers do not tell of producers.

        Where records have come since the offset was asked for, none begins there. What is merely told must not keep
        anybody from planning, so an error is the same as silence.
        """
        places = {TopicPartition(*topics.place(p)): p for p in stable}
        try:
            found = self._open().describe_producers([*places])
        except client_errors.KafkaError:
            return {}
        return {
            places[tp]: Undecided(
                stable[places[tp]],
                producer.producer_id,
                producer.producer_epoch,
                datetime.fromtimestamp(producer.last_timestamp / 1000, UTC),
            )
            for tp, state in found.items()
            for producer in state.active_producers
            if producer.current_transaction_start_offset == stable[places[tp]]
        }
