"""The spec of a pipeline: one topic, one transform, its sinks; checked when it is made, without any server."""

from __future__ import annotations

import hashlib
import importlib
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ratchet.errors import SpecError
from ratchet.spec import code
from ratchet.spec.columns import IDENTIFIER, TABLE, Column, FieldPath, parse_columns
from ratchet.spec.types import Boolean, Uuid, is_scalar

DEAD_LETTERS = "dead_letters"
"""The name under which a transform returns records that it gives up."""


class _Spec(BaseModel):
    """A frozen part of a spec that may be given its first fields by position."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    positional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, **data: Any) -> None:
        kind = type(self).__name__
        if len(args) > len(self.positional):
            raise SpecError(f"{kind} takes {len(self.positional)} positional arguments, not {len(args)}")
        for name, value in zip(self.positional, args, strict=False):
            if name in data:
                raise SpecError(f"{kind}.{name}: it is given twice, by its place and by its name")
            data[name] = value
        try:
            super().__init__(**data)
        except ValidationError as error:
            problems = "; ".join(
                f"{kind}.{'.'.join(map(str, e['loc'])) or 'spec'}: {e['msg'].removeprefix('Value error, ')}"
                for e in error.errors()
            )
            raise SpecError(problems) from None


def _columns(ddl: str) -> str:
    """Check a column declaration; SpecError becomes pydantic's error, which names the field."""
    try:
        parse_columns(ddl)
    except SpecError as error:
        # pydantic takes no message with half of a surrogate pair.
        raise ValueError(str(error).encode(errors="backslashreplace").decode()) from None
    return ddl


def _made(ddl: str) -> str:
    """Check the columns of a sink, which the transform makes under these names."""
    for column in parse_columns(_columns(ddl)):
        if column.origin is not None:
            raise ValueError(
                f"column {column.name!r}: from belongs to the columns of a message; a sink's come from the transform"
            )
    return ddl


_LONGEST = 63
"""PostgreSQL's limit for a name, in bytes."""
_ENDING = 5
"""The longest ending that ratchet adds to a table's name (`_once`, `_txid`), or to a column's (`_sum`)."""


def _table(name: str) -> str:
    if not TABLE.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a legal table name; use table or schema.table, a to z, 0 to 9 and _, a letter first"
        )
    whole = name if "." in name else f"public.{name}"
    if len(whole) > _LONGEST - _ENDING:
        raise ValueError(
            f"{name!r} is too long: {whole} has {len(whole)} characters and may have {_LONGEST - _ENDING}, because a "
            f"table of deltas and its indexes are named after it, and PostgreSQL's names end at {_LONGEST}"
        )
    return name


class Json(_Spec):
    """Values are JSON in UTF-8 with these columns; other fields are ignored.

    With `rows="object"` a value is one object and gives one row; with `rows="array"` it is one array of objects, and
    each of them gives a row, numbered in `_n`.
    """

    positional: ClassVar = ("columns",)
    columns: str
    rows: Literal["object", "array"] = "object"
    _check = field_validator("columns")(_columns)

    @property
    def fields(self) -> tuple[Column, ...]:
        return parse_columns(self.columns)


class Topic(_Spec):
    """The Kafka topic that a pipeline reads.

    `key` declares the Kafka key: as one column (UTF-8 text of its type), or as Json with columns of its own.
    `tombstones` says what a record without a value is: a dead letter, or a deletion of its key.
    """

    positional: ClassVar = ("name",)
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
    value: Json
    key: Json | str | None = None
    tombstones: Literal["dead_letter", "delete"] = "dead_letter"

    @field_validator("key")
    @classmethod
    def _is_a_key(cls, key: Json | str | None) -> Json | str | None:
        if isinstance(key, str):
            columns = parse_columns(_columns(key))
            if len(columns) != 1:
                raise ValueError('declare one column, for example key="customer_id bigint"; a key of JSON is a Json(…)')
            if columns[0].origin is not None:
                raise ValueError(f"column {columns[0].name!r} is the whole key, and comes from nothing else")
        if isinstance(key, Json):
            if key.rows != "object":
                raise ValueError("a key is one object, and gives no rows of its own")
            for column in key.fields:
                if not isinstance(column.source, FieldPath):
                    raise ValueError(f"column {column.name!r} comes from the key, and not {column.origin}")
        return key

    @model_validator(mode="after")
    def _deletions_need_a_key(self) -> Topic:
        if self.tombstones == "delete" and self.key is None:
            raise ValueError('tombstones="delete" needs key: a deletion names its row by the Kafka key')
        declared = {c.name.lower() for c in self.value.fields}
        for column in self.key_columns:
            if column.name.lower() in declared:
                raise ValueError(f"key: column {column.name!r} is declared in value too")
        return self

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns that come from the key; none if it is not declared."""
        if self.key is None:
            return ()
        return self.key.fields if isinstance(self.key, Json) else parse_columns(self.key)

    @property
    def columns(self) -> tuple[Column, ...]:
        """All declared columns, in the order in which a transform sees them."""
        return (*self.value.fields, *self.key_columns)


class _Sink(_Spec):
    """A table that a pipeline writes; `name` is `table` (in public) or `schema.table`."""

    positional: ClassVar = ("name",)
    name: str
    _check_name = field_validator("name")(_table)

    @property
    def table(self) -> tuple[str, str]:
        """(schema, table)."""
        schema, _, table = self.name.rpartition(".")
        return schema or "public", table


class Append(_Sink):
    """Every row that the transform returns, once."""

    kind: Literal["append"] = "append"
    columns: str
    _check = field_validator("columns")(_made)

    @property
    def fields(self) -> tuple[Column, ...]:
        return parse_columns(self.columns)


class Accumulate(_Sink):
    """Per key: exact sums, least and greatest values, and the number of rows.

    Column `x` gives `x_sum`, `x_min`, `x_max`; `count` names the column with the number of rows.
    """

    kind: Literal["accumulate"] = "accumulate"
    key: str
    sum: str | None = None
    min: str | None = None
    max: str | None = None
    count: str | None = None
    _check = field_validator("key", "sum", "min", "max")(lambda ddl: ddl if ddl is None else _made(ddl))

    @model_validator(mode="after")
    def _is_exact(self) -> Accumulate:
        for name in ("key", "sum", "min", "max"):
            for column in self.columns_of(name):
                if column.floating:
                    raise ValueError(
                        f"{name}: {column.name!r} is a {column.type}, whose sums and keys are not exact; "
                        f"cast it in the transform and declare {column.name} decimal(18,6)"
                    )
                if not is_scalar(column.type):
                    raise ValueError(f"{name}: {column.name!r} is a {column.type}, whose values have no order")
                if name in ("min", "max") and isinstance(column.type, Boolean | Uuid):
                    other = "int" if isinstance(column.type, Boolean) else "string"
                    raise ValueError(
                        f"{name}: {column.name!r} is a {column.type}, of which PostgreSQL has no {name}; "
                        f"cast it in the transform and declare {column.name} {other}"
                    )
                if name == "sum" and not column.exact:
                    raise ValueError(f"sum: {column.name!r} is a {column.type}; sums need integers or decimals")
        if self.count is not None and not IDENTIFIER.fullmatch(self.count):
            raise ValueError(f"count: {self.count!r} is not a legal column name")
        names = [c.name for c in self.columns_of("key")] + self.measures
        for measure in self.measures:
            if len(measure) > _LONGEST:
                raise ValueError(f"{measure!r} is too long: PostgreSQL's names end at {_LONGEST}; shorten the column")
        if not self.measures:
            raise ValueError("declare at least one of sum, min, max, count")
        if len(set(names)) != len(names):
            raise ValueError(f"two columns have one name among {', '.join(names)}")
        return self

    def columns_of(self, part: str) -> tuple[Column, ...]:
        """The declared columns of `key`, `sum`, `min` or `max`."""
        ddl = getattr(self, part)
        return parse_columns(ddl) if ddl else ()

    @property
    def measures(self) -> list[str]:
        """The names of the folded columns in the table."""
        named = [f"{c.name}_{part}" for part in ("sum", "min", "max") for c in self.columns_of(part)]
        return named + ([self.count] if self.count else [])


class Upsert(_Sink):
    """The last row of each key: the greatest `order` column, then the later record.

    Without `order` the key must be the Kafka key, whose records Kafka keeps in order in one partition;
    then, and only then, a tombstone deletes the row.
    """

    kind: Literal["upsert"] = "upsert"
    key: str
    columns: str
    order: str | None = None
    _check = field_validator("key", "columns")(_made)

    @model_validator(mode="after")
    def _names_fit(self) -> Upsert:
        keys, values = {c.name for c in self.keys}, {c.name for c in self.fields}
        if keys & values:
            raise ValueError(f"columns: {', '.join(sorted(keys & values))} is in key too")
        if self.order is not None and self.order not in values:
            raise ValueError(f"order: {self.order!r} is not one of columns")
        for part, columns in (("key", self.keys), ("order", [c for c in self.fields if c.name == self.order])):
            for column in columns:
                if not is_scalar(column.type):
                    raise ValueError(f"{part}: {column.name!r} is a {column.type}, whose values have no order")
        return self

    @property
    def keys(self) -> tuple[Column, ...]:
        return parse_columns(self.key)

    @property
    def fields(self) -> tuple[Column, ...]:
        return parse_columns(self.columns)


Sink = Annotated[Append | Accumulate | Upsert, Field(discriminator="kind")]


class MaxDeadLetters(_Spec):
    """A gate: at most this ratio of the records read may be dead letters, 0 to 1."""

    kind: Literal["max_dead_letters"] = "max_dead_letters"
    positional: ClassVar = ("ratio",)
    ratio: Annotated[float, Field(ge=0, le=1)]

    @property
    def name(self) -> str:
        return f"at most {self.ratio:.4g} of the records are dead letters"


class MaxChange(_Spec):
    """A gate: the rows that a record gives in one sink may change by this factor at most, up or down.

    Compared with the median of the last `over` committed transactions; the first one passes.
    """

    kind: Literal["max_change"] = "max_change"
    positional: ClassVar = ("sink", "factor")
    sink: str
    factor: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    over: Annotated[int, Field(ge=1, le=1000)] = 10

    @property
    def name(self) -> str:
        return f"rows of {self.sink} change by {self.factor:.4g} at most"


class Condition(_Spec):
    """A gate: an SQL expression over the staged rows that must be true.

    A sink's staged rows are a table with the sink's name (`schema_table` for `schema.table`), and so are
    `dead_letters`; every other table is what it is in the database. Nothing can be written.
    """

    kind: Literal["condition"] = "condition"
    positional: ClassVar = ("name", "sql")
    name: Annotated[str, Field(min_length=1, max_length=100)]
    sql: Annotated[str, Field(min_length=1)]


Gate = Annotated[MaxDeadLetters | MaxChange | Condition, Field(discriminator="kind")]


class Pipeline(_Spec):
    """One topic → one transform → its sinks, in one ordered line of transactions.

    `transform` is `module:function`. `max_records` caps a transaction, `slice_records` a slice, both in
    offsets. `max_in_flight` is how many transactions may be unfinished at once. `schedule` is a cron
    expression or preset, or None for runs that people start. `lease_seconds` is how long a run may be silent
    before another may ask whether it still lives. `timeout_seconds` is how long an epoch may stay unprepared
    before it is aborted. After `max_failures` failed claims of one transaction, outages not counted, the line
    halts. Committed transactions can be revised for `keep_deltas`. `gates` are checked before each commit. `plan`
    is "stable" for all that is decided in Kafka, or "interval" for what is older than the end of the run's data
    interval.
    `kafka`, `spark` and `ledger` are Airflow connection ids.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
    description: str = ""
    source: Topic
    transform: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    sinks: Annotated[list[Sink], Field(min_length=1)]
    schedule: str | None = None
    max_records: Annotated[int, Field(ge=1)] = 1_000_000
    slice_records: Annotated[int, Field(ge=1)] = 250_000
    max_in_flight: Annotated[int, Field(ge=1, le=32)] = 4
    lease_seconds: Annotated[int, Field(ge=5)] = 60
    timeout_seconds: Annotated[int, Field(ge=1)] | None = None
    max_failures: Annotated[int, Field(ge=1)] = 3
    keep_deltas: Annotated[timedelta, Field(ge=timedelta(0))] = timedelta(days=30)
    gates: list[Gate] = []
    plan: Literal["stable", "interval"] = "stable"
    kafka: str = "ratchet_kafka"
    spark: str = "ratchet_spark"
    ledger: str = "ratchet_ledger"
    tags: list[str] = []

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
            if isinstance(sink, Upsert) and sink.order is not None and self.source.tombstones == "delete":
                raise ValueError(
                    f"sinks: Upsert {sink.name!r} has an order column, and tombstones have no order: "
                    'leave order out, or let tombstones="dead_letter"'
                )
            if isinstance(sink, Upsert) and sink.order is None:
                if not sink.keys or {c.name for c in sink.keys} != {c.name for c in self.source.key_columns}:
                    raise ValueError(
                        f"sinks: Upsert {sink.name!r} has no order column, so its key must be the Kafka key: "
                        "declare key in Topic with the same name, or give order"
                    )
        for gate in self.gates:
            if isinstance(gate, MaxChange) and gate.sink not in {sink.name for sink in self.sinks}:
                raise ValueError(f"gates: MaxChange names {gate.sink!r}, which is no sink of this pipeline")
        if len({gate.name for gate in self.gates}) < len(self.gates):
            raise ValueError("gates: two gates have one name")
        if self.plan == "interval" and self.schedule is None:
            raise ValueError('plan: "interval" needs a schedule, whose intervals the runs take')
        if self.max_records > self.slice_records * 1000:
            raise ValueError("slice_records: more than 1,000 slices in a transaction; make slices larger")
        return self

    def sink(self, name: str) -> Append | Accumulate | Upsert:
        """The sink with this name; KeyError if there is none."""
        return {sink.name: sink for sink in self.sinks}[name]

    @property
    def plan_hash(self) -> str:
        """A hash of what the spec says about data: not of schedules, tags or limits."""
        said = self.model_dump_json(include={"name", "source", "transform", "sinks"})
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def load_transform(self):
        """The transform function; SpecError if it cannot be imported."""
        module, _, function = self.transform.partition(":")
        try:
            return getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise SpecError(f"Pipeline.transform: {self.transform!r} cannot be imported: {error}") from error

    @property
    def code_hash(self) -> str:
        """A hash of the spec, the transform's module and what that imports of its own package, as they are on disk."""
        source = code.hash_of(self.transform.partition(":")[0])
        return hashlib.sha256(f"{self.plan_hash} {source}".encode()).hexdigest()[:16]
