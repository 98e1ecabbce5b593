"""The sinks of a pipeline: those that its spec declares, and the dead letters."""

from __future__ import annotations

from typing import cast

from ratchet.sinks.dead_letters import DeadLetters
from ratchet.sinks.port import Sink
from ratchet.spec.pipeline import Pipeline


def sinks_of(spec: Pipeline) -> tuple[Sink, ...]:
    """Every sink, in the order in which they are written and folded; the last one is the dead letters."""
    return (*(cast(Sink, sink).working for sink in spec.sinks), DeadLetters())


def sink_of(spec: Pipeline, name: str) -> Sink:
    """The sink with this name; KeyError if there is none."""
    return {sink.name: sink for sink in sinks_of(spec)}[name]
