"""settle: the teardown that ends the run's claim, so that what it left is adopted soon, and starts another run."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from ratchet.airflow import connections, halted
from ratchet.airflow.another import start_another
from ratchet.airflow.run import run_of, working_on
from ratchet.ledger.states import State
from ratchet.logs import about, get_logger

if TYPE_CHECKING:
    from datetime import datetime

    from ratchet.ledger.rows import Transaction
    from ratchet.source.interval import IntervalEnd
    from ratchet.source.offsets import KnownLogs, TopicOffsets
    from ratchet.spec.pipeline import Pipeline


class SettleOperator(BaseOperator):
    """End this run's claim and record how the run ended; after a commit, start another run if work is left for one. It
    only makes recovery quicker: leases and the maintenance do the same.

    It fails whenever the run ends without its commit: Airflow takes a run's state from its last task, and counts
    skipped tasks as good, as those of a run that a person marked failed.
    """

    def __init__(self, *, pipeline: str, **kwargs: Any):
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def execute(self, context: Any) -> None:
        from ratchet.ledger.connection import Ledger
        from ratchet.ledger.transactions import read_transaction
        from ratchet.protocol import claims
        from ratchet.protocol.commit import give_up_half
        from ratchet.protocol.failures import last_error

        run = run_of(context)
        states = context["ti"].get_task_states(dag_id=run.dag_id, run_ids=[run.run_id]).get(run.run_id, {})
        with working_on(self.pipeline) as spec:
            with Ledger(connections.ledger_url(spec.ledger)) as ledger:
                claim = claims.claim_of(ledger, run)
                with ledger.begin() as conn:
                    row = read_transaction(conn, claim.pipeline, claim.txid, claim.revision, lock=True)
                    # A commit that is green already was not cleared with the rest.
                    halved = give_up_half(conn, row, claim) if states.get("commit") == "success" else None
                    error = last_error(conn, row) if row.claim == claim.number else None
                reason = str(halved) if halved else _reason(states, row, error)
                with about(claim):
                    said = str(claims.settle(ledger, spec, run, succeeded=reason is None, reason=reason))
                    # What a halt says has its reason.
                    said = said if reason is None or reason in said else f"{said}; {reason}"
                    get_logger().info(said)
                    halted.tell(ledger, spec, run.run_id)
                    if reason is None:
                        start_another(context, ledger, spec, partial(_offsets, spec), claim.txid)
            if reason is not None:
                how = "after its commit" if row.state == State.COMMITTED else "without its commit"
                raise AirflowFailException(f"the run ended {how}; {said}")


def _offsets(
    spec: Pipeline, before: IntervalEnd | None, known: KnownLogs | None, since: datetime | None = None
) -> TopicOffsets:
    """What Kafka says of the topics, over a connection that is opened for it: mostly it is not asked."""
    from ratchet.source.kafka import Kafka

    with Kafka(connections.kafka_properties(spec.kafka)) as brokers:
        return brokers.offsets(spec.source, before, known, since)


def _reason(states: dict[str, Any], row: Transaction, error: str | None) -> str | None:
    """Why the run ends without its commit, with the ledger's reason, or a try's error; None if it does not.

    The ledger has the last word: a person can mark a task as successful that has committed nothing.
    """
    if row.state in (State.COMMITTED, State.VOIDED) and states.get("commit") == "success":
        return None
    failed = sorted(re.sub(r"_(\d+)$", r"[\1]", task) for task, state in states.items() if state == "failed")
    said = f"failed: {', '.join(failed)}" if failed else f"commit ended as {states.get('commit')}"
    why = row.reason if row.state == State.ABORTED else error
    if row.state == State.COMMITTED:
        why = "it is committed, and nothing has to be cleared: what a destination lacks the maintenance sends"
    return f"{said}: {why}" if why else said
