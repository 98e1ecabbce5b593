"""The versions of a pipeline's code, and what each makes of a record."""

from __future__ import annotations

from functools import cache, partial
from typing import cast

from ratchet import Accumulate, Upsert
from ratchet.sinks.port import Sink
from ratchet.spec.parts import DeclaredSink
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from tests.proof.reference import LATEST, NEWEST, ROWS, TOTALS, Make, transform
from tests.proof.simulate.shapes import SHAPES, SIZES

VERSIONS = ("one", "two", "bad")
"""The code's versions; of the last one every record is a dead letter, which a gate may not let pass."""


@cache
def spec_of(shape: str, number: int, version: str, size: str) -> Pipeline:
    """A shape's spec of this number with a version of the code, and the limits of a size, which are no part of it."""
    limits = {"max_records": SIZES[size].max_records, "slice_records": SIZES[size].slice_records}
    return SHAPES[shape].specs[number].model_copy(update={"transform": f"tests.proof.reference:{version}", **limits})


_ALL = [
    (spec_of(name, number, version, "few"), version)
    for name, shape in SHAPES.items()
    for number in range(len(shape.specs))
    for version in VERSIONS
]
OF_CODE = {spec.code_hash: (spec, version) for spec, version in _ALL}
"""{code hash: the spec and the version of the code}."""


def make_of(spec: Pipeline, version: str) -> Make:
    """What a version of the code makes of a record for the sinks of a spec."""
    return _all_dead if version == "bad" else partial(_some, spec, version)


def _some(spec: Pipeline, version: str, partition: int, offset: int) -> dict[str, list[dict]]:
    made = transform(version, partition, offset)
    if DEAD_LETTERS in made:
        return made
    b = f"{version} {(partition + offset) % 2}"
    return {sink.name: [_row(sink, row, b) for row in made.get(_like(sink), [])] for sink in spec.sinks}


def _like(sink: DeclaredSink) -> str:
    """The sink of the reference that is given the same rows."""
    if isinstance(sink, Accumulate):
        return TOTALS
    if isinstance(sink, Upsert):
        return NEWEST if sink.order else LATEST
    return ROWS


def _row(sink: DeclaredSink, row: dict, b: str) -> dict:
    """What a sink declares of a row."""
    declared = {column.name for column in cast(Sink, sink).declared} | {"_deleted"}
    return {k: v for k, v in {**row, "b": None if row.get("_deleted") else b}.items() if k in declared}


def _all_dead(partition: int, offset: int) -> dict[str, list[dict]]:
    return {DEAD_LETTERS: [{"key": None, "value": b"?", "headers": None, "error": "the code is bad"}]}
