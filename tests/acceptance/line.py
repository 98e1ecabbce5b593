"""A pipeline as a user has it: records in, runs, and rows and the ledger to look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError

from ratchet.dev.stack import CHECKOUT
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.source.kafka import Kafka
from tests.proof.witness.console import Record as Read
from tests.until import until

from .runs import Runs
from .shown import Record, Shown
from .transforms import HOLDS

PIPELINES = f"{__package__}.pipelines"


class Line(Runs, Shown):
    """One pipeline of the stack; its topic, its DAG and its tables begin with its name."""

    partitions = 1

    def __init__(
        self,
        name: str,
        ledger_url: str,
        kafka: dict[str, str],
        airflow_url: str,
        holds: Path,
        pipelines: str = PIPELINES,
    ):
        Runs.__init__(self, name, airflow_url)
        Shown.__init__(self, import_module(f"{pipelines}.{name}").PIPELINE, ledger_url)
        self.holds, self._pipelines = holds, pipelines
        self._kafka, self._servers = kafka, kafka["bootstrap.servers"]

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.look_no_more()
        self._http.close()

    def reset(self) -> None:
        """The topic and the DAG are there, no run is active, and every transaction is finished."""
        for file in self.holds.glob(f"{self.name}.*"):
            file.unlink()
        self.create_topic()
        self.find_dag()
        self.pause(False)
        self._void_halted()
        until("no run is active", lambda: not self.active(), 120)
        if self.unfinished():
            until("an unfinished transaction is finished", self._finish, 120)

    def publish(
        self, count: int, *, bad: int = 0, at: datetime | None = None, partition: int = 0, topic: str | None = None
    ) -> None:
        """Append so many records to the partition, then `bad` ones that are no JSON; `at` is their timestamp.

        Without `topic` to that of its name.
        """
        stamp = None if at is None else int(at.timestamp() * 1000)
        values = [json.dumps({"k": f"key {number % 7}", "v": number}).encode() for number in range(count)]
        producer = KafkaProducer(bootstrap_servers=self._servers)
        for value in values + [b"no JSON"] * bad:
            producer.send(topic or self.name, value, partition=partition, timestamp_ms=stamp)
        producer.flush()
        producer.close()

    def topic(self, name: str | None = None) -> list[Read]:
        """All committed records of its topic, or of another one, in order within each partition, read here."""
        found = committed(self._kafka, name or self.name)
        return [(record.partition, record.offset, record.key, record.value) for record in found]

    def records(self, first: int, until: int) -> list[Record]:
        """The good records of a range of partition 0."""
        return [
            Record(offset, **json.loads(value))
            for partition, offset, _, value in self.topic()
            if partition == 0 and first <= offset < until and value.startswith(b"{")
        ]

    # Holds, which the transform obeys.

    def hold(self) -> None:
        """Make the next job that starts wait."""
        (self.holds / f"{self.name}.hold").touch()

    def held(self) -> int:
        """Wait until a job has taken the hold; its process id."""
        found = until("a job is held", lambda: next(self.holds.glob(f"{self.name}.held.*"), None), 90)
        return int(found.suffix[1:])

    def trigger_held(self) -> str:
        """Start a run whose job waits: its begin is over, so what is published now is another run's."""
        self.hold()
        run_id = self.trigger()
        self.held()
        return run_id

    def release(self) -> None:
        """Let the held job go on."""
        for file in self.holds.glob(f"{self.name}.held.*"):
            file.unlink()

    def fail(self, whether: bool) -> None:
        """Make every job's transform raise, or not."""
        file = self.holds / f"{self.name}.fail"
        file.touch() if whether else file.unlink()

    def called(self) -> set[str]:
        """What Airflow has called for the pipeline, as `tests.acceptance.called` leaves it."""
        return {file.name.partition(".called.")[2] for file in self.holds.glob(f"{self.name}.called.*")}

    def refuse(self, why: str | None) -> None:
        """Make every job's transform refuse with these words, or not."""
        file = self.holds / f"{self.name}.refuse"
        file.unlink() if why is None else file.write_text(why)

    def multiply(self, factor: int) -> None:
        """Make every job that has not begun multiply `v`: what the transform does changes, and not its code."""
        (self.holds / f"{self.name}.factor").write_text(str(factor))

    def wait_in_spark(self, whether: bool) -> None:
        """Make every Spark task of the pipeline wait, or not; only transforms that look for it do so."""
        file = self.holds / f"{self.name}.wait"
        if whether:
            # Who was let go may still have said that it waits.
            for left in self.holds.glob(f"{self.name}.waiting.*"):
                left.unlink()
            file.touch()
        else:
            file.unlink()

    def is_waiting_in_spark(self) -> bool:
        """Whether a Spark task has come so far."""
        return any(self.holds.glob(f"{self.name}.waiting.*"))

    # The command.

    def command(self, *said: str, seconds: float = 60, env: dict[str, str] | None = None) -> str:
        """What `ratchet …` prints; it must succeed."""
        done = subprocess.run(
            [sys.executable, "-m", "ratchet", *said],
            env={
                **os.environ,
                "RATCHET_LEDGER_URL": self._url,
                "RATCHET_PIPELINES": self._pipelines,
                HOLDS: str(self.holds),
                **(env or {}),
            },
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # The ledger and Kafka.

    def pass_deadline(self, txid: int) -> None:
        """Let the deadline of the transaction's epoch be a second ago."""
        self._ledger.execute(
            "update ratchet.transactions set deadline = clock_timestamp() - interval '1 second' "
            "where pipeline = %s and txid = %s and revision = 0",
            [self.name, txid],
        )

    def begin_as(self, run_id: str) -> int:
        """Take a transaction as a run that Airflow does not have, as if it had been deleted; the txid."""
        spec = self.spec
        with Ledger(self._url) as ledger, Kafka(self._kafka) as kafka:
            begun = begin(
                ledger, spec, Run(self.name, run_id), partial(kafka.offsets, spec.source.name), lambda *_: True
            )
        assert isinstance(begun, Begun), begun
        return begun.claim.txid

    def mirrored(self) -> int:
        """Where the consumer group for monitoring tools stands; 0 if there is none."""
        with Kafka(self._kafka) as kafka:
            return kafka.mirrored(f"ratchet-{self.name}", {self.name}).get((self.name, 0), 0)

    def end(self) -> int:
        """The offset after the last record of the topic."""
        with Kafka(self._kafka) as kafka:
            return kafka.offsets(self.name).stable[0]

    def _void_halted(self) -> None:
        """What a failed test has left halted would fail the next one too: runs that wait behind it never end."""
        halted = self._ledger.execute(
            "select txid from ratchet.transactions where pipeline = %s and revision = 0 and halted_at is not null "
            "and state not in ('COMMITTED', 'VOIDED')",
            [self.name],
        )
        for row in halted:
            self.command("void", self.name, str(row.txid), "--reason", "a test has failed")

    def _finish(self) -> bool:
        self.ended(self.trigger())
        return not self.unfinished()

    def create_topic(self, name: str | None = None) -> None:
        """The topic of its name, or another one, is there."""
        admin = KafkaAdminClient(bootstrap_servers=self._servers)
        try:
            # The records of an interval that is long past are older than Kafka would keep them.
            keep = {"retention.ms": "-1"}
            topic = NewTopic(
                name or self.name, num_partitions=self.partitions, replication_factor=1, topic_configs=keep
            )
            admin.create_topics([topic])
        except TopicAlreadyExistsError:
            pass
        finally:
            admin.close()


def committed(kafka: dict[str, str], topic: str) -> list[Any]:
    """All committed records of a topic, in order within each partition, as kafka-python has them."""
    with Kafka(kafka) as source:
        ends = source.offsets(topic).stable
    reader = KafkaConsumer(bootstrap_servers=kafka["bootstrap.servers"], isolation_level="read_committed")
    found: list[Any] = []
    try:
        places = {TopicPartition(topic, partition): end for partition, end in ends.items()}
        reader.assign(list(places))
        reader.seek_to_beginning()
        while any(reader.position(place) < end for place, end in places.items()):
            for records in reader.poll(timeout_ms=1000).values():
                found += records
    finally:
        reader.close()
    return found
