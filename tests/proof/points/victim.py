"""A pipeline whose processes are killed: what can be asked of it, and whether it is whole afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from psycopg import sql

from ratchet.dev.stack import CHECKOUT
from ratchet.ledger import writers
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run, SliceToken, Tag
from ratchet.operate.verify import verify
from ratchet.protocol import claims
from ratchet.sinks import stage
from ratchet.sinks.lookup import sinks_of
from ratchet.source.kafka import Kafka
from tests.acceptance.line import Line
from tests.proof.witness.comparison import compare
from tests.proof.witness.outside import Reach, unlike
from tests.proof.witness.plain import plain_of
from tests.until import until

from .lines.shape import GATE, otherwise

LINES = f"{__package__}.lines"
WANTED = "the test wants it so"
"""Why a person aborts or voids a transaction."""
WAITED = timedelta(seconds=5)
"""A lease that was renewed so long after its transaction was prepared is renewed by a commit that waits."""
NEVER_WAITS = timedelta(seconds=60)
"""Whoever has not waited by then will not: its commit was killed, or somebody else commits it."""


class Victim(Line):
    """One pipeline of package `lines`; `env` is what a command of its is started with."""

    def __init__(self, name: str, ledger_url: str, kafka: dict[str, str], airflow_url: str, asked: Path, env: dict):
        super().__init__(name, ledger_url, kafka, airflow_url, asked, LINES)
        self._env = env

    # What is asked of it.

    def ask(self, what: str) -> None:
        """Have the next job be held, refuse, or fail."""
        (self.holds / f"{self.name}.{what}").touch()

    def forget(self) -> None:
        """Take back what no job has taken, and let go the one that is held."""
        for what in ("hold", "refuse", "fail", "hold.taken"):
            (self.holds / f"{self.name}.{what}").unlink(missing_ok=True)

    def tend(self) -> None:
        """Let the held job go when another transaction has been prepared behind it and waits, or has for long."""
        row = self.newest("PREPARED")
        if row is None:
            return
        # Whoever waits renews its lease; a job does so until it has prepared, so a late renewal is the wait's.
        renewed_at = row.lease_until - timedelta(seconds=self.spec.lease_seconds)
        if renewed_at - row.prepared_at > WAITED or datetime.now(UTC) - row.prepared_at > NEVER_WAITS:
            (self.holds / f"{self.name}.hold.taken").unlink(missing_ok=True)

    def grow(self) -> int:
        """Give the topic another partition; its number."""
        with Kafka(self._kafka) as kafka:
            number = len(kafka.offsets(self.name).stable)
            kafka.admin.create_partitions({self.name: number + 1})
            until("the partition is there", lambda: number in kafka.offsets(self.name).stable, 60)
        return number

    def deploy_the_other(self) -> None:
        """Have processes that begin now have the other version of its spec."""
        file = otherwise(self.name)
        file.unlink() if file.exists() else file.touch()

    def shut(self, seconds: float) -> None:
        """Let the gate say no for a while."""
        query = sql.SQL("insert into {} values (%s, clock_timestamp() + make_interval(secs => %s))")
        self._ledger.execute(query.format(sql.Identifier(GATE)), [self.name, seconds])

    def say(self, *said: str) -> int:
        """What a person has `ratchet …` do, once; its exit status, negative where it was killed."""
        env = {**os.environ, **self._env, "RATCHET_LEDGER_URL": self._url}
        done = subprocess.run([sys.executable, "-m", "ratchet", *said], env=env, cwd=CHECKOUT, capture_output=True)
        return done.returncode

    def newest(self, state: str) -> Any:
        """The newest transaction in this state, without its revisions; None if there is none."""
        return self._ledger.execute(
            "select * from ratchet.transactions where pipeline = %s and state = %s and revision = 0 "
            "order by txid desc limit 1",
            [self.name, state],
        ).fetchone()

    def is_tried(self) -> Any:
        """The newest OPEN transaction of which a slice has been taken, None if there is none."""
        row = self.newest("OPEN")
        return row if row and any(self.tries(row.txid).values()) else None

    def settle_as(self, run_id: str) -> None:
        """End the claim of a run that Airflow does not have."""
        with Ledger(self._url) as ledger:
            claims.settle(ledger, self.spec, Run(self.name, run_id), succeeded=False, reason=WANTED)

    def leave_a_stage(self) -> bool:
        """Stages and writers of what is over, as a process leaves them that dies before it discards them."""
        row = self.newest("COMMITTED")
        if row is None:
            return False
        with Ledger(self._url) as ledger, ledger.begin() as conn:
            committed = read_transaction(conn, self.name, row.txid)
            # As a revision has them.
            stage.create(conn, sinks_of(self.spec), replace(committed, revision=1))
            token = SliceToken(self.name, row.txid, row.epoch, 0, 1)
            for sink in sinks_of(self.spec):
                writers.register(conn, token, Tag(0, 0), sink.name, sink.home)
        return True

    # Whether it is whole.

    def unrest(self) -> str | None:
        """What is still to be done, in a line; None if nothing is: all is committed, no run is active."""
        if self.unfinished():
            return f"{self.unfinished()} transactions are unfinished"
        with Kafka(self._kafka) as kafka:
            ends = kafka.offsets(self.name).stable
        planned = self._planned()
        waiting = {partition: end for partition, end in ends.items() if planned.get(partition, 0) != end}
        if waiting:
            return f"records wait up to {waiting}, planned are {planned}"
        if self._behind():
            return f"destinations lack steps: {', '.join(self._behind())}"
        if self._asked():
            return f"{self._asked()} revisions or releases are asked for"
        if self.leftovers():
            return f"stages or writers are left: {', '.join(self.leftovers())}"
        if self._sessions():
            return f"sessions are in the midst of a transaction: {self._sessions()}"
        # Airflow last, whom the question costs most.
        active = self.active()
        return f"runs are active: {', '.join(active)}" if active else None

    def faults(self) -> list[str]:
        """What is lost, doubled, or not as the ledger says, in lines; empty if all is as it should be."""
        with Ledger(self._url) as ledger:
            said = [fault for check in verify(ledger, self.spec) for fault in check.faults]
        # Of what is voided nothing is asked, so it must be what a person has said.
        said += [voided for voided in self.voided() if not voided.endswith(WANTED)]
        by = Reach(self._url, self._kafka, {"ratchet_ledger": self._url})
        said += [f for sink in sinks_of(self.spec) for to in sink.destinations for f in unlike(sink, to, by).said]
        versions = getattr(import_module(f"{LINES}.{self.name}"), "VERSIONS", (self.spec,))
        plains = {spec.code_hash: plain_of(spec) for spec in versions}
        return compare(self.spec, self.topic(), self._url, plains=plains).faults() + said

    def _behind(self) -> list[str]:
        """The destinations that have yet to get what is committed."""
        query = (
            "select destination from ratchet.destinations d join ratchet.pipelines p using (pipeline) "
            "where pipeline = %s and d.step < p.step"
        )
        return [row.destination for row in self._ledger.execute(query, [self.name])]

    def _planned(self) -> dict[int, int]:
        """{partition: until where its records have been taken}."""
        rows = self._ledger.execute(
            "select partition, max(until_offset) as until from ratchet.ranges where pipeline = %s group by partition",
            [self.name],
        )
        return {row.partition: row.until for row in rows}

    def _asked(self) -> int:
        """How many revisions and releases wait."""
        query = "select count(*) as n from ratchet.replays where pipeline = %s and given_up is null"
        return self._ledger.execute(query, [self.name]).fetchone().n

    def _sessions(self) -> int:
        """How many sessions hold a transaction of this database open for longer than a statement takes."""
        row = self._ledger.execute(
            "select count(*) as n from pg_stat_activity where datname = current_database() "
            "and state like 'idle in transaction%%' and state_change < clock_timestamp() - interval '20 seconds'"
        ).fetchone()
        return row.n
