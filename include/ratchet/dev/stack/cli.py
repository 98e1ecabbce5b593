"""The `ratchet stack` command: the embedded servers of this checkout."""

from __future__ import annotations

import shlex
import shutil
import signal

import typer
from rich.console import Console

stack_app = typer.Typer(no_args_is_help=True, help="The embedded servers of this checkout.")


@stack_app.command("up")
def stack_up() -> None:
    """Start the servers and stay until Ctrl-C or `ratchet stack down`."""
    from ratchet.dev.stack import CORES, Stack
    from ratchet.dev.stack.addresses import DEMO

    # `ratchet stack down` sends SIGTERM: end as with Ctrl-C, also while the servers are starting.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console()
    console.print("starting PostgreSQL, Kafka, Spark Connect and Airflow …")
    try:
        with Stack(DEMO, slices_at_once=CORES) as stack:
            console.print(f"Airflow: {stack.airflow_url} (no password)", soft_wrap=True, highlight=False)
            console.print("the ratchet command of this checkout finds these servers by itself")
            console.print("for other tools: ratchet stack env")
            signal.pause()
    except KeyboardInterrupt:
        console.print("ended")


@stack_app.command("down")
def stack_down() -> None:
    """End the servers that `make demo` or `ratchet stack up` has started."""
    from ratchet.dev.stack import down
    from ratchet.dev.stack.addresses import DEMO

    typer.echo(down(DEMO))


@stack_app.command("env")
def stack_env() -> None:
    """Print the addresses of the servers as a shell sets them, for other tools; one of them has a password."""
    from ratchet.dev.stack.addresses import DEMO, published
    from ratchet.errors import StackError

    found = published(DEMO)
    if found is None:
        raise StackError("the servers of this checkout do not run; start them with `ratchet stack up`")
    for name, value in found.variables.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


@stack_app.command("status")
def stack_status() -> None:
    """Say whether the servers run, and what became of them; exit status 1 if they do not run."""
    from ratchet.dev.stack.addresses import DEMO, running

    process = running(DEMO)
    typer.echo(f"the servers run (process {process.pid})" if process else "nothing runs")
    said = DEMO / "supervisor.log"
    if said.exists():
        typer.echo("\n".join(said.read_text().splitlines()[-10:]))
    if process is None:
        raise typer.Exit(1)


@stack_app.command("clean")
def stack_clean() -> None:
    """End the servers and forget all that they have stored."""
    from ratchet.dev.stack import down
    from ratchet.dev.stack.addresses import DEMO

    typer.echo(down(DEMO))
    shutil.rmtree(DEMO, ignore_errors=True)
    typer.echo("forgotten")
