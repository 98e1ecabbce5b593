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

    @property
    def one_row(self) -> bool:
        return self.rows == "object"

    def decoder(self, use: Use) -> Decoder:
        from ratchet.formats.json_decoder import JsonDecoder

        return JsonDecoder(self.written, self.rows)
