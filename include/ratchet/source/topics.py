"""What the brokers hold of many topics: from where to where, for how long, how many bytes, and how old a record is."""

# The annotations that pyright brings for kafka-python are of another version.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

import kafka.errors as client_errors
from kafka import IsolationLevel, KafkaConsumer, OffsetSpec, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from ratchet.source.client import TIMEOUT_MS, Client

Place = tuple[str, int]
"""(topic, partition)."""
LOOK_MS = 3_000
"""How long records are waited for whose times are asked: who waits is a person."""


@dataclass(frozen=True)
class Ends:
    """What the brokers hold of a topic, per partition: from `beginning` up to `stable`, the last stable offset.

    `retention_ms` and `retention_bytes` are the topic's settings, None where nothing is deleted for that, or where the
    brokers do not tell. `bytes` is the size of each partition's log, of those of which it is told.
    """

    topic: str
    topic_id: str
    beginning: Mapping[int, int]
    stable: Mapping[int, int]
    retention_ms: int | None
    retention_bytes: int | None
    bytes: Mapping[int, int]


class Topics(Client):
    """What the brokers hold of many topics, asked in as few requests as there are brokers; use it as a context manager.

    Every method raises SettingsError, NotGranted and BrokerUnreachable as `Kafka` does.
    """

    def ends(self, topics: Collection[str]) -> dict[str, Ends]:
        """{topic: what there is of it}, without those that are not there, or have a partition without a leader."""

        def look() -> dict[str, Ends]:
            found = self._open().describe_topics(list(topics))
            shown = [t for t in found if not t["error_code"] and all(p["leader_id"] >= 0 for p in t["partitions"])]
            names = {t["name"]: str(t["topic_id"]) for t in shown}
            places = [TopicPartition(t["name"], p["partition_index"]) for t in shown for p in t["partitions"]]
            if not places:
                return {}
            first, last = self._listed(places, OffsetSpec.EARLIEST), self._listed(places, OffsetSpec.LATEST)
            kept, sizes = self._retention(names), self._sizes(names)
            return {
                name: Ends(name, topic_id, first[name], last[name], *kept.get(name, (None, None)), sizes.get(name, {}))
                for name, topic_id in names.items()
            }

        return self._reaching(look, "DESCRIBE on the topics of the pipelines") if topics else {}

    def times(self, places: Mapping[Place, int]) -> dict[Place, datetime]:
        """{place: the time of the first committed record at this offset or behind it}, of those that came in time."""

        def look() -> dict[Place, datetime]:
            reader = KafkaConsumer(
                **self._settings,
                isolation_level="read_committed",
                enable_auto_commit=False,
                # Where retention was quicker, the first record that is left is the first one behind.
                auto_offset_reset="earliest",
                allow_auto_create_topics=False,
                # Only the first record counts.
                max_partition_fetch_bytes=1,
                max_poll_records=500,
                request_timeout_ms=TIMEOUT_MS,
                bootstrap_timeout_ms=TIMEOUT_MS,
            )
            found: dict[Place, datetime] = {}
            try:
                wanted = {TopicPartition(*place): offset for place, offset in places.items()}
                reader.assign(list(wanted))
                for place, offset in wanted.items():
                    reader.seek(place, offset)
                deadline = monotonic() + LOOK_MS / 1000
                while len(found) < len(places) and monotonic() < deadline:
                    for place, records in reader.poll(timeout_ms=100).items():
                        at = datetime.fromtimestamp(records[0].timestamp / 1000, UTC)
                        found.setdefault((place.topic, place.partition), at)
                        reader.pause(place)
            finally:
                reader.close()
            return found

        return self._reaching(look, "READ on the topics of the pipelines") if places else {}

    def _listed(self, places: list[TopicPartition], which: OffsetSpec) -> dict[str, dict[int, int]]:
        ends = self._open().list_partition_offsets(
            dict.fromkeys(places, which), isolation_level=IsolationLevel.READ_COMMITTED, timeout_ms=TIMEOUT_MS
        )
        found: dict[str, dict[int, int]] = {}
        for place, end in ends.items():
            found.setdefault(place.topic, {})[place.partition] = end.offset
        return found

    def _retention(self, topics: Collection[str]) -> dict[str, tuple[int | None, int | None]]:
        """{topic: (retention.ms, retention.bytes)}, of those whose settings are shown."""
        admin, names = self._open(), ("retention.ms", "retention.bytes")
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(names)) for topic in topics]
        # The client's own call gives a topic whose settings are refused as one without settings.
        said = admin._manager.run(admin._manager.send, admin._describe_configs_request(asked)).results
        found: dict[str, tuple[int | None, int | None]] = {}
        for one in said:
            if not one.error_code:
                values = {config.name: int(config.value) for config in one.configs if config.value is not None}
                ms, size = (values.get(name, -1) for name in names)
                found[one.resource_name] = (ms if ms >= 0 else None, size if size >= 0 else None)
        return found

    def _sizes(self, topics: Collection[str]) -> dict[str, dict[int, int]]:
        """{topic: {partition: bytes of its log}}; empty where the brokers do not tell this user."""
        try:
            said = self._open().describe_log_dirs(list(topics))
        except client_errors.KafkaError:
            return {}
        found: dict[str, dict[int, int]] = {}
        for directory in (directory for broker in said for directory in broker["log_dirs"]):
            for topic in directory["topics"]:
                of = found.setdefault(topic["name"], {})
                for part in topic["partitions"]:
                    at = part["partition_index"]
                    # Replicas are as large as their leader, or about to be.
                    of[at] = max(of.get(at, 0), part["partition_size"])
        return found
