"""commit: the task that waits for its transaction's turn without a worker slot, commits it, and tells other DAGs."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator

from ratchet.airflow import connections
from ratchet.airflow.outlets import alias_of, tell
from ratchet.airflow.run import run_of, working_on
from ratchet.errors import Fenced
from ratchet.logs import about, get_logger


class CommitOperator(BaseOperator):
    """Commit the run's transaction, and the prepared ones behind it; while it is not its turn, defer.

    What is committed updates an asset of each sink, with its transactions: also with those that it took along.
    """

    def __init__(self, *, pipeline: str, **kwargs: Any):
        super().__init__(outlets=[alias_of(pipeline)], **kwargs)
        self.pipeline = pipeline

    def execute(self, context: Any) -> None:
        self._commit(context, held=True)

    def resume(self, context: Any, event: dict[str, Any]) -> None:
        """Called when the trigger fired; `event["held"]` says whether the run's claim was still its own."""
        get_logger().info(event["why"], pipeline=self.pipeline)
        self._commit(context, held=event["held"])

    def _commit(self, context: Any, *, held: bool) -> None:
        from ratchet.airflow.trigger import TurnTrigger
        from ratchet.ledger.connection import Ledger
        from ratchet.operate.effects import effects_of
        from ratchet.protocol import claims
        from ratchet.protocol.commit import Committed, Waits, commit

        with working_on(self.pipeline) as spec:
            with Ledger(connections.ledger_url(spec.ledger)) as ledger:
                claim = claims.claim_of(ledger, run_of(context))
                with about(claim):
                    outcome = commit(ledger, spec, claim, connections.opener(spec))
                    get_logger().info(outcome.message)
                    if isinstance(outcome, Waits) and not held:
                        raise Fenced(
                            f"{spec.name}: claim {claim.number} of transaction {claim.txid} is not this run's any "
                            "more; the run that adopted it commits it, nothing is to be done here"
                        )
                    if isinstance(outcome, Committed):
                        # Which others a try before this one took along, nobody knows any more.
                        besides = spec.max_in_flight if context["ti"].try_number > 1 else 0
                        tell(context, spec, effects_of(ledger, claim, outcome.txids, besides))
            if isinstance(outcome, Waits):
                trigger = TurnTrigger(
                    connection=spec.ledger,
                    pipeline=claim.pipeline,
                    txid=claim.txid,
                    revision=claim.revision,
                    claim=claim.number,
                    epoch=claim.epoch,
                    lease_seconds=spec.lease_seconds,
                )
                self.defer(trigger=trigger, method_name="resume")
