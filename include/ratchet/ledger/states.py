"""The states that a transaction passes through, and the moves between them that are legal."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a transaction stands."""

    OPEN = "OPEN"
    """Planned: its slices are being processed. Next: PREPARED by the last vote, or ABORTED."""
    PREPARED = "PREPARED"
    """Every slice of this epoch has voted. Next: COMMITTED when it is its turn, or ABORTED by a gate or a person."""
    COMMITTED = "COMMITTED"
    """Its effects are in every sink. Final; a revision may replace them."""
    ABORTED = "ABORTED"
    """This epoch's results count for nothing. Next: OPEN with epoch + 1, same ranges."""
    VOIDED = "VOIDED"
    """A person decided that it commits nothing; the head moves over it in its turn.

    Next: COMMITTED, together with a revision of it.
    """


UNFINISHED = (State.OPEN, State.PREPARED, State.ABORTED)
"""The states of a transaction that is neither committed nor voided: the head cannot pass it."""

LEGAL_MOVES: frozenset[tuple[State | None, State]] = frozenset(
    {
        (None, State.OPEN),
        (State.OPEN, State.PREPARED),
        (State.OPEN, State.ABORTED),
        (State.PREPARED, State.COMMITTED),
        (State.PREPARED, State.ABORTED),
        (State.ABORTED, State.OPEN),
        (State.OPEN, State.VOIDED),
        (State.PREPARED, State.VOIDED),
        (State.ABORTED, State.VOIDED),
        (State.VOIDED, State.COMMITTED),
    }
)
"""(from, to); None is a transaction that does not exist yet. The database holds the same table."""


def predecessors(to: State) -> list[State]:
    """The states from which `to` may be entered."""
    return sorted(a for a, b in LEGAL_MOVES if b is to and a is not None)
