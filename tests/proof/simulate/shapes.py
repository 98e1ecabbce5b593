"""The pipelines of the schedules, of which each takes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ratchet import Accumulate, Append, Arrivals, Condition, Json, MaxDeadLetters, Pipeline, Table, Topic, Upsert
from ratchet.spec.parts import DeclaredGate, DeclaredSink
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import LATEST, NEWEST, ROWS, TOTALS
from tests.proof.simulate.logs import NAMES

NAME = "line"
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
SENT = (Append(ROWS, columns="a bigint", to=Table("elsewhere.rich_sent", database="elsewhere")),)
COPIED = Append(OWN, columns="a bigint", existing=True)
ACCUMULATED = Accumulate(TOTALS, key="k string", sum="a bigint", min="a bigint", max="a bigint", count="n")
SUMMED = Accumulate(SUMS, key="k string", sum="a bigint")
LAST = Upsert(LATEST, key="k string", columns="a bigint")
LAST_BY_ORDER = Upsert(NEWEST, key="k string", columns="at bigint, a bigint", order="at")


@dataclass(frozen=True)
class Shape:
    """A pipeline, its topics, and how many partitions each has; its specs, of which each is migrated to the next."""

    specs: tuple[Pipeline, ...]
    partitions: int = 2
    topics: tuple[str, ...] = NAMES[:1]
    """Those that Kafka has; of several the first spec names some."""

    @property
    def is_sent(self) -> bool:
        """Whether its rows go to a destination too."""
        return any(sink.destinations for sink in self.specs[0].sinks)

    def sinks(self, until: int) -> dict[str, DeclaredSink]:
        """{name: a sink with all the columns that it has had}, of the specs up to this one."""
        return {sink.name: sink for spec in self.specs[: until + 1] for sink in spec.sinks}


def _shape(*sinks: DeclaredSink, partitions: int = 2, topics: tuple[str, ...] = NAMES[:1], **how: Any) -> Shape:
    return Shape((_spec(*sinks, **how),), partitions, topics)


def _spec(
    *sinks: DeclaredSink,
    gates: Sequence[DeclaredGate] = (),
    in_flight: int = 3,
    private: bool = False,
    **which: Any,
) -> Pipeline:
    return Pipeline(
        name=NAME,
        runs=Arrivals(),
        source=Topic(**(which or {"name": NAMES[0]}), key="k string", value=Json("a bigint")),
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
GROWN_ROWS, GROWN_TOTALS, GROWN_LAST, MORE = "grown_rows", "grown_totals", "grown_last", "grown_more"
FEW_MORE = Condition("few more", sql="(select count(*) from grown_more where b = 'two 1') < 3")
GROWS = Shape(
    (
        _spec(
            Append(GROWN_ROWS, columns="a bigint"),
            Accumulate(GROWN_TOTALS, key="k string", sum="a bigint"),
            Upsert(GROWN_LAST, key="k string", columns="at bigint, a bigint", order="at"),
        ),
        _spec(
            Append(GROWN_ROWS, columns="a bigint, b string"),
            Accumulate(GROWN_TOTALS, key="k string", sum="a bigint", max="a bigint", count="n"),
            Upsert(GROWN_LAST, key="k string", columns="at bigint, a bigint, b string", order="at"),
        ),
        _spec(
            Append(MORE, columns="b string"),
            Accumulate(GROWN_TOTALS, key="k string", sum="a bigint", max="a bigint", count="n"),
            Upsert(GROWN_LAST, key="k string", columns="at bigint, a bigint, b string", order="at"),
            gates=[FEW_DEAD, FEW_MORE],
        ),
    )
)
"""Columns and measures are added; then a sink and gates are, and another sink goes."""
PASSES: dict[str, Callable[[dict[str, list[dict]], int], bool]] = {
    FEW_DEAD.title: lambda made, records: len(made.get(DEAD_LETTERS, [])) <= MOST_DEAD * records,
    FEW_FIVES.title: lambda made, records: sum(row["a"] == 5 for row in made.get(OWN, [])) < 2,
    FEW_MORE.title: lambda made, records: sum(row["b"] == "two 1" for row in made.get(MORE, [])) < 3,
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
    "a spec that grows": GROWS,
    "sent elsewhere": _shape(*SENT, LAST, in_flight=3),
    "several topics": _shape(
        EVERY, COPIED, ACCUMULATED, LAST_BY_ORDER, partitions=1, topics=NAMES, name=NAMES[:2], gates=[FEW_DEAD]
    ),
    "topics of a pattern": _shape(
        EVERY, FOR_SOME_TIME, LAST_BY_ORDER, topics=NAMES, pattern=NAMES[0], join="latest", in_flight=4
    ),
}
"""{name: a pipeline}; the first one is drawn more often."""
