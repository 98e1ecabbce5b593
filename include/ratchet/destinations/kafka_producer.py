"""A transactional producer, by librdkafka: one transaction after another, each whole or not at all.

kafka-python has one too. A producer of its that is fenced asks for a new epoch and then says that it is in a wrong
state, by which nobody can tell that it was fenced; and it sends a tenth as fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ratchet.destinations.port import no_answer
from ratchet.errors import DestinationRefused, SettingsError
from ratchet.source.properties import librdkafka_settings

TRANSACTION_SECONDS = 900
"""A transaction may take so long, then the brokers abort it: the most that they allow by their own default."""
ANSWER_SECONDS = 30
"""How long to wait for the brokers: as long as it takes until another one has taken over."""
_AT_ONCE = 1_000_000
"""A request holds so many bytes of records of a partition at most, unless one record is longer."""
_SMALLEST, _LARGEST = 1_000, 1_000_000_000
"""What librdkafka takes as the length of a record."""

HEADER = "ratchet"
"""The one header of a record: each more would cost a sixth of what sending takes."""

_FENCED = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
_GONE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)


class ProducerFenced(Exception):
    """Somebody newer has the transactional id, or the brokers have ended the transaction: nothing was changed, unless
    that was its commit.
    """


class TransactionalProducer:
    """Whoever makes a later one of the same id ends the transactions of all earlier ones.

    Every method raises ProducerFenced once that has happened; DestinationUnreachable where the brokers do not answer,
    DestinationRefused where they do not take what is sent; then the producer is of no more use. `where` begins errors.
    """

    def __init__(self, properties: dict[str, str], transactional_id: str, where: str, topic: str, longest: int):
        """`longest` is what the topic takes at once, in bytes.

        When it is made, what earlier producers had left undecided is decided.
        """
        self._where, self._id = where, transactional_id
        self._began = monotonic()
        self._failed: KafkaException | None = None
        self._failed_at = ""
        self._heard = ""
        try:
            self._producer = Producer(
                {
                    **librdkafka_settings(properties),
                    "transactional.id": transactional_id,
                    "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
                    "message.timeout.ms": min(ANSWER_SECONDS, TRANSACTION_SECONDS) * 1000,
                    # As Java's producers have it, so that keys are where they would be by any of them.
                    "partitioner": "murmur2_random",
                    "compression.type": "lz4",
                    "linger.ms": 20,
                    "message.max.bytes": max(min(longest, _LARGEST), _SMALLEST),
                    "batch.size": max(min(longest, _AT_ONCE), _SMALLEST),
                    "queue.buffering.max.messages": 100_000,
                    "delivery.report.only.error": True,
                    "on_delivery": self._note,
                    "error_cb": self._hear,
                    # What matters is raised.
                    "log_level": 0,
                }
            )
        except KafkaException as error:
            raise SettingsError(f"{where}: {error.args[0].str()}") from None
        with self._told():
            # While no broker is connected the client looks for the coordinator each half second only; behind two
            # answers one is.
            for _ in range(2):
                self._producer.list_topics(topic, ANSWER_SECONDS)
            self._producer.init_transactions(ANSWER_SECONDS)

    def begin(self) -> None:
        """Begin a transaction."""
        self._failed, self._began = None, monotonic()
        with self._told():
            self._producer.begin_transaction()

    def send(self, topic: str, value: str | bytes | None, key: str | bytes | None, said: str) -> None:
        """Send a record, and in its header what is `said` of it; an error may show only later."""
        produce = self._producer.produce
        while True:
            try:
                produce(topic, value, key, headers=[(HEADER, said)])
                return
            except BufferError:
                with self._told():
                    self._producer.poll(0.01)
                    self._check()
            except KafkaException as error:
                self._failed, self._failed_at = error, f"the record of {said}"
                with self._told():
                    self._check()

    def look(self) -> None:
        """Hear what has failed."""
        with self._told():
            self._producer.poll(0)
            self._check()

    def put(self, topic: str, value: bytes, key: bytes) -> None:
        """Send one record to partition 0 of a topic, and wait until the brokers have all that was sent."""
        with self._told():
            self._producer.produce(topic, value, key, partition=0)
        self.flush()

    def flush(self) -> None:
        """Wait until the brokers have all that was sent."""
        with self._told():
            left = self._producer.flush(ANSWER_SECONDS)
            self._check()
            if left:
                raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))

    def commit(self) -> None:
        """Commit. After DestinationUnreachable nobody knows whether that has been done, until a later producer of the
        same id is made.
        """
        with self._told():
            self._producer.commit_transaction(ANSWER_SECONDS)

    def abort(self) -> None:
        """Let nothing of the transaction be seen; where that fails, a later producer or the brokers do so."""
        try:
            self._producer.purge()
            self._producer.abort_transaction(ANSWER_SECONDS)
        except KafkaException:
            pass

    def close(self) -> None:
        """Let go of the connections. An open transaction stays open."""
        self._producer.purge()
        # It holds what it calls back: only so it is gone now.
        del self._producer

    def _note(self, error: KafkaError, message: Message) -> None:
        if self._failed is None:
            self._failed = KafkaException(error)
            # Neither headers nor what belongs to this record alone come back: that would cost every record.
            self._failed_at = f"a row of {len(message.value() or b''):,} bytes, or one that was sent together with it,"

    def _hear(self, error: KafkaError) -> None:
        self._heard = error.str()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._said(error.args[0]) from error
        except SystemError as error:
            # So the client raises an error that ends it, where it hears of that within another call: the cause is that
            # error, unless a report of a record came between.
            cause = error.__cause__.args[0] if isinstance(error.__cause__, KafkaException) else self._ended_by()
            if cause is None:
                raise
            raise self._said(cause) from error

    def _ended_by(self) -> KafkaError | None:
        """What has ended the client, which it says whatever it is asked: to abort, which lets nobody see anything.

        None where nothing has, or the client is asked at a time at which it has nothing to abort.
        """
        try:
            self._producer.abort_transaction(ANSWER_SECONDS)
        except KafkaException as error:
            return None if error.args[0].code() == KafkaError._STATE else error.args[0]
        return None

    def _said(self, error: KafkaError) -> Exception:
        code, said = error.code(), " ".join(error.str().split())
        if code in (KafkaError._STATE, KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            # A transaction that has failed cannot be committed, and asked to it says why it has.
            try:
                self._producer.commit_transaction(ANSWER_SECONDS)
            except KafkaException as cause:
                code, said = cause.args[0].code(), " ".join(cause.args[0].str().split())
        took = monotonic() - self._began
        if code in (*_FENCED, KafkaError.INVALID_TXN_STATE) and took >= TRANSACTION_SECONDS:
            return DestinationRefused(
                f"{self._where}: a step took {took:.0f} s to send, and Kafka aborts a transaction after "
                f"{TRANSACTION_SECONDS} s; nothing was sent; let transactions be smaller (max_records)"
            )
        if code in _FENCED:
            return ProducerFenced(said)
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return DestinationRefused(
                f"{self._where}: the brokers' transaction.max.timeout.ms is below {TRANSACTION_SECONDS} s, which a "
                "step may take; raise it to 900000, its default"
            )
        if code in _TOO_LARGE:
            return DestinationRefused(
                f"{self._where}: {self._failed_at} is larger than the topic takes (max.message.bytes); "
                "nothing was sent; raise that"
            )
        if code in _GONE:
            return DestinationRefused(f"{self._where}: the topic is gone, or a partition of it; nothing was sent")
        right = {
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"WRITE and DESCRIBE on transactional id {self._id!r}",
            KafkaError.TOPIC_AUTHORIZATION_FAILED: "WRITE on the topic and on ratchet_marks",
            KafkaError.CLUSTER_AUTHORIZATION_FAILED: "IDEMPOTENT_WRITE on the cluster",
        }.get(code)
        if right is not None:
            return DestinationRefused(
                f"{self._where}: Kafka does not grant this connection's user {right} ({error.name()}); nothing was "
                "sent; grant it, or correct the connection"
            )
        why = f"{said}: {self._heard}" if self._heard else said
        return no_answer(self._where, why)
