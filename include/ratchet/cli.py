"""The `ratchet` command."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ratchet.errors import RatchetError, SettingsError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Exactly-once transactions over Kafka and Spark.")
stack_app = typer.Typer(no_args_is_help=True, help="The embedded servers of this checkout.")
app.add_typer(stack_app, name="stack")

LEDGER = typer.Option(envvar="RATCHET_LEDGER_URL", help="The ledger's database as a libpq URL.", show_default=False)


def _demo_home() -> Path:
    from ratchet.stack import CHECKOUT

    return CHECKOUT / ".state" / "demo"


@app.command()
def migrate(ledger_url: Annotated[str, LEDGER] = "") -> None:
    """Create or upgrade the ledger, and create the tables of every pipeline's sinks."""
    from ratchet.migrate import migrate as run
    from ratchet.specs import load_pipelines

    if not ledger_url:
        raise SettingsError("no ledger is named; set RATCHET_LEDGER_URL=postgresql://USER@HOST/DATABASE")
    for line in run(ledger_url, load_pipelines().values()):
        typer.echo(line)


@app.command()
def validate() -> None:
    """Check every spec and that its transform can be imported, without any server."""
    from ratchet.specs import load_pipelines

    for spec in load_pipelines().values():
        spec.load_transform()
        typer.echo(f"{spec.name}: {spec.source.name} → {spec.transform} → {', '.join(s.name for s in spec.sinks)}")


@stack_app.command("up")
def stack_up() -> None:
    """Start the servers and stay until Ctrl-C or `ratchet stack down`."""
    from ratchet.stack import Stack

    # `ratchet stack down` sends SIGTERM: end as with Ctrl-C, also while the servers are starting.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    console.print("starting PostgreSQL, Kafka, Spark Connect and Airflow …")
    try:
        with Stack(_demo_home()) as stack:
            console.print(f"Airflow: {stack.airflow_url} (no password)", soft_wrap=True, highlight=False)
            console.print(f"export RATCHET_LEDGER_URL={stack.ledger_url}", soft_wrap=True, highlight=False)
            console.print(f"export RATCHET_KAFKA='{json.dumps(stack.kafka)}'", soft_wrap=True, highlight=False)
            console.print(f"export RATCHET_SPARK={stack.spark}", soft_wrap=True, highlight=False)
            console.print(f"export RATCHET_AIRFLOW_URL={stack.airflow_url}", soft_wrap=True, highlight=False)
            signal.pause()
    except KeyboardInterrupt:
        console.print("ended")


@stack_app.command("down")
def stack_down() -> None:
    """End the servers that `make demo` or `ratchet stack up` has started."""
    from ratchet.stack import down

    typer.echo(down(_demo_home()))


@stack_app.command("status")
def stack_status() -> None:
    """Say whether the servers run, and what became of them; exit status 1 if they do not run."""
    from ratchet.stack import running

    process = running(_demo_home())
    typer.echo(f"the servers run (process {process.pid})" if process else "nothing runs")
    said = _demo_home() / "supervisor.log"
    if said.exists():
        typer.echo("\n".join(said.read_text().splitlines()[-10:]))
    if process is None:
        raise typer.Exit(1)


@stack_app.command("clean")
def stack_clean() -> None:
    """End the servers and forget all that they have stored."""
    from ratchet.stack import down

    typer.echo(down(_demo_home()))
    shutil.rmtree(_demo_home(), ignore_errors=True)
    typer.echo("forgotten")


def main(run: Callable[[], None] = app) -> None:
    """Run the command; an error of ours is one line, not a traceback."""
    try:
        run()
    except RatchetError as error:
        Console(stderr=True).print(f"[red]error:[/] {error}", soft_wrap=True, highlight=False)
        raise SystemExit(1) from (error if os.environ.get("RATCHET_DEBUG") else None)
