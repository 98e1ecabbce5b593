"""The pipelines of the schedules, of which each takes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ratchet import Accumulate, Append, Arrivals, Condition, Json, MaxDeadLetters, Pipeline, Topic, Upsert
from ratchet.spec.parts import DeclaredGate, DeclaredSink
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import LATEST, NEWEST, ROWS, TOTALS

NAME, TOPIC = "line", "t"
LEASE_SECONDS = 60
KEEP_DELTAS = timedelta(hours=1)
KEEP = timedelta(minutes=20)
"""So long an Append keeps rows, where it does not keep them for ever."""
KEPT, OWN, SUMS = "rich_kept", "rich_own", "rich_sums"
MAKE_OWN = (
    f"create table {OWN} (a bigint, _topic text not null, _partition int not null, _offset bigint not null, "
    "_n int not null, _txid bigint not null)"
)

EVERY = Append(ROWS, columns="a bigint")
FOR_SOME_TIME = Append(KEPT, columns="a bigint", keep=KEEP)
COPIED = Append(OWN, columns="a bigint", existing=True)
ACCUMULATED = Accumulate(TOTALS, key="k string", sum="a bigint", min="a bigint", max="a bigint", count="n")
SUMMED = Accumulate(SUMS, key="k string", sum="a bigint")
LAST = Upsert(LATEST, key="k string", columns="a bigint")
LAST_BY_ORDER = Upsert(NEWEST, key="k string", columns="at bigint, a bigint", order="at")


@dataclass(frozen=True)
class Shape:
    """A pipeline, and how many partitions its topic has."""

    spec: Pipeline
    partitions: int = 2


def _shape(
    *sinks: DeclaredSink, gates: Sequence[DeclaredGate] = (), partitions: int = 2, in_flight: int = 3, private=False
) -> Shape:
    spec = Pipeline(
        name=NAME,
        runs=Arrivals(),
        source=Topic(TOPIC, key="k string", value=Json("a bigint")),
        transform="tests.proof.reference:one",
        sinks=list(sinks),
        gates=list(gates),
        max_records=6,
        slice_records=3,
        max_in_flight=in_flight,
        lease_seconds=LEASE_SECONDS,
        timeout_seconds=1200,
        max_failures=3,
        keep_deltas=KEEP_DELTAS,
        private=private,
    )
    return Shape(spec, partitions)


@dataclass(frozen=True)
class Size:
    """How much there is: the limits of a transaction and a slice, how many records come at once, and at most."""

    max_records: int
    slice_records: int
    come: int
    most: int


SIZES = {"few": Size(6, 3, 3, 21), "single": Size(1, 1, 1, 10), "hundreds": Size(300, 120, 70, 500)}
"""{which records a schedule has: how many}; the first one is drawn more often."""
MOST_DEAD = 0.9
FEW_DEAD = MaxDeadLetters(MOST_DEAD)
FEW_FIVES = Condition("few fives", sql="(select count(*) from rich_own where a = 5) < 2")
PASSES: dict[str, Callable[[dict[str, list[dict]], int], bool]] = {
    FEW_DEAD.title: lambda made, records: len(made.get(DEAD_LETTERS, [])) <= MOST_DEAD * records,
    FEW_FIVES.title: lambda made, records: sum(row["a"] == 5 for row in made.get(OWN, [])) < 2,
}
"""{gate: whether what a transaction's records give, so many, may be committed}, by plain Python."""

SHAPES = {
    "plain": _shape(EVERY, ACCUMULATED, LAST_BY_ORDER, gates=[FEW_DEAD]),
    "kept for some time": _shape(FOR_SOME_TIME, SUMMED, partitions=1, in_flight=5),
    "in a table of their own": _shape(
        COPIED, LAST, gates=[FEW_DEAD, FEW_FIVES], partitions=3, in_flight=2, private=True
    ),
    "one after the other": _shape(LAST, LAST_BY_ORDER, in_flight=1),
    "all sinks": _shape(
        EVERY, FOR_SOME_TIME, COPIED, ACCUMULATED, SUMMED, LAST, LAST_BY_ORDER, gates=[FEW_DEAD], in_flight=4
    ),
    "rows alone": _shape(EVERY, partitions=1, in_flight=4),
}
"""{name: a pipeline}; the first one is drawn more often."""
