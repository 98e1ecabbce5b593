"""The command that serves measures and sends traces until it is stopped."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from ratchet.command import kafka_properties, ledger_url, variables
from ratchet.errors import SettingsError

PORT = 9469
"""No other exporter of Prometheus' list has it."""


def exporter(
    listen: Annotated[
        str, typer.Option(help="Where Prometheus finds it; 0 as port for a free one.", metavar="HOST:PORT")
    ] = f"127.0.0.1:{PORT}",
    every: Annotated[float, typer.Option(help="Seconds between two looks at ledger and Kafka.", min=1)] = 15.0,
) -> None:
    """Serve metrics to Prometheus; send them, traces and lineage where the environment says; until it is stopped.

    OTLP is used where OTEL_EXPORTER_OTLP_ENDPOINT names a collector, OpenLineage where OPENLINEAGE_URL does; without
    RATCHET_KAFKA there is no lag and no lineage.
    """
    from ratchet.telemetry.exporter import Exporter, Eye

    host, port = _address(listen)
    kafka = kafka_properties() if variables().get("RATCHET_KAFKA") else None
    with Eye(ledger_url(), kafka) as eye, Exporter(eye, every, host, port) as running:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: running.stop())
        typer.echo(f"metrics at http://{host}:{running.port}/metrics", err=True)
        running.run()


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise SettingsError(f"--listen {listen} is no address; give it as 127.0.0.1:{PORT}")
    return host.strip("[]"), int(port)
