"""Lineage of committed transactions, as OpenLineage has it: a run from topics to the tables of the sinks, and to where
their rows go besides.

Made from the ledger after the commit, so it names exactly the records and rows that count. Datasets have the names
that OpenLineage gives them, by which other tools' events are of the same ones:
https://openlineage.io/docs/spec/naming
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import cast

import attr
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    InputDatasetFacet,
    JobFacet,
    OutputDatasetFacet,
    RunFacet,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    schema_dataset,
)
from openlineage.client.uuid import generate_static_uuid
from sqlalchemy import text

from ratchet.destinations.dataset import Dataset
from ratchet.errors import SettingsError
from ratchet.ledger.connection import Ledger, driver_of
from ratchet.ledger.schema import SCHEMA
from ratchet.ledger.steps import destinations_of
from ratchet.logs import get_logger
from ratchet.operate.snapshot.transaction import Revision, Whole
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.telemetry.commits import Commit

PRODUCER = "urn:ratchet"
"""OpenLineage wants to know by a URI who has made an event."""
NAMESPACE = "OPENLINEAGE_NAMESPACE"
"""OpenLineage's own variable: whose jobs these are."""
_COLUMNS = text(
    "select column_name, data_type from information_schema.columns where table_schema = :schema and table_name = :name "
    "order by ordinal_position"
)


def is_named(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment says where lineage goes, by the variables of OpenLineage's client."""
    return any(
        variables.get(name) and (name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG") or "__TRANSPORT" in name)
        for name in variables
        if name.startswith("OPENLINEAGE")
    )


@attr.define
class Transaction(RunFacet):
    """What OpenLineage has no facet for: which transaction a run was, and of exactly which records."""

    pipeline: str
    txid: int
    revision: int
    epoch: int
    code: str
    dag_id: str
    run_id: str
    ranges: list[dict[str, str | int]]


Named = Callable[[str], Mapping[str, Dataset]]
"""{address: what it is called} of those destinations of a pipeline whose names are known."""


class Lineage:
    """Sends the events of a commit. `servers` are Kafka's bootstrap servers, the first of which names the topics."""

    def __init__(self, servers: str | None, named: Named):
        if not servers:
            raise SettingsError("OpenLineage names topics by their brokers; set RATCHET_KAFKA, or no OPENLINEAGE_URL")
        self._servers, self._named = servers, named
        self._client = OpenLineageClient()

    def send(self, ledger: Ledger, commit: Commit) -> bool:
        """Whether both events of a revision were taken: the start of its run, and its end with what it has done."""
        row = next(row for row in commit.whole.revisions if row.revision == commit.revision)
        try:
            for event in self.events(ledger, commit.whole, row):
                self._client.emit(event)
        except Exception as error:
            # Each transport has errors of its own.
            get_logger().warning(f"OpenLineage: {' '.join(str(error).split())}")
            return False
        return True

    def events(self, ledger: Ledger, of: Whole, row: Revision) -> tuple[RunEvent, RunEvent]:
        """The start and the end of a committed revision; both again have the same run id."""
        run_id = str(generate_static_uuid(row.opened_at, repr((of.pipeline, of.txid, row.revision)).encode()))
        about = Transaction(
            of.pipeline,
            of.txid,
            row.revision,
            row.epoch,
            row.code,
            row.dag_id,
            row.run_id,
            [
                {"topic": r.topic, "partition": r.partition, "from": r.from_offset, "until": r.until_offset}
                for r in of.ranges
            ],
        )
        run = Run(run_id, {"ratchet_transaction": cast(RunFacet, about)})
        kind = job_type_job.JobTypeJobFacet(processingType="BATCH", integration="RATCHET", jobType="TRANSACTION")
        job = Job(os.environ.get(NAMESPACE, "default"), of.pipeline, {"jobType": cast(JobFacet, kind)})
        done, inputs, outputs = row.committed_at or row.opened_at, self._inputs(of, row), self._outputs(ledger, of, row)
        return (
            RunEvent(
                eventTime=_at(row.opened_at),
                eventType=RunState.START,
                run=run,
                job=job,
                producer=PRODUCER,
                inputs=inputs,
                outputs=[OutputDataset(each.namespace, each.name) for each in outputs],
            ),
            RunEvent(
                eventTime=_at(done),
                eventType=RunState.COMPLETE,
                run=run,
                job=job,
                producer=PRODUCER,
                inputs=inputs,
                outputs=outputs,
            ),
        )

    def _inputs(self, of: Whole, row: Revision) -> list[InputDataset]:
        """The topics that the transaction has ranges of; how many records each has given is known of one alone."""
        topics = sorted({r.topic for r in of.ranges})
        read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=row.records or 0)
        facets = {"inputStatistics": cast(InputDatasetFacet, read)} if len(topics) == 1 else {}
        named = (Dataset.of_topic(self._servers, topic) for topic in topics)
        return [InputDataset(each.namespace, each.name, facets) for each in named]

    def _outputs(self, ledger: Ledger, of: Whole, row: Revision) -> list[OutputDataset]:
        """The tables, and the destinations that get the rows of these."""
        with ledger.begin() as conn:
            places = destinations_of(conn, of.pipeline)
        sent = [place.destination for place in places if place.is_attached and place.sink in row.rows]
        names = self._named(of.pipeline) if sent else {}
        made = {names[address]: None for address in sent if address in names}
        return [*_tables(ledger, row), *(OutputDataset(each.namespace, each.name) for each in made)]


def _tables(ledger: Ledger, row: Revision) -> list[OutputDataset]:
    """The tables that readers see, with their columns of today, and the rows that the transaction has in each."""
    made: list[OutputDataset] = []
    with ledger.begin() as conn:
        info = driver_of(conn).info
        for sink, rows in row.rows.items():
            schema, _, name = (f"{SCHEMA}.{sink}" if sink == DEAD_LETTERS else sink).rpartition(".")
            where = {"schema": schema or "public", "name": name}
            columns = schema_dataset.SchemaDatasetFacet(
                [
                    schema_dataset.SchemaDatasetFacetFields(column, kind)
                    for column, kind in conn.execute(_COLUMNS, where)
                ]
            )
            count = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
            named = Dataset.of_table(info.host, info.port, info.dbname, (where["schema"], name))
            made.append(
                OutputDataset(
                    named.namespace,
                    named.name,
                    {"outputStatistics": cast(OutputDatasetFacet, count)},
                    facets={"schema": cast(DatasetFacet, columns)},
                )
            )
    return made


def _at(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()
