"""The shapes of the pipelines: every kind of sink, gates, two slices a transaction, and leases that run out soon."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from ratchet import (
    Accumulate,
    Append,
    Arrivals,
    Condition,
    DeltaLake,
    Files,
    Json,
    KafkaTopic,
    MaxDeadLetters,
    Pipeline,
    Table,
    Topic,
    Upsert,
)
from ratchet.destinations.port import Destination
from tests.proof.points.transforms import ASKED

GATE = "faults_gate"
"""The table by which a runner lets a pipeline's gate say no for a while."""


def through_connect(name: str, **changed: object) -> Pipeline:
    """A pipeline through Spark Connect; no number of kills halts it."""
    spec = Pipeline(
        name=name,
        runs=Arrivals(),
        source=Topic(name, value=Json("k string, v bigint")),
        transform=f"tests.proof.points.transforms:{name}",
        sinks=[
            Append(f"{name}_rows", columns="k string, v bigint"),
            Accumulate(f"{name}_sums", key="k string", sum="v bigint", count="n"),
            Upsert(f"{name}_last", key="k string", columns="v bigint", order="v"),
        ],
        gates=[
            MaxDeadLetters(0.5),
            Condition("open", f"not exists (select from {GATE} where line = '{name}' and until > clock_timestamp())"),
        ],
        max_records=100,
        slice_records=50,
        max_in_flight=3,
        lease_seconds=5,
        max_failures=1000,
    )
    return spec.model_copy(update=changed)


def compacting(name: str) -> Pipeline:
    """The same, whose deltas are merged as soon as they are committed, so that nothing of it can be revised."""
    return through_connect(name, keep_deltas=timedelta(0))


def sending(name: str) -> Pipeline:
    """A pipeline whose rows go to a table, to a Delta Lake table and to files."""
    home = f"{os.environ[ASKED]}/{name}"
    return _sent(
        name, Table(f"elsewhere.{name}", database="ratchet_ledger"), DeltaLake(f"{home}/lake"), Files(f"{home}/files")
    )


def keyed(name: str) -> tuple[Pipeline, Pipeline]:
    """A pipeline whose keys go to tables and to Delta Lake tables, in two versions that make other keys of the same
    records.
    """
    home = f"{os.environ[ASKED]}/{name}"

    def to(what: str) -> tuple[Destination, ...]:
        return Table(f"elsewhere.{name}_{what}", database="ratchet_ledger"), DeltaLake(f"{home}/{what}")

    sinks = [
        Upsert(f"{name}_last", key="k string not null", columns="v bigint", order="v", to=to("last")),
        Accumulate(f"{name}_sums", key="k string not null", sum="v bigint", count="n", to=to("sums")),
    ]
    spec = through_connect(name, sinks=sinks)
    return spec, spec.model_copy(update={"transform": f"{spec.transform}_otherwise"})


def version_of(*versions: Pipeline) -> Pipeline:
    """The one that is deployed: the other one as long as a file says so."""
    return versions[otherwise(versions[0].name).exists()]


def otherwise(name: str) -> Path:
    """The file that deploys a pipeline's other version."""
    return Path(os.environ[ASKED], f"{name}.otherwise")


def chained(name: str, to: str) -> Pipeline:
    """A pipeline whose rows go to the topic from which the pipeline `to` takes its records."""
    return _sent(name, KafkaTopic(to, key="k"))


def _sent(name: str, *to: Destination) -> Pipeline:
    spec = through_connect(name)
    return spec.model_copy(update={"sinks": [spec.sinks[0].model_copy(update={"to": to}), *spec.sinks[1:]]})


def through_submit(name: str) -> Pipeline:
    """A pipeline through spark-submit, one slice a transaction, one transaction at a time."""
    return through_connect(name, spark="ratchet_spark_submit", slice_records=100, max_in_flight=1, lease_seconds=10)
