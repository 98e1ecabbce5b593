"""What Kafka says about a topic: its id, its first and last stable offsets, and an independent count."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import kafka.errors as client_errors
from kafka import IsolationLevel, KafkaAdminClient, KafkaConsumer, OffsetSpec, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from ratchet.errors import (
    BrokerUnreachable,
    CompactedTopic,
    IncompleteRead,
    SettingsError,
    TopicChanged,
    UnknownTopic,
)
from ratchet.transaction import OffsetRange

TIMEOUT_MS = 10_000
"""How long to look for a broker, and how long to wait for one answer."""

_SAME = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
    "client.dns.lookup": "client_dns_lookup",
}
_IMPLIED = {"ssl.truststore.type", "ssl.keystore.type", "ssl.protocol", "ssl.enabled.protocols"}
_JAAS_LOGINS = ("PlainLoginModule", "ScramLoginModule")


def client_settings(properties: dict[str, str]) -> dict[str, object]:
    """Java-style client properties as keyword arguments of kafka-python's clients.

    Properties that only tune (fetch sizes and the like) are left out, as they mean nothing to these clients.
    Raises SettingsError for a missing `bootstrap.servers`, and for a `sasl.*` or `ssl.*` property that
    cannot be honoured: a connection must not be less safe than it was asked to be.
    """
    if not properties.get("bootstrap.servers"):
        raise SettingsError("the Kafka connection has no bootstrap.servers; set it to host:port,host:port")
    settings: dict[str, object] = {"bootstrap_servers": properties["bootstrap.servers"].split(",")}
    for name, value in properties.items():
        if name in ("ssl.truststore.type", "ssl.keystore.type") and value.upper() != "PEM":
            raise SettingsError(f"Kafka property {name}={value} cannot be read by Python; give PEM files")
        if name in _SAME:
            settings[_SAME[name]] = value
        elif name == "sasl.jaas.config":
            settings |= _jaas(value)
        elif name == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = bool(value)
        elif name.startswith(("ssl.", "sasl.")) and name not in _IMPLIED:
            raise SettingsError(
                f"Kafka property {name} is not supported; use security.protocol, sasl.mechanism, "
                "sasl.jaas.config, and PEM files in "
                "ssl.truststore.location and ssl.keystore.location"
            )
    for name in ("truststore", "keystore"):
        if f"ssl.{name}.location" in properties and f"ssl.{name}.type" not in properties:
            raise SettingsError(f"Kafka property ssl.{name}.location needs ssl.{name}.type=PEM beside it")
    return settings


def _jaas(config: str) -> dict[str, object]:
    """User and password of a plain or SCRAM login; SettingsError (which never shows them) for another."""
    said = dict(re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', config))
    if not any(login in config for login in _JAAS_LOGINS) or not {"username", "password"} <= said.keys():
        raise SettingsError(
            "Kafka property sasl.jaas.config is not understood; "
            'write …PlainLoginModule (or ScramLoginModule) required username="…" password="…";'
        )
    plain = {name: re.sub(r"\\(.)", r"\1", value) for name, value in said.items()}
    return {"sasl_plain_username": plain["username"], "sasl_plain_password": plain["password"]}


@dataclass(frozen=True)
class TopicOffsets:
    """What a topic holds now, per partition.

    `beginning` is the first offset that is still there; `stable` is the last stable offset: every record
    below it belongs to a Kafka transaction that is decided. `topic_id` tells a topic from a later one with
    the same name.
    """

    topic: str
    topic_id: str
    beginning: dict[int, int]
    stable: dict[int, int]


class Kafka:
    """A connection to the brokers, opened when it is first used; use it as a context manager.

    `properties` are Java-style client properties. Every method raises BrokerUnreachable, after about
    10 seconds, when no broker answers.
    """

    def __init__(self, properties: dict[str, str]):
        self._settings = client_settings(properties)
        self._admin: KafkaAdminClient | None = None

    def __enter__(self) -> Kafka:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; harmless when it was never opened."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    @property
    def servers(self) -> str:
        """The bootstrap servers, as people write them."""
        return ",".join(self._settings["bootstrap_servers"])

    @property
    def admin(self) -> KafkaAdminClient:
        """kafka-python's admin client, for what this class does not say."""
        if self._admin is None:
            with self._reaching():
                self._admin = KafkaAdminClient(
                    **self._settings, request_timeout_ms=TIMEOUT_MS, bootstrap_timeout_ms=TIMEOUT_MS
                )
        return self._admin

    def topic_id(self, topic: str) -> tuple[str, list[int]]:
        """(id, partitions) of a topic; UnknownTopic if there is none."""
        admin = self.admin
        with self._reaching():
            try:
                (found,) = admin.describe_topics([topic])
            except client_errors.UnknownTopicOrPartitionError:
                found = None
        missing = client_errors.UnknownTopicOrPartitionError
        error = client_errors.for_code(found["error_code"]) if found else missing
        if error in (missing, client_errors.InvalidTopicError):
            raise UnknownTopic(f"there is no topic {topic!r} at {self.servers}; create it or correct the spec's topic")
        if error is not client_errors.NoError:
            raise BrokerUnreachable(f"{self.servers} does not describe topic {topic!r}: {error.__name__}")
        return str(found["topic_id"]), sorted(p["partition_index"] for p in found["partitions"])

    def offsets(self, topic: str) -> TopicOffsets:
        """Id, first and last stable offsets of every partition, in one look.

        Raises UnknownTopic, CompactedTopic, TopicChanged (it was made again during the look).
        """
        topic_id, partitions = self.topic_id(topic)
        self._refuse_compacted(topic)
        tps = [TopicPartition(topic, p) for p in partitions]
        with self._reaching():
            beginning, stable = (
                self.admin.list_partition_offsets(
                    dict.fromkeys(tps, which),
                    isolation_level=IsolationLevel.READ_COMMITTED,
                    timeout_ms=TIMEOUT_MS,
                )
                for which in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
            )
        if self.topic_id(topic)[0] != topic_id:
            raise TopicChanged(f"topic {topic!r} at {self.servers} was deleted and made again just now; try again")
        return TopicOffsets(
            topic,
            topic_id,
            {tp.partition: beginning[tp].offset for tp in tps},
            {tp.partition: stable[tp].offset for tp in tps},
        )

    def committed_records_between(self, r: OffsetRange) -> int:
        """How many committed records a range holds, read by this client and not by Spark.

        It goes by position, so a range that ends in markers or aborted records ends too. Raises
        IncompleteRead when the position does not move for 10 seconds.
        """
        tp = TopicPartition(r.topic, r.partition)
        with self._reaching():
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
                count, position = 0, r.from_offset
                deadline = monotonic() + TIMEOUT_MS / 1000
                while position < r.until_offset:
                    # Short polls: over markers the position moves, but poll() waits for a record.
                    polled = reader.poll(timeout_ms=100)
                    count += sum(record.offset < r.until_offset for record in polled.get(tp, ()))
                    before, position = position, reader.position(tp, timeout_ms=TIMEOUT_MS)
                    if position > before:
                        deadline = monotonic() + TIMEOUT_MS / 1000
                    elif monotonic() > deadline:
                        raise IncompleteRead(f"{r}: an independent reader stays at offset {position}")
                return count
            finally:
                reader.close()

    def _refuse_compacted(self, topic: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": None})
        with self._reaching():
            said = self.admin.describe_configs([resource], config_filter="all")
        policy = said["topic"][topic].get("cleanup.policy", {}).get("value") or ""
        if "compact" in policy:
            raise CompactedTopic(
                f"topic {topic!r} at {self.servers} has cleanup.policy={policy}: compaction removes records, "
                "so its holes cannot be told from losses; read a topic with cleanup.policy=delete"
            )

    @contextmanager
    def _reaching(self):
        """Turn the client's ways of not reaching a broker into BrokerUnreachable."""
        try:
            yield
        except (client_errors.KafkaError, OSError) as error:
            raise BrokerUnreachable(
                f"no answer from Kafka at {self.servers} ({type(error).__name__}: {error}); "
                "check that it runs and that bootstrap.servers and the security properties are right"
            ) from error
