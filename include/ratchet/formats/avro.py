"""Avro's binary form, as a spec declares it; `avro_decoder` says what a value means."""

from __future__ import annotations

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import field_validator, model_validator

from ratchet.formats.avro_schema import Unreadable, reader_of, schema_of
from ratchet.formats.port import Decoder, Format, Use

_SPECS = "pipelines"
_FILE = ".avsc"

# pydantic's own `schema` is deprecated, and nothing here uses it.
warnings.filterwarnings("ignore", 'Field name "schema" in "Avro" shadows', UserWarning)


class Avro(Format, frozen=True):
    """Values are one Avro record each, in the binary form; other fields of it are ignored. A value that is no record is
    that of the only column."""

    kind: Literal["avro"] = "avro"
    schema: str | None = None  # pyright: ignore[reportIncompatibleMethodOverride]
    """The schema, as JSON or as the name of a file of package `pipelines`, `"orders.avsc"`. Without a registry values
    are written by it; with one it is the reader's schema, to which what was written by others is resolved."""
    registry: str | None = None
    """The id of the connection of the registry by whose ids values name their schemas."""

    @field_validator("schema")
    @classmethod
    def _as_json(cls, said: str | None) -> str | None:
        """The schema's own text in one form, so that the spec's hash has what it says, and not how it is laid out."""
        if said is None:
            return None
        text = said if said.lstrip()[:1] in ("{", "[", '"') else _of_file(said)
        try:
            meant = json.loads(text)
            reader_of(text)
        except RecursionError:
            raise ValueError("its types are within each other too often") from None
        except Unreadable as error:
            raise ValueError(str(error)) from None
        except ValueError as error:
            raise ValueError(f"it is no JSON: {error}") from None
        return json.dumps(meant, ensure_ascii=False, separators=(",", ":"))

    @model_validator(mode="after")
    def _is_written_by_some_schema(self) -> Avro:
        if self.schema is None and self.registry is None:
            raise ValueError("give schema, by which values are written, or registry, the connection that knows it")
        return self

    @property
    def connections(self) -> tuple[str, ...]:
        return () if self.registry is None else (self.registry,)

    @property
    def one_row(self) -> bool:
        return True

    def decoder(self, use: Use) -> Decoder:
        from ratchet.formats.avro_decoder import AvroDecoder, RegisteredSchemas, Written
        from ratchet.formats.framing import Framing
        from ratchet.formats.registry import Registry
        from ratchet.formats.walked import OneSchema

        if self.registry is not None:
            registry = Registry(self.registry, use.endpoint(self.registry))
            framing = Framing(use.part, "BINARY")
            return AvroDecoder(self.written, RegisteredSchemas(registry, framing, self.schema, self.written))
        assert self.schema is not None, "one of the two is there"
        return AvroDecoder(self.written, OneSchema(Written(schema_of(self.schema), None, self.written)))


def _of_file(name: str) -> str:
    """The text of a file of the package of specs."""
    if not name.endswith(_FILE):
        raise ValueError(f"it is neither JSON nor the name of a file of package {_SPECS} that ends with {_FILE}")
    package = find_spec(_SPECS)
    for folder in (package and package.submodule_search_locations) or ():
        file = (Path(folder) / name).resolve()
        if file.is_relative_to(Path(folder).resolve()) and file.is_file():
            return file.read_text(encoding="utf-8")
    raise ValueError(f"package {_SPECS} has no file {name!r}")
