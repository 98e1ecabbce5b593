"""Enduring a fault: it strikes while transactions are in flight, is healed, and all must be committed exactly once."""

from __future__ import annotations

from dataclasses import dataclass

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
    finally:
        fault.heal()
    assert has_struck(fault), "the fault has struck nothing"
    return Recovery(*line.recovers())
