"""The process that looks at all lines every few seconds: measures, traces and lineage, each for who asks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry, start_http_server

from ratchet.ledger.connection import Ledger
from ratchet.logs import get_logger
from ratchet.operate.snapshot.lag import Lag, lags
from ratchet.operate.snapshot.status import known, statuses
from ratchet.source.topics import Topics
from ratchet.telemetry import lineage
from ratchet.telemetry.commits import Commit
from ratchet.telemetry.following import PASSES, Following
from ratchet.telemetry.measures import MEASURES, READ, SERVER, UP, Point, points
from ratchet.telemetry.traces import spans


@dataclass(frozen=True)
class Reading:
    """What one look has found; `up` says of each server whether it has answered."""

    points: tuple[Point, ...]
    up: Mapping[str, bool]


class Eye:
    """Looks at a ledger, and at Kafka where its properties are given; use it as a context manager."""

    def __init__(self, ledger_url: str, kafka: dict[str, str] | None):
        self._url, self._kafka = ledger_url, kafka
        self._ledger: Ledger | None = None
        self._topics: Topics | None = None
        self._open = ExitStack()

    def __enter__(self) -> Eye:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def brokers(self) -> str | None:
        """The bootstrap servers, where there are any."""
        return (self._kafka or {}).get("bootstrap.servers")

    @property
    def ledger(self) -> Ledger:
        """The ledger, whose connection is made where there is none."""
        if self._ledger is None:
            self._ledger = self._open.enter_context(Ledger(self._url, waits=False))
        return self._ledger

    def look(self) -> Reading:
        """Every value of every line. What does not answer is said by `ratchet.up`, and has no other values."""
        began = time.monotonic()
        up = {"ledger": False, **({"kafka": False} if self._kafka is not None else {})}
        found: list[Point] = []
        try:
            with self.ledger.snapshot() as conn:
                standing = statuses(conn, known(conn))
            up["ledger"] = True
            found += points(standing.values(), ())
            if self._kafka is not None:
                found += points((), self._lags([t for s in standing.values() for t in s.topics], list(standing)))
                up["kafka"] = True
        except PASSES as error:
            self._forget(error)
        found += [Point(UP.name, {SERVER: server}, int(answers)) for server, answers in up.items()]
        return Reading((*found, Point(READ.name, {}, time.monotonic() - began)), up)

    def _lags(self, topics: list[str], names: list[str]) -> Iterable[Lag]:
        if self._topics is None:
            self._topics = self._open.enter_context(Topics(self._kafka or {}))
        # How far topics reach is asked while no snapshot is held; the times of a few records are, within it.
        ends = self._topics.ends(set(topics))
        with self.ledger.snapshot() as conn:
            return lags(conn, names, ends, self._topics.times).values()

    def _forget(self, error: Exception) -> None:
        """Connect anew the next time: whatever was wrong with a connection is over then."""
        get_logger().warning(f"could not look, tries again: {' '.join(str(error).split())}")
        self._open.close()
        self._ledger = self._topics = None


class Exporter:
    """Looks every so many seconds until it is stopped; use it as a context manager.

    Prometheus is served at `host`:`port`, 0 for a free one, where a port is given; a scrape gives what the last look
    has found, so that scrapes cost the ledger nothing. Measures and traces go by OTLP where the environment names where
    to (`OTEL_EXPORTER_OTLP_ENDPOINT`, or those of metrics and traces alone), lineage where OpenLineage's own variables
    do (`OPENLINEAGE_URL` and others), with the destinations that are `named`.
    """

    def __init__(self, eye: Eye, every: float, host: str, port: int | None, named: lineage.Named = lambda pipeline: {}):
        self._eye, self._every = eye, every
        self._reading = eye.look()
        self._stopped = threading.Event()
        self.began = threading.Event()
        """Set once it has looked and sent for the first time: what is committed from then on is told."""
        resource = Resource.create({"service.name": "ratchet"})
        readers: list[MetricReader] = []
        self.port: int | None = None
        self._server: Any = None
        if port is not None:
            registry = CollectorRegistry()
            readers.append(PrometheusMetricReader(True, scope_info_enabled=False, registry=registry))
            self._server, _ = start_http_server(port, host, registry)
            self.port = self._server.server_port
        if _is_named("METRICS"):
            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(), every * 1000))
        self._provider = MeterProvider(readers, resource)
        meter = self._provider.get_meter("ratchet")
        for m in MEASURES.values():
            meter.create_observable_gauge(m.name, [self._observe(m.name)], m.unit, m.meaning)
        self._following: list[Following] = []
        if _is_named("TRACES"):
            self._following.append(Following("trace", _sending(OTLPSpanExporter(), resource)))
        if lineage.is_named():
            self._following.append(Following("lineage", lineage.Lineage(eye.brokers, named).send))

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._provider.shutdown()
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def stop(self) -> None:
        """End `run` after the look that it is at."""
        self._stopped.set()

    def run(self) -> None:
        """Look and send, until `stop`."""
        while not self._stopped.is_set():
            self._reading = self._eye.look()
            for each in self._following if self._reading.up["ledger"] else ():
                each.go_on(self._eye.ledger)
            self.began.set()
            self._stopped.wait(self._every)

    def _observe(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(p.value, p.labels) for p in self._reading.points if p.measure == name]

        return observe


def _sending(exporter: SpanExporter, resource: Resource) -> Callable[[Ledger, Commit], bool]:
    """How the trace of a commit is sent."""

    def send(_: Ledger, commit: Commit) -> bool:
        of = list(spans(commit.whole, commit.revision, resource))
        return exporter.export(of) is SpanExportResult.SUCCESS

    return send


def _is_named(what: str) -> bool:
    """Whether the environment says where metrics or traces go."""
    return any(os.environ.get(f"OTEL_EXPORTER_OTLP_{part}ENDPOINT") for part in ("", f"{what}_"))
