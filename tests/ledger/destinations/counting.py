"""What counting the rows of destinations says of them."""

from __future__ import annotations

from ratchet.ledger.connection import Ledger
from ratchet.operate.tally import tally
from ratchet.protocol.follow import Open
from ratchet.spec.pipeline import Pipeline


def counted(ledger: Ledger, spec: Pipeline, opens: Open, since: int = 1) -> dict[str, tuple[int, list[str]]]:
    """{what was counted: (rows, faults)}, a destination each."""
    return {check.what: (check.checked, list(check.faults)) for check in tally(ledger, spec, opens, since)}


def counts_agree(ledger: Ledger, spec: Pipeline, opens: Open) -> None:
    """See that no destination has another number of rows than were committed."""
    found = counted(ledger, spec, opens)
    assert [fault for _, faults in found.values() for fault in faults] == []
