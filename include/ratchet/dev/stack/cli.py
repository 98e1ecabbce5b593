"""The `ratchet stack` command: the embedded servers of this checkout."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import typer
from rich.console import Console

stack_app = typer.Typer(no_args_is_help=True, help="The embedded servers of this checkout.")


def _demo_home() -> Path:
    from ratchet.dev.stack import CHECKOUT

    return CHECKOUT / ".state" / "demo"


@stack_app.command("up")
def stack_up() -> None:
    """Start the servers and stay until Ctrl-C or `ratchet stack down`."""
    from ratchet.dev.stack import CORES, Stack

    # `ratchet stack down` sends SIGTERM: end as with Ctrl-C, also while the servers are starting.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    console.print("starting PostgreSQL, Kafka, Spark Connect and Airflow …")
    try:
        with Stack(_demo_home(), slices_at_once=CORES) as stack:
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
    from ratchet.dev.stack import down

    typer.echo(down(_demo_home()))


@stack_app.command("status")
def stack_status() -> None:
    """Say whether the servers run, and what became of them; exit status 1 if they do not run."""
    from ratchet.dev.stack import running

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
    from ratchet.dev.stack import down

    typer.echo(down(_demo_home()))
    shutil.rmtree(_demo_home(), ignore_errors=True)
    typer.echo("forgotten")
