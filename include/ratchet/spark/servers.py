"""The servers that the job of a slice asks, besides Spark and the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ratchet.values.endpoint import Endpoint


@dataclass(frozen=True)
class Servers:
    """Kafka, by its client's properties, and the endpoints that a spec's formats name; its repr shows neither."""

    kafka: dict[str, str] = field(repr=False)
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict[str, Endpoint], repr=False)
