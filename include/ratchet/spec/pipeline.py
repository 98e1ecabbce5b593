"""The spec of a pipeline: its topics, its transform, its sinks; checked when it is made, without any server."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, cast

from pydantic import Field, InstanceOf, SerializeAsAny, ValidationInfo, field_validator, model_validator

from ratchet.errors import SpecError
from ratchet.spec import code
from ratchet.spec.dag import DagArguments
from ratchet.spec.declaration import Declaration
from ratchet.spec.parts import Arrivals, DeclaredGate, DeclaredSink
from ratchet.spec.reference import References
from ratchet.spec.source import Topic
from ratchet.spec.sql import Sql

DEAD_LETTERS = "dead_letters"
"""The name under which a transform returns records that it gives up."""

MAX_FUTURE = timedelta(days=1)
"""How far from now a record's time may be, if the spec does not say."""

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

_WHICH_TOPICS = {"begin", "name", "pattern", "join"}


class Pipeline(Declaration, frozen=True):
    """One topic, or several of one format → one transform → its sinks, in one ordered line of transactions."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    """The name of the line and of its DAG: up to 32 of a to z, 0 to 9 and `_`, a letter first."""
    description: str = ""
    """Text in Markdown, which the DAG's page shows first."""
    source: Topic
    """The Kafka topic that the pipeline reads, or several."""
    transform: str | InstanceOf[Sql] | None = None
    """What is between topic and sinks: a function, as `module:function`, or statements, as `Sql(…)`. Without one each
    sink takes the columns of its own names."""
    sinks: Annotated[list[SerializeAsAny[InstanceOf[DeclaredSink]]], Field(min_length=1)]
    """The tables that the pipeline fills."""
    schedule: str | None = None
    """The cron expression or preset by which Airflow starts runs. Such a run, and those that follow it, take what has
    arrived when it begins, and no more; so does a run that a person starts."""
    runs: Arrivals | None = None
    """In place of a schedule: records start runs."""
    max_records: Annotated[int, Field(ge=1)] = 1_000_000
    """The most offsets of one transaction."""
    slice_records: Annotated[int, Field(ge=1)] = 250_000
    """The most offsets of one slice, which is one Spark job. A transaction has at most 1,000 slices."""
    max_in_flight: Annotated[int, Field(ge=1, le=32)] = 4
    """How many transactions may be unfinished at once."""
    lease_seconds: Annotated[int, Field(ge=5)] = 60
    """How long a run may be silent before another one asks Airflow whether it still lives."""
    timeout_seconds: Annotated[int, Field(ge=1)] | None = None
    """How long an epoch may stay unprepared before it is aborted; without it there is no limit."""
    max_failures: Annotated[int, Field(ge=1)] = 3
    """After so many failed claims of one transaction, outages not counted, the line halts."""
    keep_deltas: Annotated[timedelta, Field(ge=timedelta(0))] = timedelta(days=30)
    """How long a committed transaction can be revised; older deltas are merged."""
    gates: list[SerializeAsAny[InstanceOf[DeclaredGate]]] = []
    """The checks on prepared rows before each commit."""
    plan: Literal["stable", "interval"] = "stable"
    """Where a plan ends: `"stable"` at the last offset that is decided in Kafka, `"interval"` at the end of the run's
    data interval, by the records' timestamps."""
    max_future: Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=365_000))] = MAX_FUTURE
    """With `plan="interval"`: a record that is stamped further than this from now is taken with its neighbours,
    whatever its time."""
    foreign_keys_within: Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=365_000))] | None = None
    """How long a commit that a foreign key refuses is tried again before it counts as a failure: another pipeline may
    not have brought the row yet."""
    private: bool = False
    """Whether values of records stay out of logs, errors, the history and the reasons of dead letters."""
    kafka: str = "ratchet_kafka"
    """The id of the Airflow connection to Kafka."""
    spark: str = "ratchet_spark"
    """The id of the Airflow connection to Spark."""
    ledger: str = "ratchet_ledger"
    """The id of the Airflow connection to the ledger's database."""
    tags: list[str] = []
    """Tags of the DAG."""
    airflow: DagArguments = DagArguments()
    """Arguments of the DAG by Airflow's own names, a dict, with those of its tasks in `default_args`."""
    on_halt: References = ()
    """What is called once when the line halts, with a `Halt`: `module:name`, or a list of these."""

    @field_validator("sinks", "gates", mode="before")
    @classmethod
    def _are_objects(cls, given: object, info: ValidationInfo) -> object:
        """pydantic would say the name of a class that no user knows."""
        kind, example = {"sinks": (DeclaredSink, "Append(…)")}.get(str(info.field_name), (DeclaredGate, "Condition(…)"))
        parts = cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()
        for place, part in enumerate(parts):
            if not isinstance(part, kind):
                raise ValueError(f"number {place + 1} is a {type(part).__name__}; give an object such as {example}")
        return given  # pyright: ignore[reportUnknownVariableType]: narrowed to a list of anything

    @field_validator("transform", mode="before")
    @classmethod
    def _is_named_or_sql(cls, given: object) -> object:
        if given is None or isinstance(given, Sql) or (isinstance(given, str) and _FUNCTION.fullmatch(given)):
            return given
        if isinstance(given, str):
            raise ValueError(f'{given!r} is not "module:function"')
        raise ValueError(f'it is a {type(given).__name__}; name a function, "module:function", or give Sql(…)')

    @model_validator(mode="after")
    def _sinks_fit(self) -> Pipeline:
        if self.name == "maintenance":
            raise ValueError("name: maintenance is the name of a DAG that ratchet has already")
        if self.source.compacted:
            self._check_compacted()
        tables = [sink.table for sink in self.sinks]
        for sink in self.sinks:
            if tables.count(sink.table) > 1:
                raise ValueError(f"sinks: {sink.name!r} is declared twice")
            if sink.name == DEAD_LETTERS or sink.table[0].startswith("ratchet") or sink.table[0].startswith("pg_"):
                raise ValueError(f"sinks: {sink.name!r} is a name that ratchet or PostgreSQL keeps for itself")
            if self.source.is_several and sink.needs_key:
                raise ValueError(
                    f"sinks: {sink.name!r} keeps the last record of a key by its place in its partition, and among "
                    "several topics a key has no such order; give it an order column"
                )
            misfit = sink.misfit(self.source) or (sink.lacks(self.source) if self.transform is None else None)
            if misfit:
                raise ValueError(f"sinks: {misfit}")
        addresses = [destination.address for sink in self.sinks for destination in sink.destinations]
        for address in addresses:
            if addresses.count(address) > 1:
                raise ValueError(f"sinks: destination {address!r} is declared twice")
        if isinstance(self.transform, Sql):
            for misfit in self.transform.misfits(self.source, self.sinks, DEAD_LETTERS):
                raise ValueError(f"transform: {misfit}")
        for gate in self.gates:
            misfit = gate.misfit(self.sinks)
            if misfit:
                raise ValueError(f"gates: {misfit}")
        if len({gate.title for gate in self.gates}) < len(self.gates):
            raise ValueError("gates: two gates have one name")
        if self.runs is not None and self.schedule is not None:
            raise ValueError("runs: either a schedule decides when runs start, or records do; leave one out")
        if self.runs is not None and self.runs.min_records > self.max_records:
            raise ValueError("runs: min_records is more than max_records, which is all that a run takes")
        if self.plan == "interval" and self.schedule is None:
            raise ValueError('plan: "interval" needs a schedule, whose intervals the runs take')
        if self.plan != "interval" and self.max_future != MAX_FUTURE:
            raise ValueError('max_future: only plan="interval" goes by the times of records; leave it out')
        if self.max_records > self.slice_records * 1000:
            raise ValueError("slice_records: more than 1,000 slices in a transaction; make slices larger")
        return self

    def _check_compacted(self) -> None:
        """Only what does not depend on when Kafka compacts the topic: the last value of each Kafka key."""
        if self.transform is not None:
            raise ValueError(
                "transform: topic is compacted, and what a transform makes of the records that are left may depend on "
                "when Kafka compacts; leave it out, and transform what the sink has"
            )
        for sink in self.sinks:
            if not (sink.needs_key and sink.takes_deletions):
                raise ValueError(
                    f"sinks: {sink.name!r} of a compacted topic would depend on when Kafka compacts; only an Upsert "
                    "without order, whose key is the Kafka key, has the last value of each key whenever that is"
                )
        if self.plan == "interval":
            raise ValueError(
                "plan: topic is compacted, and which record ends an interval depends on when Kafka compacts; leave "
                "plan out"
            )

    def sink(self, name: str) -> DeclaredSink:
        """The sink with this name; KeyError if there is none."""
        return {sink.name: sink for sink in self.sinks}[name]

    @property
    def connections(self) -> tuple[str, ...]:
        """The ids of the Airflow connections to servers besides Kafka, Spark and the ledger."""
        return self.source.connections

    @property
    def plan_hash(self) -> str:
        """A hash of what the spec says about data, gates included, and `private`, by which dead letters have other
        reasons: not of schedules, tags, limits, indexes, ages, what columns were called, which topics it is of, where
        they begin, or where rows go besides.
        """
        said = self.model_dump_json(
            include={"name", "source", "transform", "sinks", "gates", "private"},
            exclude={
                "source": _WHICH_TOPICS,
                "sinks": {"__all__": {"indexes", "keep", "renamed", "to"}},
            },
        )
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def load_transform(self) -> Callable[..., Any] | None:
        """The transform function, None where there is none, or statements; SpecError if it cannot be imported."""
        if not isinstance(self.transform, str):
            return None
        module, _, function = self.transform.partition(":")
        try:
            return getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise SpecError(f"Pipeline.transform: {self.transform!r} cannot be imported: {error}") from error

    @property
    def references(self) -> Iterator[tuple[str, str]]:
        """(field, what it names) for all that the spec names of a person's own, but the transform."""
        named = {f"airflow.{field}": names for field, names in self.airflow.references.items()}
        named |= {f"airflow.default_args.{f}": names for f, names in self.airflow.default_args.references.items()}
        for field, names in {**named, "on_halt": self.on_halt}.items():
            yield from ((field, name) for name in names)

    @property
    def transform_hash(self) -> str:
        """A hash of the transform's module and of what that imports of its own package, as they are on disk; "" where
        there is none. Statements are in `plan_hash`.
        """
        return code.hash_of(self.transform.partition(":")[0]) if isinstance(self.transform, str) else ""

    @property
    def code_hash(self) -> str:
        """A hash of the spec and of the transform's code, as it is on disk."""
        return hashlib.sha256(f"{self.plan_hash} {self.transform_hash}".encode()).hexdigest()[:16]
