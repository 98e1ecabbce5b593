"""KafkaTopic: a topic in Kafka, which gets rows as JSON, a transaction of the pipeline in one of Kafka's."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from pydantic import field_validator

from ratchet.destinations.dataset import Dataset
from ratchet.destinations.fitting import unfit_for_json, unfit_for_key
from ratchet.destinations.port import Destination, Outside, Owner
from ratchet.spec.columns import Column
from ratchet.spec.destination import ReachedBy
from ratchet.spec.subscription import MARKS

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class KafkaTopic(Destination, frozen=True):
    """A topic in Kafka, which gets every row of its sink as a record, a JSON object whose members are the columns.

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

    @property
    def reached_by(self) -> ReachedBy:
        return "kafka"

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
    def open(self, owner: Owner, by: str) -> Generator[Outside]:
        # Specs are read without Kafka's clients.
        from ratchet.destinations.kafka_marks import Marks
        from ratchet.destinations.kafka_outside import TopicOutside

        properties = json.loads(by)
        with Marks(properties, f"{owner}: {self.address}") as marks:
            outside = TopicOutside(self, owner, properties, marks)
            try:
                yield outside
            finally:
                outside.let_go()
