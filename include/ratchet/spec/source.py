"""What a spec says of the topic that a pipeline reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.declaration import Declaration, column_list


class Json(Declaration, frozen=True):
    """Values are UTF-8 JSON objects with these columns; other fields are ignored."""

    columns: str = Field(kw_only=False)
    _check = field_validator("columns")(column_list)

    @property
    def fields(self) -> tuple[Column, ...]:
        return parse_columns(self.columns)


class Topic(Declaration, frozen=True):
    """The Kafka topic that a pipeline reads.

    `key` declares the Kafka key as one column (UTF-8 text of its type).
    `tombstones` says what a record without a value is: a dead letter, or a deletion of its key.
    """

    name: str = Field(kw_only=False, pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    value: Json
    key: str | None = None
    tombstones: Literal["dead_letter", "delete"] = "dead_letter"

    @field_validator("key")
    @classmethod
    def _one_key_column(cls, ddl: str | None) -> str | None:
        if ddl is not None and len(parse_columns(column_list(ddl))) != 1:
            raise ValueError('declare one column, for example key="customer_id bigint"')
        return ddl

    @model_validator(mode="after")
    def _deletions_need_a_key(self) -> Topic:
        if self.tombstones == "delete" and self.key is None:
            raise ValueError('tombstones="delete" needs key: a deletion names its row by the Kafka key')
        key = self.key_column
        if key is not None and key.name in {c.name for c in self.value.fields}:
            raise ValueError(f"key: column {key.name!r} is declared in value too")
        return self

    @property
    def key_column(self) -> Column | None:
        return parse_columns(self.key)[0] if self.key else None
