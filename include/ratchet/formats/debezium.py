"""Change events of Debezium, as a spec declares them; `debezium_decoder` says what they mean."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator, model_validator

from ratchet.formats.port import Decoder, Format, Use
from ratchet.spec.columns import Column, FieldPath, parse_columns
from ratchet.spec.declaration import column_list


class Debezium(Format, frozen=True):
    """Values are change events of Debezium: in JSON, with their schema in them or without, or in Avro by a registry.

    An insert, an update and a record of a snapshot give the row after it; a deletion deletes the row before it.
    Tombstones and messages give no row, a truncation is a dead letter.
    """

    kind: Literal["debezium"] = "debezium"
    envelope: str = ""
    """Columns of the event besides those of the source's row, as `"lsn bigint from source.lsn not null"`. `_binlog` is
    the place in the binary log of MySQL or MariaDB as a number, `"place decimal(38,0) from _binlog not null"`."""
    registry: str | None = None
    """The id of the connection of the registry by whose ids values name their schemas of Avro."""
    decimals: Literal["precise", "double", "string"] = "precise"
    """The connector's `decimal.handling.mode`, where events have no schema in them."""
    scales: dict[str, int] = {}
    """{column: its scale in the source} of precise decimals, where events have no schema in them and it is another one
    than the declared type's."""
    times: Literal["millis", "micros", "nanos"] | None = None
    """The unit of times of day, where events have no schema in them."""

    @field_validator("envelope")
    @classmethod
    def _check_envelope(cls, envelope: str) -> str:
        return column_list(envelope) if envelope else envelope

    @model_validator(mode="after")
    def _fits(self) -> Debezium:
        own = {column.name.lower() for column in parse_columns(self.columns)}
        for column in self.enveloping:
            if column.name.lower() in own:
                raise ValueError(f"envelope: column {column.name!r} is declared in columns too")
            if not isinstance(column.source, FieldPath):
                raise ValueError(f"envelope: column {column.name!r} is a part of the record; declare it in columns")
        taken: dict[tuple[str, ...], str] = {}
        for column in self.changing:
            assert isinstance(column.source, FieldPath)
            if column.source.names in taken:
                other = taken[column.source.names]
                raise ValueError(f"columns: {other!r} and {column.name!r} come from one field; make one of the other")
            taken[column.source.names] = column.name
        for name in self.scales:
            if name not in {column.name for column in self.changing}:
                raise ValueError(f"scales: {name!r} is not one of columns")
        return self

    @property
    def changing(self) -> tuple[Column, ...]:
        """The columns of the source's row."""
        return tuple(c for c in parse_columns(self.columns) if isinstance(c.source, FieldPath))

    @property
    def enveloping(self) -> tuple[Column, ...]:
        """The columns of the event."""
        return parse_columns(self.envelope) if self.envelope else ()

    @property
    def fields(self) -> tuple[Column, ...]:
        return (*parse_columns(self.columns), *self.enveloping)

    @property
    def connections(self) -> tuple[str, ...]:
        return () if self.registry is None else (self.registry,)

    @property
    def deletes(self) -> bool:
        return True

    @property
    def one_row(self) -> bool:
        return False

    def decoder(self, use: Use) -> Decoder:
        from ratchet.formats.avro_decoder import RegisteredSchemas
        from ratchet.formats.debezium_decoder import DebeziumDecoder
        from ratchet.formats.debezium_events import AvroEvents, JsonEvents
        from ratchet.formats.framing import Framing
        from ratchet.formats.registry import Registry

        if self.registry is None:
            return DebeziumDecoder(self, JsonEvents())
        registry = Registry(self.registry, use.endpoint(self.registry))
        schemas = RegisteredSchemas(registry, Framing(use.part, "BINARY"), None, ())
        return DebeziumDecoder(self, AvroEvents(schemas))
