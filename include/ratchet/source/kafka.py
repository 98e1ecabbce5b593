"""What Kafka says about a topic, an independent count of its records, and offsets for monitoring tools to see."""

# The annotations that pyright brings for kafka-python are of another version.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from time import monotonic
from typing import Any
from uuid import UUID

import kafka.errors as client_errors
import numpy as np
from kafka import IsolationLevel, KafkaConsumer, OffsetAndMetadata, OffsetSpec, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.consumer.fetcher import ConsumerRecord
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.structs import OffsetAndTimestamp

from ratchet.errors import (
    CompactedTopic,
    GroupHasMembers,
    IncompleteRead,
    RecordsLost,
    SettingsError,
    TopicChanged,
    UnknownTopic,
)
from ratchet.ledger.work import OffsetRange
from ratchet.source.client import TIMEOUT_MS, Client
from ratchet.source.columnar import ColumnarSource
from ratchet.source.interval import IntervalEnd, Stamps, interval_ends, millis, stamps_of
from ratchet.source.lineage import Compared, EpochEnd, Lineage, compared
from ratchet.source.offsets import TopicOffsets, Undecided
from ratchet.source.port import Origin
from ratchet.source.properties import unfit_for_columnar

_OF_MEMBERS = (
    client_errors.UnknownMemberIdError,
    client_errors.IllegalGenerationError,
    client_errors.RebalanceInProgressError,
)
"""What a group with members says to somebody else who wants to set its offsets."""
_EVERYTHING = IsolationLevel.READ_UNCOMMITTED
"""What undecided transactions have written as well."""
_STAMP = attrgetter("offset"), attrgetter("timestamp")
_NO_TOPIC_IDS = ("None", str(UUID(int=0)))
"""How the client gives the id of a topic whose brokers know of none."""


class Kafka(Client):
    """What the brokers say of topics and groups; use it as a context manager.

    Every method raises SettingsError when a broker's certificate is not trusted or a broker refuses the login,
    NotGranted when the user lacks a right, and BrokerUnreachable when no broker answers for about 10 seconds, or a
    partition has no leader for 20.
    """

    def topic_id(self, topic: str) -> tuple[str, list[int]]:
        """(id, partitions) of a topic; UnknownTopic if there is none."""
        return self._reaching(lambda: self._topic_id(topic), _describing(topic))

    def offsets(
        self,
        topic: str,
        before: IntervalEnd | None = None,
        known: Mapping[int, Lineage] | None = None,
        since: datetime | None = None,
    ) -> TopicOffsets:
        """Id, first and last stable offsets of every partition, in one look; given an interval, also where it ends.

        Given what was known of the logs' leader epochs, also what is so now; only where a leader has changed are the
        leaders asked. Given a time, also where its records begin, those of undecided transactions among them.

        Raises UnknownTopic, CompactedTopic, TopicChanged (it was made again during the look); and NotGranted where its
        records may not be read.
        """

        def look() -> TopicOffsets:
            found = self._described(topic)
            if "READ" not in (found.get("authorized_operations") or ["READ"]):
                raise self._lacking(f"READ on topic {topic!r}", "the broker says what it grants")
            topic_id, partitions = self._id_and_partitions(found)
            self._refuse_compacted(topic)
            beginning = self._list_offsets(topic, partitions, OffsetSpec.EARLIEST)
            latest = self._listed(topic, partitions, OffsetSpec.LATEST)
            logs = {} if known is None else self._compared(topic, known, latest, beginning)
            written = self._listed(topic, partitions, OffsetSpec.LATEST, _EVERYTHING)
            # What leaders said of their logs is of these offsets only if they were the same leaders all along.
            if any(written[p].leader_epoch != found.leader_epoch for p, found in latest.items()):
                raise client_errors.NotLeaderForPartitionError(f"{topic}: its leaders are changing")
            held = {p: found.offset for p, found in latest.items() if found.offset < written[p].offset}
            if self._topic_id(topic)[0] != topic_id:
                raise TopicChanged(f"topic {topic!r} at {self.servers} was deleted and made again just now; try again")
            return TopicOffsets(
                topic,
                topic_id,
                beginning,
                {p: found.offset for p, found in latest.items()},
                end={p: found.offset for p, found in written.items()},
                lineages={p: log.lineage for p, log in logs.items()},
                kept={p: log.kept for p, log in logs.items() if log.kept is not None},
                undecided=self._undecided(topic, held) if held else {},
                since=None if since is None else self._since(topic, since, written),
            )

        found = self._reaching(look, _describing(topic))
        return found if before is None else self._wanted(found, before)

    def mirror(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Set the committed offsets of a consumer group to exactly `offsets`, {partition: next offset}, back or forth.

        The group is for monitoring tools to look at and must have no members: GroupHasMembers if it has, UnknownTopic
        for a partition that is not there; then nothing is set. Kafka forgets the offsets of such a group when they were
        not set for `offsets.retention.minutes`, a week by default.
        """
        wanted = {TopicPartition(topic, p): OffsetAndMetadata(offset) for p, offset in offsets.items()}

        def set_() -> None:
            known = self._topic_id(topic)[1]
            absent = sorted(set(offsets) - set(known))
            if absent:
                raise UnknownTopic(f"topic {topic!r} at {self.servers} has no partitions {absent}; no offset was set")
            for error in set(self._open().alter_group_offsets(group, wanted).values()):
                if issubclass(error, _OF_MEMBERS):
                    raise GroupHasMembers(
                        f"consumer group {group!r} at {self.servers} has live members, and its offsets are theirs; "
                        f"no offset of {topic} was set; stop its consumers, or mirror to a group that nobody uses"
                    )
                if error is not client_errors.NoError:
                    raise error(f"consumer group {group!r}, topic {topic!r}")

        self._reaching(set_, f"READ on consumer group {group!r} and on topic {topic!r}")

    def mirrored(self, group: str, topic: str) -> dict[int, int]:
        """{partition: committed offset} of a consumer group in a topic; empty if it has none, or is not there."""

        def look() -> dict[int, int]:
            found = self._open().list_group_offsets({group: None})[group]
            return {tp.partition: said.offset for tp, said in sorted(found.items()) if tp.topic == topic}

        return self._reaching(look, f"DESCRIBE on consumer group {group!r} and on topic {topic!r}")

    def stable_of(self, topics: Collection[str]) -> dict[str, dict[int, int]]:
        """{topic: {partition: last stable offset}} of many topics, in one request to each of their leaders.

        Without those that are not there or not shown, and those that have a partition without a leader: who asks for
        one of them by itself is told why.
        """

        def look() -> dict[str, dict[int, int]]:
            found = self._open().describe_topics(list(topics))
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

        return self._reaching(look, "DESCRIBE on the topics of the pipelines") if topics else {}

    def mirrored_of(self, groups: Mapping[str, str]) -> dict[str, dict[int, int]]:
        """{group: what `mirrored` says of it} of many {group: topic}, in one request to each of their coordinators."""

        def look() -> dict[str, dict[int, int]]:
            found = self._open().list_group_offsets(dict.fromkeys(groups))
            return {
                group: {tp.partition: said.offset for tp, said in found[group].items() if tp.topic == topic}
                for group, topic in groups.items()
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
        """The committed records of a range, piece by piece, until the position is at its end."""
        tp = TopicPartition(r.topic, r.partition)
        reader = KafkaConsumer(
            **self._settings,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            max_poll_records=20_000,
            request_timeout_ms=TIMEOUT_MS,
            bootstrap_timeout_ms=TIMEOUT_MS,
        )
        try:
            reader.assign([tp])
            reader.seek(tp, r.from_offset)
            position = r.from_offset
            deadline = monotonic() + TIMEOUT_MS / 1000
            while position < r.until_offset:
                # Short polls: over markers the position moves, but poll() waits for a record.
                polled = reader.poll(timeout_ms=100)
                yield [record for record in polled.get(tp, ()) if record.offset < r.until_offset]
                # None where the broker has not said it in time: then it has not moved.
                before, position = position, reader.position(tp, timeout_ms=TIMEOUT_MS) or position
                if position > before:
                    deadline = monotonic() + TIMEOUT_MS / 1000
                elif monotonic() > deadline:
                    raise IncompleteRead(f"{r}: an independent reader stays at offset {position}")
        finally:
            reader.close()

    def _since(self, topic: str, at: datetime, ends: Mapping[int, OffsetAndTimestamp]) -> dict[int, int]:
        """{partition: its first record of that time or later, else its end}; what comes after the ends is beyond them.

        The times are asked for after the ends were, so that nothing so late lies below the end of one without any.
        """
        found = self._listed(topic, list(ends), millis(at), _EVERYTHING)
        return {p: end.offset if found[p].offset < 0 else min(found[p].offset, end.offset) for p, end in ends.items()}

    def _wanted(self, found: TopicOffsets, end: IntervalEnd) -> TopicOffsets:
        """With where the interval ends, and what is stamped absurdly late before that."""
        topic, partitions = found.topic, sorted(found.stable)

        def look() -> TopicOffsets:
            # What comes after the last stable offsets were asked for is passed over: they are the ends.
            first = self._list_offsets(topic, partitions, end.since)
            wanted, ahead = interval_ends(topic, end, first, found.stable, partial(self._stamps, found, end))
            return replace(found, wanted=wanted, ahead=ahead)

        try:
            return self._reaching(look, _describing(topic))
        except RecordsLost as error:
            # Where it was planned or will be, the next look at the beginnings says so.
            raise IncompleteRead(
                f"retention deletes records of topic {topic!r} while their times are looked at; nothing was planned, "
                "the next try looks again"
            ) from error

    def _stamps(self, found: TopicOffsets, end: IntervalEnd, ranges: list[OffsetRange]) -> Iterator[Stamps]:
        """Positions and times of the committed records of ranges, by the reader that slices are read with, or slowly
        by this client where that is Spark's.
        """
        if end.reader == "columnar" and unfit_for_columnar(self._properties) is None:
            origins = {found.topic: Origin(topic_id=found.topic_id)}
            with ColumnarSource(self._properties, origins).read(ranges) as reading:
                yield from stamps_of(reading)
            return
        for r in ranges:
            for records in self._committed(r):
                offsets, millis = (np.array([of(record) for record in records], np.int64) for of in _STAMP)
                yield Stamps(r.partition, offsets, millis)

    def _topic_id(self, topic: str) -> tuple[str, list[int]]:
        return self._id_and_partitions(self._described(topic))

    def _id_and_partitions(self, found: dict[str, Any]) -> tuple[str, list[int]]:
        topic_id = str(found["topic_id"])
        if topic_id in _NO_TOPIC_IDS:
            raise SettingsError(
                f"Kafka at {self.servers} gives topic {found['name']!r} no id, by which one that is made again is told "
                "from it; brokers from 2.8 on give ids, with an inter.broker.protocol.version as new"
            )
        return topic_id, sorted(p["partition_index"] for p in found["partitions"])

    def _described(self, topic: str) -> dict[str, Any]:
        """The brokers' metadata of a topic; UnknownTopic if there is none."""
        missing = client_errors.UnknownTopicOrPartitionError
        try:
            (found,) = self._open().describe_topics([topic])
        except missing:
            found = None
        error = client_errors.for_code(found["error_code"]) if found else missing
        if found is None or error in (missing, client_errors.InvalidTopicError):
            raise UnknownTopic(f"there is no topic {topic!r} at {self.servers}; create it or correct the spec's topic")
        if error is not client_errors.NoError:
            raise error(f"topic {topic!r}")
        return found

    def _list_offsets(self, topic: str, partitions: list[int], which: OffsetSpec | int) -> dict[int, int]:
        """{partition: offset} as read_committed readers see it; -1 where there is none."""
        return {p: found.offset for p, found in self._listed(topic, partitions, which).items()}

    def _listed(
        self,
        topic: str,
        partitions: list[int],
        which: OffsetSpec | int,
        level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[int, OffsetAndTimestamp]:
        """The offsets with their leader epochs, which of the latest ones are those of the leaders."""
        wanted = {TopicPartition(topic, p): which for p in partitions}
        found = self._open().list_partition_offsets(wanted, isolation_level=level, timeout_ms=TIMEOUT_MS)
        return {tp.partition: found[tp] for tp in wanted}

    def _compared(
        self,
        topic: str,
        known: Mapping[int, Lineage],
        latest: Mapping[int, OffsetAndTimestamp],
        beginning: Mapping[int, int],
    ) -> dict[int, Compared]:
        """Each partition's log beside what was known of it; without those whose brokers keep no leader epochs."""
        epochs = {p: found.leader_epoch for p, found in latest.items() if found.leader_epoch is not None}
        same = {p: Compared(known[p], None) for p, epoch in epochs.items() if p in known and known[p][-1][0] == epoch}
        others = {p: epoch for p, epoch in epochs.items() if p not in same}
        return same | compared(lambda asked: self._epoch_ends(topic, asked, others), known, others, beginning)

    def _epoch_ends(self, topic: str, asked: Mapping[int, int], current: Mapping[int, int]) -> dict[int, EpochEnd]:
        """The leaders' answers to {partition: leader epoch}; a leader that is not in its `current` epoch refuses."""
        admin = self._open()
        request = OffsetForLeaderEpochRequest

        async def ask() -> dict[int, EpochEnd]:
            found: dict[int, EpochEnd] = {}
            places = [TopicPartition(topic, partition) for partition in asked]
            for node, mine in (await admin._async_get_leader_for_partitions(places)).items():
                partitions = [
                    request.OffsetForLeaderTopic.OffsetForLeaderPartition(
                        partition=tp.partition,
                        current_leader_epoch=current[tp.partition],
                        leader_epoch=asked[tp.partition],
                    )
                    for tp in mine
                ]
                topics = [request.OffsetForLeaderTopic(topic=topic, partitions=partitions)]
                answer = await admin._manager.send(request(replica_id=-1, topics=topics), node_id=node)
                for part in (part for each in answer.topics for part in each.partitions):
                    if part.error_code:
                        raise client_errors.for_code(part.error_code)(f"{topic}-{part.partition}")
                    found[part.partition] = EpochEnd(part.leader_epoch, part.end_offset)
            return found

        return admin._manager.run(ask)

    def _undecided(self, topic: str, stable: Mapping[int, int]) -> dict[int, Undecided]:
        """The transactions that begin at these last stable offsets; empty where the brokers do not tell of producers.

        Where records have come since the offset was asked for, none begins there. What is merely told must not keep
        anybody from planning, so an error is the same as silence.
        """
        try:
            found = self._open().describe_producers([TopicPartition(topic, p) for p in stable])
        except client_errors.KafkaError:
            return {}
        return {
            tp.partition: Undecided(
                stable[tp.partition],
                producer.producer_id,
                producer.producer_epoch,
                datetime.fromtimestamp(producer.last_timestamp / 1000, UTC),
            )
            for tp, state in found.items()
            for producer in state.active_producers
            if producer.current_transaction_start_offset == stable[tp.partition]
        }

    def _refuse_compacted(self, topic: str) -> None:
        """CompactedTopic for a topic that is compacted, SettingsError for one of which that is not said."""
        admin, name = self._open(), "cleanup.policy"
        # The client's own call gives a topic whose settings are refused as one without settings.
        request = admin._describe_configs_request([ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})])
        (said,) = admin._manager.run(admin._manager.send, request).results
        error = client_errors.for_code(said.error_code)
        if issubclass(error, client_errors.AuthorizationError):
            raise self._lacking(f"DESCRIBE_CONFIGS on topic {topic!r}", error.__name__)
        if error is not client_errors.NoError:
            raise error(f"topic {topic!r}: {said.error_message}")
        policy = {config.name: config.value for config in said.configs}.get(name)
        if not policy:
            raise SettingsError(
                f"Kafka at {self.servers} does not say the {name} of topic {topic!r}; whether it is compacted must be "
                "known, since records that compaction removes cannot be told from losses"
            )
        if "compact" in policy:
            raise CompactedTopic(
                f"topic {topic!r} at {self.servers} has cleanup.policy={policy}: compaction removes records, "
                "so its holes cannot be told from losses; read a topic with cleanup.policy=delete"
            )


def _describing(topic: str) -> str:
    return f"DESCRIBE on topic {topic!r}"
