"""The `ratchet` command."""

from __future__ import annotations

import os
import signal
import threading
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
    from ratchet.pipeline import load_pipelines

    if not ledger_url:
        raise SettingsError("no ledger is named; set RATCHET_LEDGER_URL=postgresql://USER@HOST/DATABASE")
    for line in run(ledger_url, load_pipelines().values()):
        typer.echo(line)


@app.command()
def validate() -> None:
    """Check every spec and that its transform can be imported, without any server."""
    from ratchet.pipeline import load_pipelines

    for spec in load_pipelines().values():
        spec.load_transform()
        typer.echo(f"{spec.name}: {spec.source.name} → {spec.transform} → {', '.join(s.name for s in spec.sinks)}")


@stack_app.command("up")
def stack_up() -> None:
    """Start the servers and stay until Ctrl-C or `ratchet stack down`."""
    from ratchet.stack import Stack

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    console = Console()
    with console.status("starting the servers"):
        stack = Stack(_demo_home()).__enter__()
    try:
        console.print(f"Airflow: {stack.airflow_url} (no password)")
        console.print(f"export RATCHET_LEDGER_URL={stack.ledger_url}", soft_wrap=True, highlight=False)
        ended.wait()
    finally:
        stack.down()


@stack_app.command("down")
def stack_down() -> None:
    """End the servers that `make demo` or `ratchet stack up` has started."""
    from ratchet.stack import down

    typer.echo(down(_demo_home()))


def main(run: Callable[[], None] = app) -> None:
    """Run the command; an error of ours is one line, not a traceback."""
    try:
        run()
    except RatchetError as error:
        Console(stderr=True).print(f"[red]error:[/] {error}", soft_wrap=True, highlight=False)
        raise SystemExit(1) from (error if os.environ.get("RATCHET_DEBUG") else None)
