"""The commands about destinations: a line goes on without one, and one comes back."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.command import DRY_RUN, JSON, NAME, REASON, ledger_of_environment, opener, print_done, who
from ratchet.operate.reason import reason_given
from ratchet.progress import progress

DESTINATION = typer.Argument(help="Its address, as `ratchet status` shows it.", show_default=False)


def detach(
    name: Annotated[str, NAME],
    destination: Annotated[str, DESTINATION],
    reason: Annotated[str, REASON],
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Let a line go on without a destination, which gets nothing more until it is attached."""
    from ratchet.operate import destinations

    why = reason_given(reason)
    with ledger_of_environment() as ledger:
        done = destinations.detach(ledger, name, destination, why, who(), dry_run=dry_run)
    print_done(done, destinations.lines_of(done), as_json)


def attach(
    name: Annotated[str, NAME],
    destination: Annotated[str, DESTINATION],
    reason: Annotated[str, REASON],
    anew: Annotated[bool, typer.Option("--anew", help="Replace its rows by all that the ledger shows.")] = False,
    from_here: Annotated[
        bool, typer.Option("--from-here", help="Leave what it has, and send what is committed from now on.")
    ] = False,
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Bring a destination back: it gets the commits that it lacks, or is made anew, or begins here."""
    from ratchet.operate import destinations
    from ratchet.spec.loading import load_pipeline

    if anew and from_here:
        raise typer.BadParameter("either --anew or --from-here")
    how = destinations.How.ANEW if anew else destinations.How.FROM_HERE if from_here else destinations.How.ON
    spec, why = load_pipeline(name), reason_given(reason)
    with ledger_of_environment() as ledger, progress(f"{name}: {destination}") as told:
        done = destinations.attach(ledger, spec, destination, how, why, who(), opener(spec), told.say, dry_run=dry_run)
    print_done(done, destinations.lines_of(done), as_json)
