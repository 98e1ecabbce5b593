"""The command that holds the sinks against the ledger: `ratchet verify`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.command import FAULTS, JSON, NAME, ledger_of_environment, opener, print_json, servers, spark_url
from ratchet.progress import progress

if TYPE_CHECKING:
    from ratchet.ledger.connection import Ledger
    from ratchet.operate.verify import Check
    from ratchet.spec.pipeline import Pipeline


def verify(
    name: Annotated[str, NAME],
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Also read Kafka and transform once more; needs RATCHET_SPARK.")
    ] = False,
    destinations: Annotated[
        bool, typer.Option("--destinations", help="Also count the rows of destinations; needs RATCHET_CONNECTIONS.")
    ] = False,
    since: Annotated[
        int, typer.Option(help="The first transaction to look at; those before it are taken as verified.", min=1)
    ] = 1,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Hold the sinks against the ledger: history, ranges, txids, rows, checksums; exit status 3 if a fault is found."""
    from ratchet.operate.tally import tally
    from ratchet.operate.verify import verify as look
    from ratchet.spec.loading import load_pipeline

    spec = load_pipeline(name)
    with ledger_of_environment() as ledger, progress(f"{spec.name}: verifying") as told:
        checks = look(ledger, spec, since, told.at)
        if destinations:
            checks += tally(ledger, spec, opener(spec), since, told.at)
        if recompute:
            checks.append(_recompute(ledger, spec, since, told.say))
    if as_json:
        print_json([asdict(check) for check in checks])
    for check in checks if not as_json else ():
        typer.echo(f"{'ok   ' if not check.faults else 'FAULT'} {check.what}: {check.checked:,} checked")
        for fault in check.faults:
            typer.echo(f"      {fault}")
    if any(check.faults for check in checks):
        raise typer.Exit(FAULTS)


def _recompute(ledger: Ledger, spec: Pipeline, since: int, say: Callable[[str], None]) -> Check:
    from ratchet.operate.verify import recompute as look
    from ratchet.spark.engine import session_for
    from ratchet.spark.slice import recompute

    asked = servers(spec)
    with session_for(spec, spark_url()) as session:
        return look(ledger, spec, lambda works: recompute(session, spec, works, asked), since, say)
