"""Enduring a fault: it strikes while transactions are in flight, is healed, and all must be committed exactly once."""

from __future__ import annotations

from dataclasses import dataclass

from tests.until import until

from .fault import Fault, has_struck
from .shaken import Shaken, lasts


@dataclass(frozen=True)
class Recovery:
    """Seconds from the end of a fault until all was committed, and until nothing ran any more."""

    committed: float
    ended: float


def endure(line: Shaken, fault: Fault) -> Recovery:
    """AssertionError where anything is lost, doubled or left, or where the fault has struck nothing; NotNow."""
    line.in_the_midst(deferred="triggerer" in fault.kind)
    try:
        fault.strike()
        line.let_go()
        lasts(fault.seconds)
        # On a busy machine it takes a while until anybody comes by.
        until("the fault has struck somebody", lambda: has_struck(fault), 60)
    finally:
        fault.heal()
    return Recovery(*line.recovers())
