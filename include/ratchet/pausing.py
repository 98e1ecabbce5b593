"""The commands that stop a line behind a transaction, and let it go on."""

from __future__ import annotations

from typing import Annotated

from ratchet.command import DRY_RUN, JSON, NAME, REASON, TXID, ledger_of_environment, say, who
from ratchet.operate.reason import reason_given


def pause_at(
    name: Annotated[str, NAME],
    reason: Annotated[str, REASON],
    txid: Annotated[int | None, TXID] = None,
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Stop a line behind a transaction, or behind the last one that is begun: all up to it commit, and none later."""
    from ratchet.operate import pauses
    from ratchet.spec.loading import load_pipeline

    spec, why = load_pipeline(name), reason_given(reason)
    with ledger_of_environment() as ledger:
        say(pauses.pause_at(ledger, spec, txid, why, who(), dry_run=dry_run), as_json)


def resume(
    name: Annotated[str, NAME],
    reason: Annotated[str, REASON],
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Let a paused line go on."""
    from ratchet.operate import pauses
    from ratchet.spec.loading import load_pipeline

    spec, why = load_pipeline(name), reason_given(reason)
    with ledger_of_environment() as ledger:
        say(pauses.resume(ledger, spec, why, who(), dry_run=dry_run), as_json)
