"""A pipeline of the campaign, and whether it has done all there is to do."""

from __future__ import annotations

from pathlib import Path

from ratchet.dev.stack import Stack
from ratchet.source.kafka import Kafka
from ratchet.spec.pipeline import Pipeline
from tests.acceptance.line import Line
from tests.proof.witness.console import is_decided

from .producers import Producers
from .record import PipelineRecord

PIPELINES = f"{__package__}.pipelines"
_IN_THE_MIDST = """
    select format('%s, in the midst of a database transaction: %s', application_name, left(query, 80)) as said
    from pg_stat_activity where application_name like 'ratchet%' and xact_start < clock_timestamp() - interval '5 s'
    union all select 'prepared transaction ' || gid from pg_prepared_xacts
"""
"""Whoever is, with whatever locks; but readers, who are so all the time, are nobody's remains."""


class CampaignLine(Line):
    """A pipeline of the campaign."""

    def __init__(self, name: str, stack: Stack, holds: Path):
        super().__init__(name, stack.ledger_url, stack.kafka, stack.airflow_url, holds, PIPELINES)

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

    def is_decided(self) -> bool:
        """Whether every record of the topic is committed or aborted."""
        return is_decided(self._kafka, self.name)

    def is_drained(self) -> bool:
        """Whether all that is committed in the topic is committed in the sinks."""
        if self.unfinished():
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
            self.name, shape(self.spec), made.committed, aborted, row.transactions, row.revisions, dead
        )


def shape(spec: Pipeline) -> str:
    """A pipeline in a line: what it reads, what it keeps, how it runs."""
    sinks = ", ".join(f"{sink.kind} {sink.name}" for sink in spec.sinks)
    return f"{sinks}; at most {spec.max_records:,} records a transaction; {spec.spark}"
