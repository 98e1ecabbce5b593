"""What a fault is: it strikes, stays in effect for a while, and is healed."""

from __future__ import annotations

from typing import Protocol


class NotNow(Exception):
    """There is nothing at this moment that the fault could strike."""


class Fault(Protocol):
    """One kind of fault, which can strike again and again.

    After a strike that has raised NotNow nothing is different from before.
    """

    kind: str
    """As a person reads it in a report."""
    seconds: float
    """How long it is to be in effect before it is healed, for the fault to be worth its name; 0 where a server that
    is ended is the whole of it."""

    def strike(self) -> None:
        """The fault begins; returns when it is in effect. Raises NotNow."""

    def heal(self) -> None:
        """The environment is whole again, and the servers answer; harmless at any time, and when repeated."""


def has_struck(fault: Fault) -> bool:
    """Whether the last strike has met anybody: a fault that may pass unnoticed counts those in `met`."""
    return getattr(fault, "met", 1) > 0
