"""JSON in UTF-8, as a spec declares it; `json_decoder` says what a value means."""

from __future__ import annotations

from typing import Literal

from ratchet.formats.port import Decoder, Format, Use


class Json(Format, frozen=True):
    """Values are JSON in UTF-8 with these columns; other fields are ignored."""

    kind: Literal["json"] = "json"
    rows: Literal["object", "array"] = "object"
    """What a value is: `"object"`, which gives one row, or `"array"` of objects, each of which gives a row, numbered in
    `_n`."""

    registry: str | None = None
    """The id of the connection of the registry by whose ids values name their JSON Schema, in front of the JSON or in a
    header. The id must be there; the columns say what a value means."""

    @property
    def connections(self) -> tuple[str, ...]:
        return () if self.registry is None else (self.registry,)

    @property
    def one_row(self) -> bool:
        return self.rows == "object"

    def decoder(self, use: Use) -> Decoder:
        from ratchet.formats.json_decoder import JsonDecoder

        decoder = JsonDecoder(self.written, self.rows)
        if self.registry is None:
            return decoder
        from ratchet.formats.framing import Framing
        from ratchet.formats.registered_json import RegisteredJson
        from ratchet.formats.registry import Registry

        return RegisteredJson(decoder, Registry(self.registry, use.endpoint(self.registry)), Framing(use.part, "JSON"))
