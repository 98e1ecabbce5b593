"""MessagePack, as a spec declares it; `objects` says what its values mean as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ratchet.formats.port import Decoded, Decoder, Format, NoRow, Use
from ratchet.spec.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

WANTED = "one MessagePack map"


class MessagePack(Format, frozen=True):
    """Values are one MessagePack map each, whose names are texts; other fields are ignored."""

    kind: Literal["messagepack"] = "messagepack"

    @property
    def one_row(self) -> bool:
        return True

    def decoder(self, use: Use) -> Decoder:
        return MessagePackDecoder(self.written)


class MessagePackDecoder:
    """Reads maps by msgspec: binary is bytes, the extension for moments is a moment in UTC."""

    def __init__(self, columns: tuple[Column, ...]):
        from msgspec import msgpack

        from ratchet.formats.objects import ObjectColumns

        self.columns = columns
        self._read = msgpack.Decoder().decode
        self._objects = ObjectColumns(columns, WANTED)

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        return self._objects.decoded([self._value(value) for value in values.to_pylist()])

    def _value(self, value: bytes) -> object:
        from msgspec import MsgspecError

        try:
            return self._read(value)
        except (MsgspecError, ValueError, RecursionError, OverflowError) as error:
            return NoRow(f"the value: found {len(value)} bytes that are none ({error}), wanted {WANTED}")
