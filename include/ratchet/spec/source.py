"""What a spec says of the topic that a pipeline reads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from ratchet.spec.columns import Column, FieldPath, parse_columns
from ratchet.spec.declaration import Declaration, column_list


class Json(Declaration, frozen=True):
    """Values are JSON in UTF-8 with these columns; other fields are ignored.

    With `rows="object"` a value is one object and gives one row; with `rows="array"` it is one array of objects, and
    each of them gives a row, numbered in `_n`.
    """

    columns: str = Field(kw_only=False)
    rows: Literal["object", "array"] = "object"
    _check = field_validator("columns")(column_list)

    @property
    def fields(self) -> tuple[Column, ...]:
        return parse_columns(self.columns)


class Topic(Declaration, frozen=True):
    """The Kafka topic that a pipeline reads.

    `key` declares the Kafka key: as one column (UTF-8 text of its type), or as Json with columns of its own.
    `tombstones` says what a record without a value is: a dead letter, or a deletion of its key. `reader` is the source
    that reads it: "columnar", or "spark" for Spark's own Kafka source, which is slower.
    """

    name: str = Field(kw_only=False, pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    value: Json
    key: Json | str | None = None
    tombstones: Literal["dead_letter", "delete"] = "dead_letter"
    reader: Literal["columnar", "spark"] = "columnar"

    @field_validator("key")
    @classmethod
    def _is_a_key(cls, key: Json | str | None) -> Json | str | None:
        if isinstance(key, str):
            columns = parse_columns(column_list(key))
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
