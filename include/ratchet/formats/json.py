"""JSON in UTF-8, as a spec declares it; `json_decoder` says what a value means."""

from __future__ import annotations

from typing import Literal

from ratchet.formats.port import Decoder, Format


class Json(Format, frozen=True):
    """Values are JSON in UTF-8 with these columns; other fields are ignored.

    With `rows="object"` a value is one object and gives one row; with `rows="array"` it is one array of objects, and
    each of them gives a row, numbered in `_n`.
    """

    kind: Literal["json"] = "json"
    rows: Literal["object", "array"] = "object"

    @property
    def one_row(self) -> bool:
        return self.rows == "object"

    def decoder(self) -> Decoder:
        from ratchet.formats.json_decoder import JsonDecoder

        return JsonDecoder(self.written, self.rows)
