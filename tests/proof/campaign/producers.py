"""Transactional producers, one for each pipeline of the campaign, that go on whatever becomes of Kafka.

Two of three Kafka transactions are committed, the others aborted; some stay open for a moment, and a few are left to
the broker, which aborts them when their time is over. What has become of one whose outcome a producer was not told is
for the witness to say.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from threading import Event, Thread

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = {"orders": 4, "accounts": 2, "events": 3, "archive": 1}
SENT = {"sent": 2}
"""The pipeline with destinations, which the campaign alone has."""
RATES = {"orders": 6_000.0, "accounts": 6_000.0, "events": 5_000.0, "archive": 4_000.0}
"""Records a second that are written, aborted ones too."""
TRICKLE = 50.0
"""Records a second of each when there are enough: a Kafka transaction in half a minute."""
_LOG = logging.getLogger(__name__)
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False
KEYS, IDS = 2_000, 20_000
BAD = 0.01
_FEWEST, _MOST = 50, 3_000
"""Records in a Kafka transaction."""
_TIMEOUT_MS, _LAPSE_MS = 60_000, 5_000
_PATIENCE = 10
"""Seconds that one call may take before it is looked at whether to stop."""
_NOTES = (b'"plain"', b"null", '"ä \U0001f600 €"'.encode(), b'"tab\\tline\\nback\\\\slash"', b'""', b'"\\u0041\\"x\\""')
_BROKEN = (
    b"no JSON", b"", b"\xff\xfe\x00\n\t", b"{}{}", b"[1]", b"null", b'{"k":"cut off', b'{"k":"a","v":1.5,"id":"x"}x',
    b"\x00", b"{\n", b'{"k":"\\u0000","owner":"\\u0000","body":"\\ud800"}',
)  # fmt: skip

Record = tuple[int, bytes | None, bytes | None]
"""A partition, a key, a value."""
Make = Callable[[int, random.Random], Record]


@dataclass
class Tally:
    """What a producer has done; records, but for `transactions`, `unknown`, `renewed` and `troubles`."""

    transactions: int = 0
    committed: int = 0
    aborted: int = 0
    lapsed: int = 0
    """In transactions that were left to the broker."""
    unknown: int = 0
    """Transactions of which nobody said whether they are committed."""
    unknown_records: int = 0
    renewed: int = 0
    """How often the producer was made anew."""
    troubles: dict[str, int] = field(default_factory=dict)
    """{error: how often a call told of it}."""

    def trouble(self, error: KafkaException) -> None:
        name = error.args[0].name()
        self.troubles[name] = self.troubles.get(name, 0) + 1


def create_topics(properties: Mapping[str, str], partitions: Mapping[str, int] = PARTITIONS) -> None:
    """Make the topics that are not there."""
    admin = AdminClient(dict(properties), logger=_LOG)
    there = admin.list_topics(timeout=30).topics
    missing = [NewTopic(name, count, 1) for name, count in partitions.items() if name not in there]
    for made in admin.create_topics(missing).values() if missing else ():
        made.result(30)


class Producers:
    """All producers, each in a thread; a context manager that stops them.

    `properties` are client properties by their Java names, `rates` {pipeline: records a second}. They end when told
    to, or when `committed` records are. Sizes and ends of transactions follow from `seed`.
    """

    def __init__(
        self,
        properties: Mapping[str, str],
        seed: int,
        rates: Mapping[str, float] = RATES,
        committed: int | None = None,
    ):
        self._enough, self._stop = committed, Event()
        self.lines = {name: Line(name, dict(properties), seed, rate, self._stopped) for name, rate in rates.items()}
        self._threads = [
            Thread(target=line.run, name=f"produce {line.name}", daemon=True) for line in self.lines.values()
        ]

    def __enter__(self) -> Producers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, seconds: float = 120) -> None:
        """End every producer after its transaction; TimeoutError if one does not end in time."""
        self._stop.set()
        self.wait(seconds)

    def wait(self, seconds: float) -> None:
        """Wait until they have ended by themselves; TimeoutError if they do not in time, RuntimeError if one broke."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if alive := [thread.name for thread in self._threads if thread.is_alive()]:
            raise TimeoutError(f"after {seconds:g} s there is no end of {', '.join(alive)}")
        if broken := [f"{line.name}: {line.broken!r}" for line in self.lines.values() if line.broken]:
            raise RuntimeError(f"a producer has broken: {'; '.join(broken)}")

    def slow_down(self) -> None:
        """From the next transaction on, write no more than a trickle."""
        for line in self.lines.values():
            line.rate = min(line.rate, TRICKLE)

    @property
    def committed(self) -> int:
        """Records that are committed for certain, of all producers."""
        return sum(line.tally.committed for line in self.lines.values())

    def tallies(self) -> dict[str, dict]:
        """{pipeline: what its producer has done}, for JSON."""
        return {name: asdict(line.tally) for name, line in self.lines.items()}

    def _stopped(self) -> bool:
        return self._stop.is_set() or (self._enough is not None and self.committed >= self._enough)


class Line:
    """The producer of one pipeline; `run` is its thread."""

    def __init__(self, name: str, properties: dict[str, str], seed: int, rate: float, stopped: Callable[[], bool]):
        self.name, self.tally, self.broken = name, Tally(), None
        self._properties, self.rate, self._stopped = properties, rate, stopped
        self._dice, self._make = random.Random(f"{seed} {name}"), MAKES[name]
        # Numbers that no producer before this one had, as long as fewer than a million records a second are made.
        self._number = time.time_ns() // 1000

    def run(self) -> None:
        """Write transactions until it is time to stop."""
        try:
            producer, due = None, time.monotonic()
            while not self._stopped():
                producer = producer or self._renew()
                if producer is None:
                    break
                size = self._dice.randrange(_FEWEST, _MOST)
                due = max(due, time.monotonic() - 2) + size / self.rate
                if not self._transact(producer, size):
                    producer = None
                self._pause(due - time.monotonic())
        except Exception as error:
            self.broken = error

    def _transact(self, producer: Producer, size: int) -> bool:
        """Write a transaction and end it; False if the producer is of no use any more."""
        end = self._dice.choices(("commit", "abort", "lapse"), (200, 99, 1))[0]
        waits = self._dice.uniform(0.2, 3) if self._dice.random() < 0.02 else 0.0
        self.tally.transactions += 1
        if end == "lapse":
            self._lapse(size)
            return True
        try:
            producer.begin_transaction()
            if not self._write(producer, size):
                producer.abort_transaction(_PATIENCE)
                return True
            self._pause(waits)
            if end == "abort":
                # What is only in the producer's queue would never be in the topic.
                producer.flush(_PATIENCE)
                producer.abort_transaction(_PATIENCE)
                self.tally.aborted += size
                return True
        except KafkaException as error:
            self.tally.trouble(error)
            return self._is_rid_of(producer)
        return self._commit(producer, size)

    def _commit(self, producer: Producer, size: int) -> bool:
        """Commit, asking again while nobody answers; False if the producer is of no use any more."""
        while True:
            try:
                producer.commit_transaction(_PATIENCE)
            except KafkaException as error:
                said = error.args[0]
                self.tally.trouble(error)
                if said.txn_requires_abort():
                    return self._is_rid_of(producer)
                if said.retriable() and not said.fatal() and not self._stopped():
                    continue
                self.tally.unknown += 1
                self.tally.unknown_records += size
                return False
            self.tally.committed += size
            return True

    def _is_rid_of(self, producer: Producer) -> bool:
        """Whether the transaction could be aborted, after something has gone wrong in it."""
        with suppress(KafkaException):
            producer.abort_transaction(_PATIENCE)
            return True
        return False

    def _lapse(self, size: int) -> None:
        """A transaction of another producer, that nobody ends."""
        # Its name is its own: the next one to take it would end what it has left.
        with suppress(KafkaException):
            producer = self._producer(f"{self.name}-lapse-{self._number}", _LAPSE_MS)
            producer.init_transactions(_PATIENCE)
            producer.begin_transaction()
            self._write(producer, size)
            producer.flush(_PATIENCE)
            self.tally.lapsed += size

    def _write(self, producer: Producer, size: int) -> bool:
        """Produce so many records; False if it is time to stop before they all are."""
        make, dice, topic = self._make, self._dice, self.name
        for number in range(self._number, self._number + size):
            partition, key, value = make(number, dice)
            while True:
                try:
                    producer.produce(topic, value, key, partition)
                    break
                except BufferError:
                    producer.poll(0.2)
                    if self._stopped():
                        return False
        self._number += size
        producer.poll(0)
        return True

    def _renew(self) -> Producer | None:
        """A producer that has fenced the one before it, as soon as Kafka answers; None if it is time to stop first."""
        while not self._stopped():
            self.tally.renewed += 1
            producer = self._producer(f"campaign-{self.name}", _TIMEOUT_MS)
            with suppress(KafkaException):
                producer.init_transactions(_PATIENCE)
                return producer
        return None

    def _producer(self, name: str, timeout_ms: int) -> Producer:
        return Producer(
            {
                **self._properties,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": timeout_ms,
                "linger.ms": 20,
                "compression.type": "lz4",
                "reconnect.backoff.max.ms": 1000,
            },
            logger=_LOG,
        )

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self._stopped():
            time.sleep(min(left, 0.2))


def _order(number: int, dice: random.Random) -> Record:
    if dice.random() < BAD:
        return dice.randrange(4), None, dice.choice((None, b'{"k":"a","v":1.5}', *_BROKEN))
    k = b"null" if number % 997 == 0 else b'"k%d"' % dice.randrange(KEYS)
    v = b"null" if number % 991 == 0 else b"%d" % dice.randrange(-1_000_000, 1_000_000)
    return dice.randrange(4), None, b'{"k":%b,"v":%b,"note":%b}' % (k, v, dice.choice(_NOTES))


def _account(number: int, dice: random.Random) -> Record:
    id_ = dice.randrange(IDS)
    odd = dice.random()
    if odd < BAD / 2:
        return dice.randrange(2), dice.choice((None, b"", b"x", b"\xff\x00", b"1.0", b"9" * 20)), b'{"owner":"o"}'
    if odd < BAD:
        return id_ % 2, b"%d" % id_, dice.choice((b'{"balance":"much"}', *_BROKEN))
    if odd < 0.06:
        return id_ % 2, b"%d" % id_, None
    owner = b'"o%d"' % (id_ % 701) if id_ % 211 else b"null"
    return id_ % 2, b"%d" % id_, b'{"owner":%b,"balance":%d}' % (owner, number % 1_000_003)


def _event(number: int, dice: random.Random) -> Record:
    if dice.random() < BAD:
        return dice.randrange(3), None, dice.choice((None, b'{"times":3000000000}', *_BROKEN))
    times = dice.choice((0, 1, 1, 1, 2, 3)) if dice.random() < 0.98 else dice.choice((7, 1_000))
    # `at` is another one in every record, so that the last row of a key does not depend on how a topic is cut.
    value = b'{"k":"k%d","at":%d,"times":%d,"v":%d}' % (dice.randrange(KEYS), number, times, dice.randrange(1_000_000))
    return dice.randrange(3), b"e%d" % number, value


def _document(number: int, dice: random.Random) -> Record:
    if dice.random() < BAD:
        return 0, None, dice.choice((None, b'{"id":"one"}', *_BROKEN))
    return 0, b"", b'{"id":%d,"body":"%b"}' % (number, b"lorem ipsum " * dice.randrange(1, 9))


MAKES: dict[str, Make] = {
    "orders": _order,
    "accounts": _account,
    "events": _event,
    "archive": _document,
    "sent": _account,
}
