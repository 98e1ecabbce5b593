"""Maintenance as its DAG does it for one line, without Kafka and Airflow: first it asks whether there is work."""

from __future__ import annotations

from ratchet.ledger.connection import Ledger
from ratchet.operate.attention import been_here, in_need
from ratchet.operate.upkeep import clean, upkeep
from ratchet.protocol.claims import IsActive
from ratchet.spec.pipeline import Pipeline
from tests.proof.simulate.sending import opener


def maintain(ledger: Ledger, spec: Pipeline, is_active: IsActive) -> list[str]:
    """What was done, in lines."""
    with ledger.begin() as conn:
        been_here(conn, [spec.name])
        is_due = spec.name in in_need(conn, [spec])
    if not is_due:
        return []
    return [*upkeep(ledger, spec, is_active, opener(ledger.url)), *clean(ledger, spec)]
