"""The pipeline of the schedules, and the versions of its code."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from ratchet import Accumulate, Append, Arrivals, Json, MaxDeadLetters, Pipeline, Topic, Upsert
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import NEWEST, ROWS, TOTALS, Make, transform

NAME, TOPIC = "line", "t"
LEASE_SECONDS = 60
KEEP_DELTAS = timedelta(hours=1)
VERSIONS = ("one", "two", "bad")
"""The code's versions; of the last one every record is a dead letter, which the gate does not let pass."""
SPECS = {
    version: Pipeline(
        name=NAME,
        runs=Arrivals(),
        source=Topic(TOPIC, key="k string", value=Json("a bigint")),
        transform=f"tests.proof.reference:{version}",
        sinks=[
            Append(ROWS, columns="a bigint"),
            Accumulate(TOTALS, key="k string", sum="a bigint", min="a bigint", max="a bigint", count="n"),
            Upsert(NEWEST, key="k string", columns="at bigint, a bigint", order="at"),
        ],
        gates=[MaxDeadLetters(0.9)],
        max_records=6,
        slice_records=3,
        max_in_flight=3,
        lease_seconds=LEASE_SECONDS,
        timeout_seconds=1200,
        max_failures=3,
        keep_deltas=KEEP_DELTAS,
    )
    for version in VERSIONS
}
VERSION_OF = {spec.code_hash: version for version, spec in SPECS.items()}


def make_of(version: str) -> Make:
    """What a version of the code makes of a record."""
    return _all_dead if version == "bad" else partial(_some, version)


def _some(version: str, partition: int, offset: int) -> dict[str, list[dict]]:
    made = transform(version, partition, offset)
    return {name: rows for name, rows in made.items() if name in (ROWS, TOTALS, NEWEST, DEAD_LETTERS)}


def _all_dead(partition: int, offset: int) -> dict[str, list[dict]]:
    return {DEAD_LETTERS: [{"key": None, "value": b"?", "headers": None, "error": "the code is bad"}]}
