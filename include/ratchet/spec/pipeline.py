"""The spec of a pipeline: one topic, one transform, its sinks; checked when it is made, without any server."""

from __future__ import annotations

import hashlib
import importlib
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

DEAD_LETTERS = "dead_letters"
"""The name under which a transform returns records that it gives up."""

MAX_FUTURE = timedelta(days=1)
"""How far from now a record's time may be, if the spec does not say."""


class Pipeline(Declaration, frozen=True):
    """One topic → one transform → its sinks, in one ordered line of transactions.

    `transform` is `module:function`; without one each sink takes the columns of its own names. `max_records` caps a
    transaction, `slice_records` a slice, both in offsets. `max_in_flight` is how many transactions may be unfinished at
    once. `schedule` is a cron expression or preset by which runs start; what has arrived when such a run begins, or one
    that a person starts, is taken by it and by runs that follow it, and no more. With `runs=Arrivals(…)`, in place of a
    schedule, records start runs, when there are enough of them or they have waited for long enough. `lease_seconds` is
    how long a run may be silent before another may ask whether it still lives. `timeout_seconds` is how long an epoch
    may stay unprepared before it is aborted. After `max_failures` failed claims of one transaction, outages not
    counted, the line halts. Committed transactions can be revised for `keep_deltas`. `gates` are checked before each
    commit. `plan` is "stable" for all that is decided in Kafka, or "interval" for what is older than the end of the
    run's data interval; there a record that is stamped more than `max_future` from now is taken with its neighbours,
    whatever its time. A commit that a foreign key refuses, since another pipeline has not brought the row yet, is tried
    again for `foreign_keys_within`, and not counted before. With `private` no value of a record is in a log, an error,
    the history or a dead letter's reason.
    `kafka`, `spark` and `ledger` are Airflow connection ids. `airflow` has arguments of the DAG, `default_args` of its
    tasks among them. `on_halt` names what is called once when the line halts, with a `Halt`.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    description: str = ""
    source: Topic
    transform: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    sinks: Annotated[list[SerializeAsAny[InstanceOf[DeclaredSink]]], Field(min_length=1)]
    schedule: str | None = None
    runs: Arrivals | None = None
    max_records: Annotated[int, Field(ge=1)] = 1_000_000
    slice_records: Annotated[int, Field(ge=1)] = 250_000
    max_in_flight: Annotated[int, Field(ge=1, le=32)] = 4
    lease_seconds: Annotated[int, Field(ge=5)] = 60
    timeout_seconds: Annotated[int, Field(ge=1)] | None = None
    max_failures: Annotated[int, Field(ge=1)] = 3
    keep_deltas: Annotated[timedelta, Field(ge=timedelta(0))] = timedelta(days=30)
    gates: list[SerializeAsAny[InstanceOf[DeclaredGate]]] = []
    plan: Literal["stable", "interval"] = "stable"
    max_future: Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=365_000))] = MAX_FUTURE
    foreign_keys_within: Annotated[timedelta, Field(gt=timedelta(0), le=timedelta(days=365_000))] | None = None
    private: bool = False
    kafka: str = "ratchet_kafka"
    spark: str = "ratchet_spark"
    ledger: str = "ratchet_ledger"
    tags: list[str] = []
    airflow: DagArguments = DagArguments()
    on_halt: References = ()

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

    @model_validator(mode="after")
    def _sinks_fit(self) -> Pipeline:
        if self.name == "maintenance":
            raise ValueError("name: maintenance is the name of a DAG that ratchet has already")
        tables = [sink.table for sink in self.sinks]
        for sink in self.sinks:
            if tables.count(sink.table) > 1:
                raise ValueError(f"sinks: {sink.name!r} is declared twice")
            if sink.name == DEAD_LETTERS or sink.table[0].startswith("ratchet") or sink.table[0].startswith("pg_"):
                raise ValueError(f"sinks: {sink.name!r} is a name that ratchet or PostgreSQL keeps for itself")
            misfit = sink.misfit(self.source) or (sink.lacks(self.source) if self.transform is None else None)
            if misfit:
                raise ValueError(f"sinks: {misfit}")
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

    def sink(self, name: str) -> DeclaredSink:
        """The sink with this name; KeyError if there is none."""
        return {sink.name: sink for sink in self.sinks}[name]

    @property
    def plan_hash(self) -> str:
        """A hash of what the spec says about data, gates included, and `private`, by which dead letters have other
        reasons: not of schedules, tags, limits, indexes, ages, or what columns were called.
        """
        said = self.model_dump_json(
            include={"name", "source", "transform", "sinks", "gates", "private"},
            exclude={"sinks": {"__all__": {"indexes", "keep", "renamed"}}},
        )
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def load_transform(self) -> Callable[..., Any] | None:
        """The transform function, None if the spec names none; SpecError if it cannot be imported."""
        if self.transform is None:
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
        """A hash of the transform's module and of what that imports of its own package, as they are on disk."""
        return code.hash_of(self.transform.partition(":")[0]) if self.transform else ""

    @property
    def code_hash(self) -> str:
        """A hash of the spec and of the transform's code, as it is on disk."""
        return hashlib.sha256(f"{self.plan_hash} {self.transform_hash}".encode()).hexdigest()[:16]
