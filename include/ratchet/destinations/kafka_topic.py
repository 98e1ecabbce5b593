"""KafkaTopic: a topic in Kafka, which gets rows as JSON or Avro, a transaction of the pipeline in one of Kafka's."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import field_validator, model_validator

from ratchet.destinations.dataset import Dataset
from ratchet.destinations.fitting import unfit_for_json, unfit_for_key
from ratchet.destinations.port import NONE, Destination, Outside, Owner, Registries
from ratchet.destinations.topic_schema import is_record, unfit_for_avro
from ratchet.spec.columns import Column
from ratchet.spec.destination import ReachedBy
from ratchet.spec.subscription import MARKS

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")
TopicFormat = Literal["json", "avro"]


class KafkaTopic(Destination, frozen=True):
    """A topic in Kafka, which gets every row of its sink as a record: a JSON object whose members are the columns, or
    a record of Avro whose fields are.

    The topic must exist, and is yours: pipelines may share it, and other producers may write there. Rows of one key are
    in the order of this pipeline's line; among those of several pipelines there is none, as in any topic.

    Of a sink with keys it gets the row of each key that a commit has touched, and a tombstone where it has none any
    more: what compaction leaves is the sink's table. The sink's key is that of the records.
    """

    can_revise: ClassVar[bool] = False
    kind: Literal["kafka_topic"] = "kafka_topic"
    key: str | None = None
    """The column that is the records' key, as UTF-8 text, which a topic's `key="id bigint"` reads; without one records
    have no key, and no order. Of a sink with keys nothing is said here: a key of one column is such a text, one of
    several a JSON object."""
    kafka: str | None = None
    """The id of the Airflow connection to Kafka; without it the pipeline's own."""
    format: TopicFormat = "json"
    """`"json"`; or `"avro"`, in the framing of a registry, by a schema that is made of the columns. Keys are texts in
    both."""
    registry: str | None = None
    """The id of the Airflow connection to the registry that gets the schema, as subject `NAME-value`; with Avro."""
    record: str | None = None
    """The full name of Avro's record, `"shop.Order"`, where others have written to the subject already; without it
    that of the topic."""

    @field_validator("name")
    @classmethod
    def _is_legal(cls, name: str) -> str:
        if not _LEGAL.fullmatch(name) or name in (".", ".."):
            raise ValueError(
                f"{name!r} is no name of a topic; use up to 249 of a to z, A to Z, 0 to 9, '.', '_' and '-'"
            )
        if name == MARKS:
            raise ValueError(f"{name!r} is the topic in which ratchet notes what it has sent; name another one")
        return name

    @field_validator("kafka")
    @classmethod
    def _is_named(cls, kafka: str | None) -> str | None:
        if kafka == "":
            raise ValueError("name the Airflow connection to Kafka, or leave it out")
        return kafka

    @model_validator(mode="after")
    def _has_a_registry_for_avro(self) -> KafkaTopic:
        if self.format == "avro" and not self.registry:
            raise ValueError(
                "registry: Avro is read by its schema; name the connection of the registry that gets it, as "
                'registry="orders_registry"'
            )
        for name in ("registry", "record") if self.format == "json" else ():
            if getattr(self, name) is not None:
                raise ValueError(f'{name}: that is of Avro; give format="avro", or leave it out')
        if self.record is not None and not is_record(self.record):
            raise ValueError(f"record: {self.record!r} is no full name of a record, such as shop.Order")
        return self

    @property
    def reached_by(self) -> ReachedBy:
        return "kafka"

    @property
    def registries(self) -> tuple[str, ...]:
        return () if self.registry is None else (self.registry,)

    @property
    def connection(self) -> str | None:
        return self.kafka

    @property
    def address(self) -> str:
        return f"{self.kafka or 'kafka'}:{self.name}"

    def dataset(self, by: str) -> Dataset:
        return Dataset.of_topic(json.loads(by)["bootstrap.servers"], self.name)

    def misfit(self, fields: Sequence[Column], key: Sequence[Column]) -> str | None:
        for column in fields:
            unfit = unfit_for_json(column.type)
            if unfit:
                return f"{self.address}: column {column.name!r}: {unfit}"
        unfit = unfit_for_avro(fields) if self.format == "avro" else None
        if unfit:
            return f"{self.address}: {unfit}"
        if self.key is None:
            return None
        if key:
            names = ", ".join(column.name for column in key)
            return f"{self.address}: the records' key is that of the sink: {names}; leave key out"
        keyed = self.keyed(fields)
        if keyed is None:
            known = ", ".join(column.name for column in fields)
            return f"{self.address}: key {self.key!r} is not one of columns: {known}"
        unfit = unfit_for_key(keyed)
        return f"{self.address}: key {self.key!r}: {unfit}" if unfit else None

    def keyed(self, fields: Sequence[Column]) -> Column | None:
        """The column that is the records' key."""
        return next((column for column in fields if column.name == self.key), None)

    @contextmanager
    def open(self, owner: Owner, by: str, registries: Registries = NONE) -> Generator[Outside]:
        # Specs are read without Kafka's clients.
        from ratchet.destinations.kafka_marks import Marks
        from ratchet.destinations.kafka_outside import TopicOutside
        from ratchet.formats.registry import Registry

        properties = json.loads(by)
        registry = None if self.registry is None else Registry(self.registry, registries[self.registry])
        with Marks(properties, f"{owner}: {self.address}") as marks:
            outside = TopicOutside(self, owner, properties, marks, registry)
            try:
                yield outside
            finally:
                outside.let_go()
