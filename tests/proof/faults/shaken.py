"""The pipeline that is shaken, as a test has it: records in three partitions, and what has become of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import httpx
import psutil
import psycopg
from kafka import KafkaProducer
from psycopg import sql

from ratchet.ledger.schema import DELTA_SCHEMA
from ratchet.source.kafka import Kafka
from tests.acceptance.line import Line
from tests.proof.witness.comparison import compare
from tests.until import until

from .world import PIPELINES, World

COMMITTED_WITHIN = 600
"""Seconds after a fault is over within which all must be committed without anybody's help."""


class Shaken(Line):
    """A line whose records are good, given up by the transform, or no JSON; `v` grows from record to record."""

    partitions = 3

    def __init__(self, world: World, name: str = "shaken"):
        stack = world.stack
        super().__init__(name, stack.ledger_url, stack.kafka, stack.airflow_url, world.holds, PIPELINES)
        self._world, self._next = world, 0

    def publish(self, count: int, **_: object) -> None:
        """Append so many records; every eleventh is no JSON."""
        producer = KafkaProducer(bootstrap_servers=self._servers)
        for number in range(self._next, self._next + count):
            value = b"no JSON" if number % 11 == 0 else json.dumps({"k": f"key {number % 7}", "v": number}).encode()
            producer.send(self.name, value, partition=number % self.partitions)
        producer.flush()
        producer.close()
        self._next += count

    def everything(self) -> Counter[tuple[int, int]]:
        """The positions of all that is in the topic."""
        with Kafka(self._kafka) as kafka:
            ends = kafka.offsets(self.name).stable
        return Counter((partition, offset) for partition, end in ends.items() for offset in range(end))

    def in_the_midst(self, *, deferred: bool = False) -> None:
        """Records of three transactions wait; the first is being processed, its Spark tasks wait to be let go.

        Where `deferred` it waits in the driver instead, and the second, which is prepared, waits in the triggerer.
        """
        first = self.head() + 1
        self.publish(360)
        if deferred:
            self.hold()
            self.trigger()
            self.held()
            until("the second is prepared", lambda: self.states_of(first + 1) == ["PREPARED"], 300)
            self.task(self.claimant(first + 1), "commit", "deferred", 120)
            return
        self.wait_in_spark(True)
        self.trigger()
        until("a Spark task waits", self.is_waiting_in_spark, 300)

    def let_go(self) -> None:
        """What waits in Spark or in the driver goes on."""
        if any(self.holds.glob(f"{self.name}.wait")):
            self.wait_in_spark(False)
        self.release()

    def all_committed(self, seconds: float = COMMITTED_WITHIN) -> float:
        """Wait until all that is in the topic is committed or a dead letter; seconds that it took."""
        everything, began = self.everything(), time.monotonic()
        until("all is committed", answers(lambda: self.positions() + self.dead_letters() == everything), seconds)
        return time.monotonic() - began

    def recovers(self) -> tuple[float, float]:
        """See that everything is committed exactly once and nothing is left; seconds until committed, until at rest."""
        began = time.monotonic()
        committed = self.all_committed()
        self.at_rest()
        rested = time.monotonic() - began
        self.is_exact()
        return committed, rested

    def at_rest(self) -> None:
        """Wait until nothing works on the line, and nothing is left of what has."""
        self.is_done()
        until("nothing is left behind, nothing stands still", answers(lambda: not self._world.strays()), 120)

    def is_done(self) -> None:
        """Wait until no run is active, no stage and no claim is left and nobody has a database transaction."""
        until("no run is active", answers(lambda: not self.active()), 240)
        until("no stage is left", answers(lambda: not self.leftovers()), 180)
        until("no claim is left", answers(lambda: not self.open_claims()), 120)
        until("nobody is in a database transaction", answers(lambda: not self.sessions()), 120)

    def sessions(self) -> list[str]:
        """Who is in the midst of a database transaction of the ledger, or has prepared one."""
        rows = self._ledger.execute(
            "select application_name || ': ' || query as said from pg_stat_activity where datname = 'ratchet' "
            "and xact_start is not null and pid <> pg_backend_pid() and backend_type = 'client backend' "
            "union all select gid from pg_prepared_xacts"
        )
        return [row.said for row in rows]

    def not_voted(self) -> list[int]:
        """The txid of each slice of the present epochs that has not voted."""
        rows = self._ledger.execute(
            "select txid from ratchet.slices join ratchet.transactions using (pipeline, txid, epoch) "
            "where pipeline = %s and state = 'OPEN' and voted_at is null",
            [self.name],
        )
        return [row.txid for row in rows]

    def recorded(self) -> dict[str, list]:
        """All that the ledger and the sinks say of this line, but for leases; a late task must not change it."""
        tables = self._ledger.execute(
            "select schemaname, tablename from pg_tables where schemaname in ('ratchet', 'ratchet_stage', %s) "
            "or (schemaname = 'public' and tablename like 'shaken%%')",
            [DELTA_SCHEMA],
        )
        query = sql.SQL("select (to_jsonb(t) - 'lease_until')::text as said from {} t order by 1")
        return {
            ".".join(table): [row.said for row in self._ledger.execute(query.format(sql.Identifier(*table)))]
            for table in tables.fetchall()
        }

    def is_exact(self) -> None:
        """Each record of the topic is once in the sinks, with its content, or once a dead letter; all is consistent."""
        self.is_whole()
        faults = compare(self.spec, self.topic(), self._url).faults()
        assert not faults, "; ".join(faults)
        commits, due = self.commits(), list(range(1, self.head() + 1))
        assert commits == due, f"committed are {commits} instead of {due}"
        assert (unfinished := self.unfinished()) == 0, f"{unfinished} transactions are unfinished"


def lasts(seconds: float) -> None:
    """Return when a fault has been in effect for so long."""
    end = time.monotonic() + seconds
    until(f"{seconds:g} s have passed", lambda: time.monotonic() >= end, seconds + 10)


def answers(look: Callable[[], object]) -> Callable[[], object]:
    """`look`, which says no as long as a server does not answer."""

    def answer() -> object:
        with suppress(psycopg.Error, httpx.HTTPError, psutil.Error, AssertionError):
            return look()

    return answer
