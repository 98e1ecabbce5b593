"""What a spec says of the topic, or of the topics, that a pipeline reads."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, cast

from pydantic import Field, InstanceOf, SerializeAsAny, field_validator, model_validator

from ratchet.spec.columns import Column, FieldPath, parse_columns
from ratchet.spec.declaration import Declaration, column_list
from ratchet.spec.subscription import Subscription

Offsets = dict[int, int] | dict[str, dict[int, int]]
"""{partition: offset} of a topic; of several {topic: {partition: offset}}."""
Beginning = Literal["earliest", "latest"] | datetime | Offsets
"""Where a line begins, as a spec says it."""
_BEGINNINGS = 'give "earliest", "latest", a datetime with a time zone, or {partition: offset}'
_BY_TOPIC = "of several topics it is {topic: {partition: offset}}, which names each of them"
_MOST_PARTITIONS, _MOST_OFFSETS = 1_000_000, 2**63
_MOST_TOPICS = 2_000
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class DeclaredFormat(Declaration, ABC, frozen=True):
    """How values or keys are written, and the columns that they give.

    `kind` tells formats apart: an implementation gives it as its one legal value, so that the spec's hash has it.
    """

    kind: str
    columns: str = Field(kw_only=False)
    """The declared columns, as `"id bigint, at timestamp from order.at not null"`."""
    _check_columns = field_validator("columns")(column_list)

    @property
    def fields(self) -> tuple[Column, ...]:
        """All declared columns, those that come from other parts of the record among them."""
        return parse_columns(self.columns)

    @property
    def written(self) -> tuple[Column, ...]:
        """The columns that come from the bytes themselves, in order."""
        return tuple(column for column in self.fields if isinstance(column.source, FieldPath))

    @property
    def connections(self) -> tuple[str, ...]:
        """The ids of the Airflow connections to the servers that reading it asks."""
        return ()

    @property
    def deletes(self) -> bool:
        """Whether its values say themselves which rows are deleted."""
        return False

    @property
    @abstractmethod
    def one_row(self) -> bool:
        """Whether what it reads gives one row or an error, as a key must."""


class Topic(Declaration, frozen=True):
    """The Kafka topic that a pipeline reads, or several of one format."""

    name: str | tuple[str, ...] | None = Field(None, kw_only=False)
    """The topic's name in Kafka, or a list of names, as `["orders-eu", "orders-us"]`. One that comes to the list later
    joins the line."""
    pattern: str | None = None
    """Instead of names a regular expression, as Python has them, that matches the whole names of the topics. One that
    comes to Kafka later joins the line with the next run. Names that begin with `__` and `ratchet_marks` never match.
    """
    join: Literal["earliest", "latest"] = "earliest"
    """Where a topic begins that joins a line: `"earliest"`, where its logs do; `"latest"`, at the last stable offsets.
    """
    value: SerializeAsAny[InstanceOf[DeclaredFormat]]
    """The format of the values."""
    key: SerializeAsAny[InstanceOf[DeclaredFormat]] | str | None = None
    """The Kafka key: one column, as `"id bigint"`, whose value is sent as UTF-8 text, or a format with columns of its
    own."""
    tombstones: Literal["dead_letter", "delete"] = "dead_letter"
    """What a record without a value is: a dead letter, or a deletion of its key; it is nothing where the format itself
    says what is deleted."""
    reader: Literal["columnar", "spark"] = "columnar"
    """What reads the topic: ratchet's columnar reader, or Spark's own Kafka source, which is slower. Spark's source
    reads in any case by a connection that the columnar reader cannot use."""
    compacted: bool = False
    """Whether Kafka compacts the topic, which is then read as a snapshot by key: by `Upsert` sinks without an order,
    without a transform, with `tombstones="delete"`."""
    begin: Beginning = "earliest"
    """Where the line begins: `"earliest"`, where the logs do; `"latest"`, at the last stable offsets; a time, with a
    zone, at the first record of that time or later; or `{partition: offset}` with all partitions, of several topics
    `{topic: {partition: offset}}`. It is decided once, by the first run that hears Kafka, and means nothing to
    partitions that come later: of these all records are taken.
    """

    @field_validator("name", mode="before")
    @classmethod
    def _is_names(cls, name: object) -> object:
        """pydantic would say what each kind of value lacks."""
        if name is None:
            return None
        several = not isinstance(name, str)
        if several and not isinstance(name, list | tuple):
            raise ValueError(f"it is a {type(name).__name__}; give the name of a topic, or a list of names")
        names = tuple(cast("Sequence[object]", name)) if several else (name,)
        if not names:
            raise ValueError("the list is empty; name a topic, or give a pattern")
        for each in names:
            if not isinstance(each, str) or not _NAME.fullmatch(each):
                raise ValueError(f"{each!r} is no name of a topic: letters, digits, `.`, `_` and `-`, 249 at most")
            if names.count(each) > 1:
                raise ValueError(f"{each!r} is named twice")
        if len(names) > _MOST_TOPICS:
            raise ValueError(f"{len(names):,} topics are too many; a line has {_MOST_TOPICS:,} at most")
        return names[0] if len(names) == 1 else names

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        if pattern == "":
            raise ValueError("it is empty; give a regular expression that matches whole names, such as orders-.*")
        return pattern

    @field_validator("value", mode="before")
    @classmethod
    def _is_a_format(cls, value: object) -> object:
        """pydantic would say the name of a class that no user knows."""
        if not isinstance(value, DeclaredFormat):
            raise ValueError(f"it is a {type(value).__name__}; give a format such as Json(…)")
        return value

    @field_validator("key", mode="before")
    @classmethod
    def _is_a_key(cls, key: object) -> object:
        if isinstance(key, str):
            columns = parse_columns(column_list(key))
            if len(columns) != 1:
                raise ValueError('declare one column, for example key="customer_id bigint"; a key of JSON is a Json(…)')
            if columns[0].origin is not None:
                raise ValueError(f"column {columns[0].name!r} is the whole key, and comes from nothing else")
        elif isinstance(key, DeclaredFormat):
            if not key.one_row:
                raise ValueError(f"a key gives one row, and this {type(key).__name__}(…) may give none, or several")
            for column in key.fields:
                if column not in key.written:
                    raise ValueError(f"column {column.name!r} comes from the key, and not {column.origin}")
        elif key is not None:
            raise ValueError(f"it is a {type(key).__name__}; give one column, or a format such as Json(…)")
        return key

    @field_validator("begin", mode="before")
    @classmethod
    def _is_a_beginning(cls, begin: object) -> object:
        """pydantic would name each kind of value that it is not."""
        if isinstance(begin, datetime):
            if begin.utcoffset() is None:
                raise ValueError(f"{begin} has no time zone; {_BEGINNINGS}")
            try:
                return begin.astimezone(UTC)
            except OverflowError:
                raise ValueError(f"{begin} is no time in UTC, whose years are 1 to 9999") from None
        if isinstance(begin, Mapping):
            places = cast("Mapping[object, object]", begin)
            if not any(isinstance(value, Mapping) for value in places.values()):
                return _places(places)
            for topic, of in places.items():
                if not isinstance(topic, str) or not isinstance(of, Mapping):
                    raise ValueError(f"{topic!r}: {of!r} is not {{partition: offset}} of a topic; {_BY_TOPIC}")
                _places(cast("Mapping[object, object]", of))
            return places
        if begin not in ("earliest", "latest"):
            raise ValueError(f"it is {begin!r}; {_BEGINNINGS}")
        return begin

    @model_validator(mode="after")
    def _names_topics(self) -> Topic:
        if (self.name is None) == (self.pattern is None):
            raise ValueError('give either the name of a topic, or a list of names, or pattern="…"')
        if isinstance(self.begin, dict):
            by_topic = any(isinstance(of, dict) for of in self.begin.values())
            if by_topic != self.is_several:
                raise ValueError(f"begin: {_BY_TOPIC if self.is_several else 'of one topic it is {partition: offset}'}")
            if self.pattern is None and by_topic and set(self.begin) != set(self.names):
                raise ValueError(f"begin: {_BY_TOPIC}")
        return self

    @model_validator(mode="after")
    def _deletions_need_a_key(self) -> Topic:
        if self.tombstones == "delete" and self.value.deletes:
            kind = type(self.value).__name__
            raise ValueError(f'tombstones="delete": a {kind}(…) says itself what is deleted; leave tombstones out')
        if self.tombstones == "delete" and self.key is None:
            raise ValueError('tombstones="delete" needs key: a deletion names its row by the Kafka key')
        declared = {c.name.lower() for c in self.value.fields}
        for column in self.key_columns:
            if column.name.lower() in declared:
                raise ValueError(f"key: column {column.name!r} is declared in value too")
        return self

    @model_validator(mode="after")
    def _is_read_by_key(self) -> Topic:
        """Of a compacted topic only what does not depend on when Kafka compacts it."""
        if not self.compacted:
            return self
        if self.is_several:
            raise ValueError(
                "compacted: it is one topic, since among several a key has no order; give each a pipeline of its own"
            )
        if self.value.deletes or not self.value.one_row:
            kind = type(self.value).__name__
            raise ValueError(
                f"compacted: of a value this {kind}(…) may give no row, or several, and which values are left depends "
                "on when Kafka compacts; give a format that has one row a value, such as Json(…)"
            )
        if self.tombstones != "delete":
            raise ValueError('compacted: there a record without a value deletes its key; give tombstones="delete"')
        if self.reader != "columnar":
            raise ValueError(
                "compacted: Spark's own Kafka source takes what compaction removed at the end of a range for a loss; "
                "leave reader out"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its topics, in order; none where it has a pattern."""
        if self.name is None:
            return ()
        return (self.name,) if isinstance(self.name, str) else self.name

    @property
    def is_several(self) -> bool:
        """Whether it may be more than one topic."""
        return not isinstance(self.name, str)

    @property
    def subscription(self) -> Subscription:
        """Which topics it means."""
        return Subscription(self.names, self.pattern, self.compacted)

    @property
    def title(self) -> str:
        """How people read it: a name, names, or the pattern."""
        return self.subscription.title

    def wants(self, name: str) -> bool:
        """Whether a topic of this name is one of it."""
        return self.subscription.wants(name)

    @property
    def deletes(self) -> bool:
        """Whether some of its records are deletions, so that rows have a column that says so."""
        return self.tombstones == "delete" or self.value.deletes

    @property
    def connections(self) -> tuple[str, ...]:
        """The ids of the Airflow connections that its formats name, each once."""
        of_key = () if self.key is None or isinstance(self.key, str) else self.key.connections
        return tuple(dict.fromkeys((*self.value.connections, *of_key)))

    @property
    def rule(self) -> str:
        """`begin` as text, by which it is told from another one."""
        match self.begin:
            case datetime():
                return self.begin.isoformat()
            case dict():
                return str(_sorted(self.begin))
            case _:
                return self.begin

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns that come from the key; none if it is not declared."""
        if self.key is None:
            return ()
        return parse_columns(self.key) if isinstance(self.key, str) else self.key.fields

    @property
    def columns(self) -> tuple[Column, ...]:
        """All declared columns, in the order in which a transform sees them."""
        return (*self.value.fields, *self.key_columns)


def _sorted(of: Offsets) -> dict[str | int, object]:
    """In an order that does not depend on how it was written."""
    return {key: dict(sorted(at.items())) if isinstance(at, dict) else at for key, at in sorted(of.items())}


def _places(begin: Mapping[object, object]) -> Mapping[object, object]:
    """Check {partition: offset}; pydantic would take texts and booleans for numbers."""
    if not begin:
        raise ValueError(f"no partition is named; {_BEGINNINGS}")
    for partition, offset in begin.items():
        if type(partition) is not int or not 0 <= partition < _MOST_PARTITIONS:
            raise ValueError(f"{partition!r} is no number of a partition; {_BEGINNINGS}")
        if type(offset) is not int or not 0 <= offset < _MOST_OFFSETS:
            raise ValueError(f"{offset!r} is no offset of partition {partition}; {_BEGINNINGS}")
    return begin
