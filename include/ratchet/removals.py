"""The commands that take rows away for good: of a key, of old transactions in the ledger, of a whole line."""

from __future__ import annotations

from typing import Annotated

import typer

from ratchet.command import DRY_RUN, JSON, NAME, REASON, ledger_of_environment, print_done, who
from ratchet.operate.reason import reason_given
from ratchet.progress import progress

YES = typer.Option("--yes", help="Do not ask whether it is meant.")


def erase(
    name: Annotated[str, NAME],
    sink: Annotated[str, typer.Argument(help="An Append of it.", show_default=False)],
    key: Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE…", help="Which rows.", show_default=False)],
    reason: Annotated[str, REASON],
    yes: Annotated[bool, YES] = False,
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Delete the committed rows of an Append in which columns have these values, as for a person who asks for it."""
    from ratchet.operate.erase import erase as run
    from ratchet.operate.erase import key_given, lines_of
    from ratchet.spec.loading import load_pipeline

    spec, why, of = load_pipeline(name), reason_given(reason), key_given(key)
    if not (yes or dry_run):
        typer.confirm(f"Delete the rows of {sink} with these values in {', '.join(of)}?", abort=True, err=True)
    with ledger_of_environment() as ledger, progress(f"{spec.name}: erasing") as told:
        done = run(ledger, spec, sink, of, why, who(), told.at, dry_run=dry_run)
    print_done(done, lines_of(done), as_json)


def drop(
    name: Annotated[str, NAME],
    reason: Annotated[str, REASON],
    yes: Annotated[bool, YES] = False,
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Take a line away, with its tables and its history, so that its name and theirs are free; needs no spec."""
    from ratchet.operate.drop import drop as run
    from ratchet.operate.drop import lines_of

    why = reason_given(reason)
    if not (yes or dry_run):
        typer.confirm(f"Drop all tables and the history of {name}?", abort=True, err=True)
    with ledger_of_environment() as ledger:
        done = run(ledger, name, why, who(), lambda line: typer.echo(line, err=True), dry_run=dry_run)
    print_done(done, lines_of(done), as_json)


def prune(
    name: Annotated[str, NAME],
    reason: Annotated[str, REASON],
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Take the rows of transactions out of the ledger that are older than keep_deltas; the sinks stay as they are."""
    from ratchet.operate.prune import lines_of
    from ratchet.operate.prune import prune as run
    from ratchet.spec.loading import load_pipeline

    spec = load_pipeline(name)
    with ledger_of_environment() as ledger, progress(f"{spec.name}: pruning") as told:
        done = run(ledger, spec, reason_given(reason), who(), told.at, dry_run=dry_run)
    print_done(done, lines_of(done), as_json)
