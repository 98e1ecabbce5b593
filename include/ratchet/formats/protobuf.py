"""Protobuf, as a spec declares it; `protobuf_objects` says what the fields of a message mean."""

from __future__ import annotations

import re
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import field_validator, model_validator

from ratchet.formats.avro_schema import Unreadable
from ratchet.formats.port import Decoder, Format, Use
from ratchet.formats.protobuf_routes import Astray, route_of
from ratchet.formats.protobuf_schema import of_file, of_text, schema_of
from ratchet.spec.columns import FieldPath

_SPECS = "pipelines"
_FILES = (".proto", ".desc", ".binpb")
_NO_NAME = re.compile(r"[;{\s]")

# pydantic's own `schema` is deprecated, and nothing here uses it.
warnings.filterwarnings("ignore", 'Field name "schema" in "Protobuf" shadows', UserWarning)


class Protobuf(Format, frozen=True):
    """Values are one Protobuf message each; other fields of it are ignored, known to its type or not."""

    kind: Literal["protobuf"] = "protobuf"
    schema: str | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    """The text of a .proto file, or the name of a file of package `pipelines`: `"orders.proto"`, which may import
    others there, or `"orders.desc"`, a set that protoc has compiled. A spec keeps the set, in base64."""
    message: str | None = None
    """The full name of the message type, `"orders.v1.Order"`; beside a registry the only type that is taken, and all
    others are dead letters."""
    registry: str | None = None
    """The id of the connection of the registry by whose ids values name their schemas."""

    @field_validator("schema")
    @classmethod
    def _as_files(cls, said: str | None) -> str | None:
        """The compiled files, so that the spec's hash has what they say, and workers need no protoc for them."""
        if said is None:
            return None
        try:
            is_name = said.endswith(_FILES) and not _NO_NAME.search(said)
            return _of_file(said) if is_name else of_text(said)
        except Unreadable as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _is_written_by_some_schema(self) -> Protobuf:
        if self.registry is not None:
            if self.schema is not None:
                raise ValueError("give schema or registry, not both: a registry has the schema of each value")
            return self
        if self.schema is None:
            raise ValueError("give schema, by which values are written, or registry, the connection that knows it")
        if self.message is None:
            raise ValueError("message: beside schema give the message type, as message='orders.v1.Order'")
        try:
            message = schema_of(self.schema).message(self.message)
        except Unreadable as error:
            raise ValueError(f"message: {error}") from None
        for column in self.written:
            assert isinstance(column.source, FieldPath), "it is written"
            route = route_of(message, column.source.names)
            if isinstance(route, Astray):
                raise ValueError(f"columns: column {column.name!r}: {route}")
        return self

    @property
    def connections(self) -> tuple[str, ...]:
        return () if self.registry is None else (self.registry,)

    @property
    def one_row(self) -> bool:
        return True

    def decoder(self, use: Use) -> Decoder:
        from ratchet.formats.message_framing import MessageFraming
        from ratchet.formats.protobuf_decoder import ProtobufDecoder, RegisteredMessages, Written
        from ratchet.formats.registry import Registry
        from ratchet.formats.walked import OneSchema

        if self.registry is not None:
            registry = Registry(self.registry, use.endpoint(self.registry))
            known = RegisteredMessages(registry, MessageFraming(use.part), self.message, self.written)
            return ProtobufDecoder(self.written, known)
        assert self.schema is not None and self.message is not None, "both are there"
        message = schema_of(self.schema).message(self.message)
        return ProtobufDecoder(self.written, OneSchema(Written(message, self.written)))


def _of_file(name: str) -> str:
    """A file of the package of specs, as such a spec keeps it."""
    package = find_spec(_SPECS)
    folders = [Path(folder).resolve() for folder in (package and package.submodule_search_locations) or ()]
    for folder in folders:
        file = (folder / name).resolve()
        if file.is_relative_to(folder) and file.is_file():
            return of_file(file, folders)
    raise ValueError(f"package {_SPECS} has no file {name!r}")
