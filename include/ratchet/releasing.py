"""The command that releases dead letters."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer

from ratchet.command import (
    JSON,
    NAME,
    REASON,
    check_order,
    endpoints,
    ledger_of_environment,
    print_done,
    print_tried,
    variables,
    who,
)
from ratchet.operate.reason import reason_given
from ratchet.progress import progress
from ratchet.spec.pipeline import Pipeline


def release(
    name: Annotated[str, NAME],
    reason: Annotated[str | None, REASON] = None,
    first: Annotated[
        int | None, typer.Option("--from", help="The first transaction.", min=1, show_default="the first of all")
    ] = None,
    last: Annotated[int | None, typer.Option("--to", help="The last one.", min=1, show_default="the head")] = None,
    errors: Annotated[
        str, typer.Option("--error", help="Only those whose error contains this text.", show_default=False)
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Process them now, and say how many would fail again.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Process dead letters once more with today's code; those that it can read now join their transactions."""
    from ratchet.operate import release as releases
    from ratchet.spec.loading import load_pipeline

    if first is not None and last is not None:
        check_order(first, last)
    spec = load_pipeline(name)
    if dry_run:
        _try(spec, first, last, errors, as_json=as_json)
        return
    if reason is None:
        raise typer.BadParameter("say why; it is kept in the history", param_hint="--reason")
    with ledger_of_environment() as ledger:
        done = releases.ask(ledger, spec, first, last, errors, reason_given(reason), who())
    print_done(done, releases.lines_of(done), as_json)


def _try(spec: Pipeline, first: int | None, last: int | None, errors: str, *, as_json: bool) -> None:
    from ratchet.operate.release import Trial, left_out_lines, trial_lines, trials
    from ratchet.spark.engine import session_for
    from ratchet.spark.trial import failing

    url = variables().get("RATCHET_SPARK")
    found: list[Trial] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(ledger_of_environment())
        told = stack.enter_context(progress(f"{spec.name}: processing dead letters"))
        session = stack.enter_context(session_for(spec, url)) if url else None
        again = partial(failing, spec, ledger_url=ledger.url, endpoints=endpoints(spec), spark=session)
        for of in trials(ledger, spec, again, first, last, errors):
            lines = trial_lines(of) if isinstance(of, Trial) else left_out_lines(spec.name, [of])
            found += [of] if isinstance(of, Trial) else []
            told.step()
            typer.echo("\n".join(lines), err=as_json)
    print_tried(found, any(of.fails for of in found), as_json)
