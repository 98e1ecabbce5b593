"""A pipeline of the campaign, and whether it has done all there is to do."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from ratchet.dev.stack import Stack
from ratchet.source.kafka import Kafka
from ratchet.spec.pipeline import Pipeline
from tests.acceptance.line import Line
from tests.proof.witness.console import is_decided
from tests.proof.witness.plain import Plain, plain_of

from .deployed import DIRECTORY, deploy
from .producers import Producers
from .record import PipelineRecord

PIPELINES = f"{__package__}.pipelines"
_IN_THE_MIDST = """
    select format('%s, in the midst of a database transaction: %s', application_name, left(query, 80)) as said
    from pg_stat_activity where application_name like 'ratchet%' and xact_start < clock_timestamp() - interval '5 s'
    union all select 'prepared transaction ' || gid from pg_prepared_xacts
"""
"""Whoever is, with whatever locks; but readers, who are so all the time, are nobody's remains."""


MIGRATE_SECONDS = 400
"""A migration waits for locks, and says so, for five minutes before it gives up."""
GIVEN_UP = "the campaign's people want it so"


class CampaignLine(Line):
    """A pipeline of the campaign; `deployed` is the directory of what is deployed, of which Airflow is told.

    `published` is the number of the version that processes have which begin now.
    """

    def __init__(self, name: str, stack: Stack, holds: Path, deployed: Path):
        super().__init__(name, stack.ledger_url, stack.kafka, stack.airflow_url, holds, PIPELINES)
        self.versions: tuple[Pipeline, ...] = import_module(f"{PIPELINES}.{name}").VERSIONS
        self._deployed, self._wanted, self.published = deployed, 0, 0
        self._migrated: int | None = 0

    def ready(self) -> None:
        """Airflow has its DAG."""
        self.find_dag()
        self.pause(False)

    def retry_halted(self) -> str | None:
        """Have what was halted tried again; what `ratchet retry` says, None if the line is not halted."""
        halted = self._ledger.execute(
            "select from ratchet.transactions where pipeline = %s and revision = 0 and halted_at is not null "
            "and state not in ('COMMITTED', 'VOIDED')",
            [self.name],
        ).fetchone()
        return None if halted is None else self.command("retry", self.name).strip()

    # The spec.

    def deployed(self) -> Pipeline:
        """The version that is published."""
        return self.versions[self.published]

    def widest(self) -> Pipeline:
        """The version that has every column which there is by now; the second one has all that there are in any."""
        return self.versions[min(self._wanted, 1)]

    def plains(self) -> dict[str, Plain]:
        """What becomes of a record, by the hash of the code that a transaction was made with."""
        return {spec.code_hash: plain_of(spec) for spec in self.versions}

    def deploy(self, version: int, *, migrate_first: bool) -> None:
        """Have processes begin with another version, before or after its tables are migrated, as people do both.

        Between the two they fail at begin. What fails here, `finish_deploying` has to do later.
        """
        self._wanted = version
        if not migrate_first:
            self._publish()
        self.finish_deploying()

    def finish_deploying(self) -> str | None:
        """Do what is left of a deployment, migrating first; None if nothing is."""
        if self._wanted == self._migrated == self.published:
            return None
        elsewhere = self._deployed / "checkout"
        elsewhere.mkdir(exist_ok=True)
        deploy(elsewhere, self.name, self._wanted)
        self.command("migrate", self.name, seconds=MIGRATE_SECONDS, env={DIRECTORY: str(elsewhere)})
        self._migrated = self._wanted
        self._publish()
        return f"version {self._wanted}"

    def restored(self) -> None:
        """The ledger is a backup, so the tables may be those of a version before."""
        self._migrated = None

    def attach(self) -> str | None:
        """Do what a restore asks for of one destination; None if nothing is left to do."""

    def _publish(self) -> None:
        deploy(self._deployed, self.name, self._wanted)
        self.published = self._wanted

    # What there is, and what is left to do.

    def txids(self, state: str) -> list[int]:
        """The transactions whose original is COMMITTED, VOIDED or `unfinished`, the latest first."""
        unfinished = state == "unfinished"
        rows = self._ledger.execute(
            "select txid from ratchet.transactions where pipeline = %s and revision = 0 "
            "and case when %s then state not in ('COMMITTED', 'VOIDED') else state = %s end order by txid desc",
            [self.name, unfinished, state],
        )
        return [row.txid for row in rows]

    def waiting_replays(self) -> list[int]:
        """The transactions that somebody wants to have replayed, and that can be."""
        rows = self._ledger.execute(
            "select txid from ratchet.replays where pipeline = %s and given_up is null order by txid", [self.name]
        )
        return [row.txid for row in rows]

    def is_decided(self) -> bool:
        """Whether every record of the topic is committed or aborted."""
        return is_decided(self._kafka, self.name)

    def is_drained(self) -> bool:
        """Whether all that is committed in the topic is committed in the sinks, and all replays are."""
        if self.unfinished() or self.waiting_replays():
            return False
        rows = self._ledger.execute(
            "select partition, max(until_offset) as until from ratchet.ranges where pipeline = %s group by partition",
            [self.name],
        ).fetchall()
        with Kafka(self._kafka) as kafka:
            return {row.partition: row.until for row in rows} == kafka.offsets(self.name).stable

    def in_the_midst(self) -> list[str]:
        """Sessions of ratchet in the midst of a database transaction, whatever the pipeline, and prepared ones."""
        return [row.said for row in self._ledger.execute(_IN_THE_MIDST)]

    def told(self, producers: Producers) -> PipelineRecord:
        """What it has done."""
        row = self._ledger.execute(
            "select count(*) filter (where revision = 0) as transactions, count(*) filter (where revision > 0) as "
            "revisions from ratchet.transactions where pipeline = %s",
            [self.name],
        ).fetchone()
        dead = sum(self.dead_letters().values())
        made = producers.lines[self.name].tally
        aborted = made.aborted + made.lapsed
        return PipelineRecord(
            self.name, shape(self.deployed()), made.committed, aborted, row.transactions, row.revisions, dead
        )


def shape(spec: Pipeline) -> str:
    """A pipeline in a line: what it reads, what it keeps, how it runs."""
    sinks = ", ".join(f"{sink.kind} {sink.name}" for sink in spec.sinks)
    return f"{sinks}; at most {spec.max_records:,} records a transaction; {spec.spark}"
