"""Every change of a spec, and what is to come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ratchet import Accumulate, Append, Condition, Pipeline, Upsert
from ratchet.spec.parts import DeclaredSink

from .grown import GROWN, SUMS, TOMBSTONES

ADDED = "alter table mine add column c int"
RETYPED = "alter table mine alter column a type numeric(20,0)"


@dataclass(frozen=True)
class Change:
    """A change of one sink, or of the spec."""

    name: str
    of: Callable[[Pipeline], Pipeline]
    refused: str = ""
    """What `migrate` says, where it refuses."""
    begins: bool = False
    """Whether a begin takes the new spec where nobody has migrated."""
    alters: str = ""
    """What a person does to a table of their own beforehand."""
    spec: Pipeline = GROWN
    """What is changed."""

    def __str__(self) -> str:
        return self.name

    @property
    def of_what(self) -> str:
        """What is changed by it: the kind of sink, or else what its name says."""
        return self.name.partition(":")[0]


def _sink(name: str, **fields: object) -> Callable[[Pipeline], Pipeline]:
    """Another declaration of a sink: of another kind, or with other fields."""

    def of(spec: Pipeline) -> Pipeline:
        return with_sinks(spec, *(s.model_copy(update=fields) if s.name == name else s for s in spec.sinks))

    return of


def _put(sink: DeclaredSink) -> Callable[[Pipeline], Pipeline]:
    """This sink, in place of one of its name or behind the others."""

    def of(spec: Pipeline) -> Pipeline:
        known = any(s.name == sink.name for s in spec.sinks)
        return with_sinks(spec, *(sink if s.name == sink.name else s for s in spec.sinks), *([] if known else [sink]))

    return of


def _gone(name: str) -> Callable[[Pipeline], Pipeline]:
    return lambda spec: with_sinks(spec, *(s for s in spec.sinks if s.name != name))


def with_sinks(spec: Pipeline, *sinks: DeclaredSink) -> Pipeline:
    return spec.model_copy(update={"sinks": list(sinks)})


def _spec(**fields: object) -> Callable[[Pipeline], Pipeline]:
    return lambda spec: spec.model_copy(update=fields)


def _renamed(spec: Pipeline) -> Pipeline:
    return _put(Append("anew", columns="a bigint, b string not null"))(_gone("every")(spec))


LOST = (
    "its column {} is not in the spec, and a key's row would keep it .*; put it back, .*, say in renamed what it has be"
)
OTHER = (
    "its {} in the spec, and what is there was written with the old one, .*; put the old one back, or give the sink "
    "another table, which begins empty and `ratchet replay` fills"
)
NULLS = "has rows, which have no {}; declare it without not null"
TYPE = "{} is BIGINT, the spec declares {}; what is there is never retyped: put the old type back and let the transform"

CHANGES = [
    Change("append: column added", _sink("every", columns="a bigint, b string not null, c int")),
    Change("append: not null column added", _sink("every", columns="a bigint, c int not null"), NULLS.format("c")),
    Change("append: column dropped", _sink("every", columns="b string not null"), begins=True),
    Change("append: not null column dropped", _sink("every", columns="a bigint")),
    Change("append: column renamed", _sink("every", columns="c int, b string not null")),
    Change("append: column narrowed", _sink("every", columns="a int"), TYPE.format("every.a", "INTEGER")),
    Change(
        "append: column retyped", _sink("every", columns="a timestamp"), TYPE.format("every.a", "TIMESTAMP WITH .*")
    ),
    Change("append: column may be null", _sink("every", columns="a bigint, b string")),
    Change(
        "append: column may not be null", _sink("every", columns="a bigint not null, b string not null"), begins=True
    ),
    Change("append: columns in another order", _sink("every", columns="b string not null, a bigint"), begins=True),
    Change("append: index added", _sink("every", indexes=("a",)), begins=True),
    Change(
        "append: a table of one's own", _sink("every", existing=True), "every is a view, and the sink needs a table"
    ),
    Change("own: column added", _sink("mine", columns="a bigint, b string, c int"), begins=True, alters=ADDED),
    Change(
        "own: column added to the spec alone",
        _sink("mine", columns="a bigint, b string, c int"),
        "mine.c is missing; an existing table is never altered: ALTER TABLE … ADD COLUMN c INTEGER",
    ),
    Change("own: column dropped", _sink("mine", columns="a bigint"), begins=True),
    Change(
        "own: column retyped in the spec alone",
        _sink("mine", columns="a int, b string"),
        "mine.a is BIGINT, the spec declares INTEGER; declare it so, or ALTER TABLE … ALTER COLUMN a TYPE INTEGER",
    ),
    Change("own: column retyped", _sink("mine", columns="a decimal(20,0), b string"), begins=True, alters=RETYPED),
    Change(
        "own: column that may be null in the spec alone",
        _sink("mine", columns="a bigint, b string, c int"),
        "mine.c is NOT NULL, and the spec allows null; declare it not null, or ALTER TABLE … ALTER COLUMN c DROP NOT",
        alters=f"{ADDED} not null default 0",
    ),
    Change("own: a view", _sink("mine", existing=False), "mine is a table, and readers are given a view of that name"),
    Change("accumulate: measure added", _sink("totals", sum="a bigint, c int")),
    Change("accumulate: count added", _sink("least", count="n")),
    Change("accumulate: measure dropped", _sink("totals", max=None), LOST.format("a_max")),
    Change("accumulate: count dropped", _sink("totals", count=None), LOST.format("n")),
    Change("accumulate: sum of an integer of another width", _sink("totals", sum="a int"), begins=True, spec=SUMS),
    Change("accumulate: sum of a decimal", _sink("totals", sum="a decimal(9,0)", max=None), "a_max|a_sum is BIGINT"),
    Change("accumulate: another measure", _sink("totals", max=None, min="a bigint"), LOST.format("a_max")),
    Change(
        "accumulate: least of a wider type",
        _sink("least", min="c bigint"),
        "c_min is INTEGER, the spec declares BIGINT",
    ),
    Change(
        "accumulate: key changed", _sink("totals", key="j string"), OTHER.format("key was k string and is j string")
    ),
    Change(
        "accumulate: key column added",
        _sink("totals", key="k string, j string"),
        OTHER.format("key was k string and is k string, j string"),
    ),
    Change(
        "accumulate: key may not be null",
        _sink("totals", key="k string not null"),
        OTHER.format("key was k string and is k string not null"),
    ),
    Change("accumulate: key may be null", _sink("least", key="k string, j string")),
    Change("upsert: column added", _sink("latest", columns="a bigint, b string not null, c int")),
    Change(
        "upsert: not null column added",
        _sink("latest", columns="a bigint, b string, c int not null"),
        NULLS.format("c"),
    ),
    Change("upsert: column dropped", _sink("latest", columns="b string not null"), LOST.format("a")),
    Change("upsert: column renamed", _sink("latest", columns="c int, b string not null"), LOST.format("a")),
    Change(
        "upsert: column retyped", _sink("latest", columns="a timestamp, b string"), TYPE.format("latest.a", "TIMES.*")
    ),
    Change("upsert: column may be null", _sink("latest", columns="a bigint, b string")),
    Change("upsert: column may not be null", _sink("latest", columns="a bigint not null, b string")),
    Change("upsert: order added", _sink("latest", order="a"), OTHER.format("order was none and is a")),
    Change("upsert: key changed", _sink("latest", key="j string"), OTHER.format("key was k string and is j string")),
    Change("upsert: tombstones delete no more", _spec(source=GROWN.source), begins=True, spec=TOMBSTONES),
    Change("upsert by order: column added", _sink("newest", columns="at bigint, a bigint, b string not null, c int")),
    Change(
        "upsert by order: order may not be null",
        _sink("newest", columns="at bigint not null, a bigint, b string not null"),
        begins=True,
    ),
    Change("upsert by order: column dropped", _sink("newest", columns="at bigint, a bigint"), LOST.format("b")),
    Change("upsert by order: order changed", _sink("newest", order="a"), OTHER.format("order was at and is a")),
    Change("upsert by order: order dropped", _sink("newest", order=None), OTHER.format("order was at and is none")),
    Change("sink added: append", _put(Append("more", columns="c int"))),
    Change("sink added: accumulate", _put(Accumulate("sums", key="j string", sum="c int", count="n"))),
    Change("sink added: upsert", _put(Upsert("last", key="k string", columns="at bigint, c int", order="at"))),
    Change("sink dropped: append", _gone("every"), begins=True),
    Change("sink dropped: own", _gone("mine"), begins=True),
    Change("sink dropped: accumulate", _gone("totals"), begins=True),
    Change("sink dropped: upsert", _gone("latest"), begins=True),
    Change("sink dropped: upsert by order", _gone("newest"), begins=True),
    Change("sink renamed", _renamed),
    Change(
        "kind changed",
        _put(Upsert("totals", key="k string", columns="a bigint")),
        OTHER.format("kind was accumulate and is upsert"),
    ),
    Change(
        "gate added", _spec(gates=[Condition("no nine", "not exists (select from every where a = 9)")]), begins=True
    ),
    Change("limits changed", _spec(max_records=20, keep_deltas=GROWN.keep_deltas * 2), begins=True),
    Change(
        "pipeline renamed", _spec(name="other"), "is the table of pipeline 'grown', and a pipeline of another name is"
    ),
]
