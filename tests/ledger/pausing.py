"""A line that tests pause, and let go on."""

from __future__ import annotations

from ratchet import Arrivals
from ratchet.ledger.work import Run
from ratchet.operate.pauses import pause_at, resume
from ratchet.protocol.another import wants_another_run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skipped

from .staging import (
    PLAIN,
    SPEC,
    always_active,
)

INTERVAL = PLAIN.model_copy(update={"plan": "interval"})
BY_RECORDS = PLAIN.model_copy(update={"runs": Arrivals()})


def pause(ledger, txid: int | None = None, spec=SPEC, **how):
    return pause_at(ledger, spec, txid, "the warehouse moves", "me", **how)


def go_on(ledger, spec=SPEC, **how):
    return resume(ledger, spec, "it has moved", "somebody", **how)


def skipped(ledger, log, run: str, spec=SPEC, **how) -> Skipped:
    found = begin(ledger, spec, Run("dag", run), log.offsets, always_active, **how)
    assert isinstance(found, Skipped), found
    return found


def wanted(ledger, log, spec=SPEC, is_active=always_active):
    return wants_another_run(ledger, spec, log.offsets, is_active)
