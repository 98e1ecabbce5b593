"""A pipeline as a user has it: records in, runs, and rows and the ledger to look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import TopicAlreadyExistsError
from psycopg import sql
from psycopg.rows import namedtuple_row

from ratchet.begin import Begun, begin
from ratchet.kafka import Kafka
from ratchet.ledger import Ledger
from ratchet.stack import CHECKOUT
from ratchet.transaction import Run
from ratchet.verify import verify

from ..until import until
from ..witness.console import Record as Read
from .runs import Runs

PIPELINES = f"{__package__}.pipelines"


class Record(NamedTuple):
    """What a row of the Append sink says, and what a good record of the topic says."""

    offset: int
    k: str
    v: int


class Line(Runs):
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
        super().__init__(name, airflow_url)
        self.holds = holds
        self.spec = import_module(f"{pipelines}.{name}").PIPELINE
        self._url, self._kafka, self._servers = ledger_url, kafka, kafka["bootstrap.servers"]
        self._connection: psycopg.Connection | None = None

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
        self._http.close()

    @property
    def _ledger(self) -> psycopg.Connection:
        """A connection to the ledger, made anew when PostgreSQL was lost."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True, row_factory=namedtuple_row)
        return self._connection

    def reset(self) -> None:
        """The topic and the DAG are there, no run is active, and every transaction is finished."""
        for file in self.holds.glob(f"{self.name}.*"):
            file.unlink()
        self._create_topic()
        self.find_dag()
        self.pause(False)
        self._void_halted()
        until("no run is active", lambda: not self.active(), 120)
        if self.unfinished():
            until("an unfinished transaction is finished", self._finish, 120)

    def publish(self, count: int, *, bad: int = 0, at: datetime | None = None) -> None:
        """Append so many records to partition 0, then `bad` ones that are no JSON; `at` is their timestamp."""
        stamp = None if at is None else int(at.timestamp() * 1000)
        values = [json.dumps({"k": f"key {number % 7}", "v": number}).encode() for number in range(count)]
        producer = KafkaProducer(bootstrap_servers=self._servers)
        for value in values + [b"no JSON"] * bad:
            producer.send(self.name, value, partition=0, timestamp_ms=stamp)
        producer.flush()
        producer.close()

    def topic(self) -> list[Read]:
        """All committed records of the topic, in order within each partition, read here and not by Spark."""
        with Kafka(self._kafka) as kafka:
            ends = kafka.offsets(self.name).stable
        reader = KafkaConsumer(bootstrap_servers=self._servers, isolation_level="read_committed")
        found: list[Read] = []
        try:
            places = {TopicPartition(self.name, partition): end for partition, end in ends.items()}
            reader.assign(list(places))
            reader.seek_to_beginning()
            while any(reader.position(place) < end for place, end in places.items()):
                for place, records in reader.poll(timeout_ms=1000).items():
                    found += [(place.partition, record.offset, record.key, record.value) for record in records]
        finally:
            reader.close()
        return found

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
        """Start a run whose job waits, and whose `next` has found nothing: what is published now is another run's."""
        self.hold()
        run_id = self.trigger()
        self.held()
        self.task(run_id, "next", "skipped")
        return run_id

    def release(self) -> None:
        """Let the held job go on."""
        for file in self.holds.glob(f"{self.name}.held.*"):
            file.unlink()

    def fail(self, whether: bool) -> None:
        """Make every job's transform raise, or not."""
        file = self.holds / f"{self.name}.fail"
        file.touch() if whether else file.unlink()

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
            file.touch()
        else:
            file.unlink()
            for left in self.holds.glob(f"{self.name}.waiting.*"):
                left.unlink()

    def is_waiting_in_spark(self) -> bool:
        """Whether a Spark task has come so far."""
        return any(self.holds.glob(f"{self.name}.waiting.*"))

    # The command.

    def command(self, *said: str) -> str:
        """What `ratchet …` prints; it must succeed."""
        env = {**os.environ, "RATCHET_LEDGER_URL": self._url, "RATCHET_PIPELINES": PIPELINES}
        done = subprocess.run(
            [sys.executable, "-m", "ratchet", *said], env=env, cwd=CHECKOUT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # The ledger and the tables.

    def head(self) -> int:
        row = self._ledger.execute("select head from ratchet.pipelines where pipeline = %s", [self.name]).fetchone()
        return row.head if row else 0

    def transaction(self, run_id: str) -> Any:
        """The transaction that a run was bound to last, as the ledger has it now; None before it began."""
        return self._ledger.execute(
            "select t.*, t.lease_until < clock_timestamp() as lease_ran_out from ratchet.transactions t "
            "join ratchet.runs r using (pipeline, txid, revision) where r.dag_id = %s and r.run_id = %s "
            "order by r.clear_number desc limit 1",
            [self.name, run_id],
        ).fetchone()

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
                ledger, spec, Run(self.name, run_id), lambda _: kafka.offsets(spec.source.name), lambda *_: True
            )
        assert isinstance(begun, Begun), begun
        return begun.claim.txid

    def unfinished(self) -> int:
        """How many transactions and revisions still have to be finished; one that is given up has not."""
        query = (
            "select count(*) as n from ratchet.transactions t where pipeline = %s "
            "and state not in ('COMMITTED', 'VOIDED') and (revision = 0 or halted_at is null) and not exists "
            "(select from ratchet.transactions n where (n.pipeline, n.txid) = (t.pipeline, t.txid) "
            "and n.revision > t.revision)"
        )
        return self._ledger.execute(query, [self.name]).fetchone().n

    def claimant(self, txid: int) -> str:
        """The run that holds or held the transaction's latest claim."""
        query = "select run_id from ratchet.transactions where pipeline = %s and txid = %s and revision = 0"
        return self._ledger.execute(query, [self.name, txid]).fetchone().run_id

    def states_of(self, txid: int) -> list[str]:
        """The state of a transaction and of each of its revisions."""
        rows = self._ledger.execute(
            "select state from ratchet.transactions where pipeline = %s and txid = %s order by revision",
            [self.name, txid],
        )
        return [row.state for row in rows]

    def why(self, txid: int, move: str) -> list[str]:
        """Why the history says that a transaction or its revisions moved so."""
        rows = self._ledger.execute(
            "select detail->>'why' as why from ratchet.events where pipeline = %s and txid = %s and move = %s "
            "order by id",
            [self.name, txid, move],
        )
        return [row.why for row in rows]

    def stages(self, txid: int, epoch: int) -> list[str]:
        """The staged tables of an epoch that are there."""
        rows = self._ledger.execute(
            "select relation from ratchet.stages join pg_tables on schemaname = 'ratchet_stage' "
            "and tablename = relation where pipeline = %s and txid = %s and epoch = %s",
            [self.name, txid, epoch],
        )
        return [row.relation for row in rows]

    def reached(self, state: str = "COMMITTED") -> int:
        """Up to which offset there are transactions in this state."""
        row = self._ledger.execute(
            "select max(until_offset) as until from ratchet.ranges join ratchet.transactions using (pipeline, txid) "
            "where pipeline = %s and state = %s and revision = 0",
            [self.name, state],
        ).fetchone()
        return row.until or 0

    def mirrored(self) -> int:
        """Where the consumer group for monitoring tools stands; 0 if there is none."""
        with Kafka(self._kafka) as kafka:
            return kafka.mirrored(f"ratchet-{self.name}", self.name).get(0, 0)

    def range(self, txid: int) -> tuple[int, int]:
        """(first offset, the one after the last) of a transaction."""
        row = self._ledger.execute(
            "select from_offset, until_offset from ratchet.ranges where pipeline = %s and txid = %s", [self.name, txid]
        ).fetchone()
        return row.from_offset, row.until_offset

    def tries(self, txid: int) -> dict[int, int]:
        """slice → tries taken in the transaction's present epoch."""
        rows = self._ledger.execute(
            "select slice, try_number from ratchet.slices join ratchet.transactions using (pipeline, txid, epoch) "
            "where pipeline = %s and txid = %s",
            [self.name, txid],
        )
        return {row.slice: row.try_number for row in rows}

    def slice_names(self, txid: int) -> dict[int, str]:
        """slice → its name, made here from the ranges in the ledger."""
        rows = self._ledger.execute(
            "select slice, ranges from ratchet.slices where pipeline = %s and txid = %s", [self.name, txid]
        )
        return {
            row.slice: ", ".join(f"{self.name}-{partition} [{first},{until})" for partition, first, until in row.ranges)
            for row in rows
        }

    def all_stages(self) -> list[str]:
        """The stages that the ledger knows."""
        rows = self._ledger.execute("select relation from ratchet.stages where pipeline = %s", [self.name])
        return [row.relation for row in rows]

    def end(self) -> int:
        """The offset after the last record of the topic."""
        with Kafka(self._kafka) as kafka:
            return kafka.offsets(self.name).stable[0]

    def commits(self) -> list[int]:
        """The txids in the order in which history has them committed, without their revisions."""
        rows = self._ledger.execute(
            "select txid from ratchet.events where pipeline = %s and move = 'COMMITTED' and revision = 0 order by id",
            [self.name],
        )
        return [row.txid for row in rows]

    def positions(self) -> Counter[tuple[int, int]]:
        """The multiset of (partition, offset) in the Append sink."""
        rows = self._ledger.execute(sql.SQL("select _partition, _offset from {}").format(self._table("rows")))
        return Counter((row[0], row[1]) for row in rows)

    def rows(self, txid: int | None = None) -> list[Record]:
        """The rows of the Append sink, of one transaction or of all, by offset."""
        query = sql.SQL("select _offset, k, v from {} where %(txid)s::bigint is null or _txid = %(txid)s order by 1")
        found = self._ledger.execute(query.format(self._table("rows")), {"txid": txid})
        return [Record(*row) for row in found]

    def sums(self) -> dict[str, int]:
        """The Accumulate sink: {k: the sum of v}."""
        rows = self._ledger.execute(sql.SQL("select k, v_sum from {}").format(self._table("sums")))
        return {row.k: int(row.v_sum) for row in rows}

    def dead_letters(self) -> Counter[tuple[int, int]]:
        """The multiset of (partition, offset) of the dead letters."""
        query = 'select partition, "offset" from ratchet.dead_letters where pipeline = %s'
        return Counter((row[0], row[1]) for row in self._ledger.execute(query, [self.name]))

    def expected(self) -> Counter[tuple[int, int]]:
        """The multiset of everything below the head that is not voided."""
        rows = self._ledger.execute(
            "select r.partition, r.from_offset, r.until_offset from ratchet.ranges r "
            "join ratchet.transactions t using (pipeline, txid) join ratchet.pipelines p using (pipeline) "
            "where pipeline = %s and txid <= p.head and t.revision = 0 and t.state = 'COMMITTED'",
            [self.name],
        )
        return Counter((row[0], offset) for row in rows for offset in range(row[1], row[2]))

    def is_whole(self) -> None:
        """Every commit in txid order, every record below the head exactly once, and nothing that `verify` objects to.

        The sums are those of the rows, so what is right in one sink is right in both.
        """
        voided = self._ledger.execute(
            "select txid from ratchet.transactions where pipeline = %s and state = 'VOIDED'", [self.name]
        )
        gone = {row.txid for row in voided}
        commits, due = self.commits(), [txid for txid in range(1, self.head() + 1) if txid not in gone]
        assert commits == due, f"committed are {commits} instead of {due}"
        found, expected = self.positions() + self.dead_letters(), self.expected()
        assert found == expected, f"lost: {list(expected - found)[:9]}; too many: {list(found - expected)[:9]}"
        if len(self.spec.sinks) > 1:
            of_rows: Counter[str] = Counter()
            for row in self.rows():
                of_rows[row.k] += row.v
            sums = self.sums()
            assert sums == of_rows, f"the sums are {sums}, and those of the rows {dict(of_rows)}"
        with Ledger(self._url) as ledger:
            faults = [fault for check in verify(ledger, self.spec) for fault in check.faults]
        assert not faults, "; ".join(map(str, faults))

    def _table(self, which: str) -> sql.Identifier:
        return sql.Identifier(f"{self.name}_{which}")

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

    def _create_topic(self) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self._servers)
        try:
            # The records of an interval that is long past are older than Kafka would keep them.
            keep = {"retention.ms": "-1"}
            topic = NewTopic(self.name, num_partitions=self.partitions, replication_factor=1, topic_configs=keep)
            admin.create_topics([topic])
        except TopicAlreadyExistsError:
            pass
        finally:
            admin.close()
