"""process: the mapped task that works on one slice, on whichever engine the Airflow connection names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from ratchet.airflow import connections
from ratchet.airflow.connections import SparkTarget
from ratchet.airflow.run import run_of, working_on
from ratchet.logs import about, get_logger
from ratchet.spec.pipeline import Pipeline

if TYPE_CHECKING:
    from ratchet.airflow.attend import Job
    from ratchet.ledger.connection import Ledger
    from ratchet.ledger.work import SliceWork
    from ratchet.spark.servers import Servers

SLICE_NAME = "{{ task.item.get('of', '?') }}: {{ task.item['name'] }}"
"""What the grid shows for each mapped task, with its transaction: `12: flights-0 [120,240)`."""


class ProcessOperator(BaseOperator):
    """Take a try at a slice, have Spark do it, and leave its vote in the ledger.

    `item` is one element of begin's list. The connection is read when the task runs: type `spark_connect` works
    through a Connect server, every other type through spark-submit. A missing connection, or one that cannot
    carry the job, fails before a try is taken.
    """

    def __init__(self, *, pipeline: str, item: dict[str, Any], **kwargs: Any):
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.item = item
        self._job: Job | None = None

    def execute(self, context: Any) -> None:
        from ratchet.airflow.attend import attend
        from ratchet.ledger.connection import Ledger
        from ratchet.protocol import claims, votes
        from ratchet.protocol.votes import NothingToDo

        log = get_logger()
        with working_on(self.pipeline) as spec:
            target = connections.spark_target(spec.spark)
            servers = connections.servers(spec)
            with Ledger(connections.ledger_url(spec.ledger)) as ledger:
                claim = claims.claim_of(ledger, run_of(context))
                prepare = _engine(target)
                with about(claim):
                    work = votes.take_try(ledger, spec, claim, self.item["slice"])
                    if isinstance(work, NothingToDo):
                        log.info(work.message)
                        return
                    with about(work.token):
                        log.info(
                            f"{claim}, slice {self.item['name']}: try {work.token.try_number}, "
                            f"{sum(map(len, work.ranges)):,} offsets, on {target.connection}"
                        )
                        self._job = prepare(target, spec, work, ledger, servers, context)
                        log.info(attend(self._job, ledger, claim, spec.lease_seconds))

    def on_kill(self) -> None:
        """Stop the job: the Connect operation by its tag, a submitted one as the provider does it."""
        if self._job is not None:
            self._job.stop()


def _engine(target: SparkTarget):
    """How a job for this target is made; SettingsError, before anything starts, if the target is not fit."""
    if target.connect:
        return _connect
    from ratchet.airflow.submit import check

    check(target)
    return _submit


def _connect(
    target: SparkTarget, spec: Pipeline, work: SliceWork, ledger: Ledger, servers: Servers, context: Any
) -> Job:
    from ratchet.airflow.connect import ConnectJob

    return ConnectJob(target.url, spec, work, ledger, servers)


def _submit(
    target: SparkTarget, spec: Pipeline, work: SliceWork, ledger: Ledger, servers: Servers, context: Any
) -> Job:
    from ratchet.airflow.submit import SubmitJob

    return SubmitJob(target, work.token, ledger, servers, context)
