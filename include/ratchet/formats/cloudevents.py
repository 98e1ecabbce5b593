"""CloudEvents, as a spec declares them; `cloudevents_decoder` says what an event means."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, InstanceOf, SerializeAsAny, model_validator

from ratchet.formats.port import Decoder, Format, Use, decoder_of
from ratchet.spec.columns import Column, FieldPath, parse_columns
from ratchet.spec.source import DeclaredFormat

_ATTRIBUTE = re.compile("[a-z0-9]+")
_DATA = ("data", "data_base64")


class CloudEvents(Format, frozen=True):
    """Records are CloudEvents 1.0, whole in the value as JSON (structured mode), or with attributes in headers and data
    in the value (binary mode). Which, each record says itself, by its content-type."""

    kind: Literal["cloudevents"] = "cloudevents"
    columns: str = Field(kw_only=False)
    """The columns of attributes, as `"id string, type string, at timestamp from time, tenant string"`; extensions are
    attributes too."""
    data: SerializeAsAny[InstanceOf[DeclaredFormat]] | None = None
    """The format of the events' data, with columns of its own; without one the data is ignored."""

    @model_validator(mode="after")
    def _columns_are_attributes(self) -> CloudEvents:
        if not self.attributes:
            raise ValueError('columns: declare an attribute, for example CloudEvents("id string", data=Json(…))')
        for column in self.attributes:
            path = column.source
            assert isinstance(path, FieldPath)
            name, *inner = path.names
            if not inner and name in _DATA:
                raise ValueError(f"columns: {name!r} is no attribute; say data=Json(…), or another format")
            if inner or not _ATTRIBUTE.fullmatch(name):
                raise ValueError(
                    f"columns: column {column.name!r}: {path} is no attribute, whose names are a to z and 0 to 9; "
                    f"write {column.name} {column.type} from …"
                )
        if self.data is not None and self.data.deletes:
            raise ValueError(f"data: {type(self.data).__name__}(…) deletes rows, and an event's data is a row")
        names = {column.name.lower() for column in parse_columns(self.columns)}
        for column in () if self.data is None else self.data.fields:
            if column.name.lower() in names:
                raise ValueError(f"data: column {column.name!r} is declared of the attributes too")
        return self

    @property
    def attributes(self) -> tuple[Column, ...]:
        """The columns that come from attributes."""
        return tuple(column for column in parse_columns(self.columns) if isinstance(column.source, FieldPath))

    @property
    def fields(self) -> tuple[Column, ...]:
        return (*parse_columns(self.columns), *(() if self.data is None else self.data.fields))

    @property
    def connections(self) -> tuple[str, ...]:
        return () if self.data is None else self.data.connections

    @property
    def one_row(self) -> bool:
        return self.data is None or self.data.one_row

    def decoder(self, use: Use) -> Decoder:
        from ratchet.formats.cloudevents_decoder import CloudEventsDecoder

        # The headers of a record say nothing of its key, which is structured.
        return CloudEventsDecoder(
            self.attributes, None if self.data is None else decoder_of(self.data, use), by_headers=use.part == "value"
        )
