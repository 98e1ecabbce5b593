"""The command that serves measures and sends traces until it is stopped."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.command import connection_of, kafka_properties, ledger_url, variables
from ratchet.errors import RatchetError, SettingsError
from ratchet.logs import get_logger

if TYPE_CHECKING:
    from ratchet.destinations.dataset import Dataset

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
    with Eye(ledger_url(), kafka) as eye, Exporter(eye, every, host, port, Names().of) as running:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: running.stop())
        typer.echo(f"metrics at http://{host}:{running.port}/metrics", err=True)
        running.run()


class Names:
    """What lineage calls the destinations of pipelines, by the specs that are here when they are asked for first."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Dataset]] = {}
        self._said: set[str] = set()

    def of(self, pipeline: str) -> dict[str, Dataset]:
        """{address: its name}; who cannot be named now is asked again, and that is said once."""
        from ratchet.destinations.port import Destination
        from ratchet.spec.loading import load_pipeline

        known = self._known.setdefault(pipeline, {})
        try:
            spec = load_pipeline(pipeline)
        except (ImportError, RatchetError) as error:
            self._tell(pipeline, error)
            return known
        places = (to for sink in spec.sinks for to in sink.destinations if isinstance(to, Destination))
        for to in (to for to in places if to.address not in known):
            try:
                named = to.dataset(connection_of(spec, to))
            except Exception as error:
                # A catalog's library has errors of its own.
                self._tell(f"{pipeline}: {to.address}", error)
                continue
            if named is not None:
                known[to.address] = named
        return known

    def _tell(self, what: str, error: Exception) -> None:
        if what not in self._said:
            self._said.add(what)
            get_logger().warning(f"OpenLineage: {what} is not named: {type(error).__name__}")


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise SettingsError(f"--listen {listen} is no address; give it as 127.0.0.1:{PORT}")
    return host.strip("[]"), int(port)
