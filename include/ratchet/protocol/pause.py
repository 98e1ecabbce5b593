"""A pause as a line of text: behind which transaction a person has stopped a line, and how it goes on."""

from __future__ import annotations

from ratchet.ledger.rows import Pause
from ratchet.ledger.work import name_of, utc


def behind_of(pause: Pause) -> str:
    """Where it stops: "behind transaction 5"."""
    return f"behind {name_of(pause.txid)}" if pause.txid else "before its first transaction"


def why_paused(pipeline: str, pause: Pause) -> str:
    """Where, by whom, since when, why, and the way out, in a line."""
    return (
        f"{pipeline} is paused {behind_of(pause)} by {pause.who} since {utc(pause.at)}: {pause.reason}; "
        f"`ratchet resume {pipeline} --reason …` lets it go on"
    )
