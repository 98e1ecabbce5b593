"""Marks of Kafka topics: in partition 0 of a compacted topic beside them, what each pipeline has sent to each."""

# The annotations that pyright brings for kafka-python are of another version.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from time import monotonic, sleep

import kafka.errors as client_errors
from kafka import IsolationLevel, OffsetSpec
from kafka.admin import ConfigResource, ConfigResourceType

from ratchet.destinations.port import Mark, Undecided
from ratchet.errors import DestinationRefused, UnknownTopic
from ratchet.ledger.topics import Topics
from ratchet.ledger.work import OffsetRange
from ratchet.source.kafka import Kafka
from ratchet.spec.subscription import MARKS

CONFIGS = {
    "cleanup.policy": "compact",
    # The newest segment is never compacted, and each look reads the whole of it.
    "segment.ms": "3600000",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
"""What the topic of the marks is made with."""
_OF_MARKS = Topics.one(MARKS)
DECIDED_SECONDS = 5.0
"""So long a look waits for a transaction that is about to be decided."""


@dataclass(frozen=True)
class Kept:
    """What stands of a pipeline and a topic: the mark, whose it is, and the topic as it was found at its start."""

    step: int
    token: int
    txid: int | None
    since: int
    """The step after which the topic began to get rows."""
    sink: str
    destination: str
    topic_id: str
    partitions: int
    format: str

    @property
    def mark(self) -> Mark:
        return Mark(self.step, self.token)

    def written(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def key_of(pipeline: str, topic: str) -> bytes:
    """The key under which a mark stands."""
    return json.dumps({"pipeline": pipeline, "topic": topic}).encode()


class Marks(Kafka):
    """The marks, read from the brokers; use it as a context manager. Errors are those of `Kafka`.

    `where` begins errors that say what somebody must mend.
    """

    def __init__(self, properties: dict[str, str], where: str):
        super().__init__(properties)
        self.where = where

    def read(self, key: bytes) -> Kept | None:
        """What stands under the key as of now; None if nothing does.

        Raises Undecided where a transaction is undecided for too long: the last mark may be within it, or be behind
        it. Raises DestinationRefused where what stands there is nothing that ratchet writes.
        """
        try:
            self.topic_id(MARKS)
        except UnknownTopic:
            return None
        self._see_that_they_stay()
        value = None
        for records in self._reaching(lambda: list(self._committed(self._whole())), f"READ on topic {MARKS!r}"):
            for record in records:
                if record.key == key:
                    value = record.value
        if value is None:
            return None
        try:
            return Kept(**json.loads(value))
        except (ValueError, TypeError):
            raise DestinationRefused(
                f"{self.where}: {MARKS}: what stands under {key.decode()} is no mark; somebody else writes there"
            ) from None

    def make(self) -> None:
        """Make the topic of the marks, where it is not there.

        Raises DestinationRefused where the user may not.
        """
        try:
            self.topic_id(MARKS)
            return
        except UnknownTopic:
            pass
        wanted = {MARKS: {"num_partitions": 1, "replication_factor": -1, "configs": CONFIGS}}
        try:
            self.admin.create_topics(wanted, wait_for_metadata=True)
        except client_errors.TopicAlreadyExistsError:
            return
        except (client_errors.AuthorizationError, client_errors.PolicyViolationError) as error:
            given = " ".join(f"--config {name}={value}" for name, value in CONFIGS.items())
            raise DestinationRefused(
                f"{self.where}: there is no topic {MARKS} at {self.servers}, in which pipelines note what they have "
                f"sent, and this connection's user may not make it ({type(error).__name__}); grant CREATE on it, or "
                f"make it: kafka-topics.sh --create --topic {MARKS} --partitions 1 {given}"
            ) from error
        except client_errors.KafkaError:
            # Somebody else may have been quicker.
            self.topic_id(MARKS)

    def has_records(self, topic: str) -> bool:
        """Whether a reader of what is committed finds a record in a topic."""
        partitions = self.topic_id(topic)[1]
        begins = self._list_offsets(Topics.one(topic), partitions, OffsetSpec.EARLIEST)
        ends = self._list_offsets(Topics.one(topic), partitions, OffsetSpec.LATEST)
        every = [OffsetRange(topic, p, begins[p], ends[p]) for p in partitions]
        return self._reaching(lambda: any(map(any, map(self._committed, every))), f"READ on topic {topic!r}")

    def longest_record(self, topic: str) -> int:
        """How many bytes the topic takes at once."""
        return int(self._config(topic, "max.message.bytes"))

    def _whole(self) -> OffsetRange:
        """All of the marks up to the end as of now, which are all decided."""
        (begin,) = self._list_offsets(_OF_MARKS, [0], OffsetSpec.EARLIEST).values()
        everything = self._listed(_OF_MARKS, [0], OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED)
        end = everything[0].offset
        deadline = monotonic() + DECIDED_SECONDS
        while self._list_offsets(_OF_MARKS, [0], OffsetSpec.LATEST)[0] < end:
            if monotonic() > deadline:
                raise Undecided
            sleep(0.02)
        return OffsetRange(MARKS, 0, begin, end)

    def _see_that_they_stay(self) -> None:
        policy = self._config(MARKS, "cleanup.policy")
        if policy != "compact":
            raise DestinationRefused(
                f"{self.where}: topic {MARKS} at {self.servers} has cleanup.policy={policy}, by which marks would be "
                "lost; alter it to compact"
            )

    def _config(self, topic: str, name: str) -> str:
        def ask() -> str:
            admin = self._open()
            # The client's own call gives a topic whose settings are refused as one without settings.
            request = admin._describe_configs_request([ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})])
            (said,) = admin._manager.run(admin._manager.send, request).results
            error = client_errors.for_code(said.error_code)
            if error is not client_errors.NoError:
                raise error(f"topic {topic!r}: {said.error_message}")
            return {config.name: config.value for config in said.configs}[name]

        return self._reaching(ask, f"DESCRIBE_CONFIGS on topic {topic!r}")
