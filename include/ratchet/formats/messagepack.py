"""MessagePack, as a spec declares it; `objects` says what its values mean as columns.

- A value is one map and nothing behind it; of its names that are texts of UTF-8 the last of doubled ones counts, and
  all others name no field.
- Binary is bytes and no text, a text is no bytes.
- The extension for moments is a moment in UTC with all its digits; a field with one that no calendar has, or with any
  other extension, is none of any type, and harms nothing where no column takes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ratchet.formats.port import Decoded, Decoder, Format, NoRow, Use
from ratchet.spec.columns import Column

if TYPE_CHECKING:
    import pyarrow as pa

WANTED = "one MessagePack map"

_MOMENT = re.compile(
    rb"(?:\xd7|\xc7\x08|\xc8\x00\x08|\xc9\x00\x00\x00\x08)\xff(?=(.{4}))"
    rb"|(?:\xc7\x0c|\xc8\x00\x0c|\xc9\x00\x00\x00\x0c)\xff(?=(.{4}))",
    re.DOTALL,
)
"""Where a moment with nanoseconds may be; the same bytes may be a part of something else."""
_MAPS = {*range(0x80, 0x90), 0xDE, 0xDF}
_ARRAYS = {*range(0x90, 0xA0), 0xDC, 0xDD}
_EXTENSIONS = {*range(0xD4, 0xD9), 0xC7, 0xC8, 0xC9}


class MessagePack(Format, frozen=True):
    """Values are one MessagePack map each, whose names are texts; other fields are ignored."""

    kind: Literal["messagepack"] = "messagepack"

    @property
    def one_row(self) -> bool:
        return True

    def decoder(self, use: Use) -> Decoder:
        return MessagePackDecoder(self.written)


@dataclass(frozen=True)
class Extension:
    """Stands where a value has an extension that means nothing here."""

    said: str

    def __str__(self) -> str:
        return self.said


class MessagePackDecoder:
    """Reads maps by msgspec, and by parts those in which it would round a moment or find that it has none."""

    def __init__(self, columns: tuple[Column, ...]):
        from msgspec import Raw, msgpack

        from ratchet.formats.object_columns import ObjectColumns

        self.columns = columns
        self._read = msgpack.Decoder(ext_hook=_extension).decode
        self._fields = msgpack.Decoder(dict[object, Raw], ext_hook=_extension).decode
        self._items = msgpack.Decoder(list[Raw]).decode
        self._extension = msgpack.Decoder(msgpack.Ext).decode
        self._objects = ObjectColumns(columns, WANTED)

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        return self._objects.decoded([self._value(value) for value in values.to_pylist()])

    def _value(self, value: bytes) -> object:
        from msgspec import MsgspecError

        refused = (MsgspecError, ValueError, RecursionError, OverflowError)
        if not _may_have_nanoseconds(value):
            try:
                return self._read(value)
            except refused:
                # One of its moments may be what is wrong.
                pass
        try:
            return self._by_parts(value)
        except refused as error:
            return NoRow(f"the value: found {len(value)} bytes that are none ({error}), wanted {WANTED}")

    def _by_parts(self, sent: Any) -> object:
        """What `sent`, bytes or a msgspec.Raw, is; raises what msgspec raises where it is no MessagePack."""
        from ratchet.formats.fine import FineMoment

        begins = memoryview(sent)[0] if len(memoryview(sent)) else None
        if begins in _MAPS:
            return {name: self._by_parts(raw) for name, raw in self._fields(sent).items()}
        if begins in _ARRAYS:
            return [self._by_parts(raw) for raw in self._items(sent)]
        if begins not in _EXTENSIONS:
            return self._read(sent)
        found = self._extension(sent)
        if found.code != -1:
            return _extension(found.code, memoryview(found.data))
        try:
            return FineMoment.of(*_seconds_and_nanos(bytes(found.data)))
        except (ValueError, OverflowError):
            return Extension("an extension for moments that is none in the years 1 to 9999")


def _extension(code: int, data: memoryview) -> Extension:
    return Extension(f"an extension of type {code}")


def _may_have_nanoseconds(value: bytes) -> bool:
    """Whether there may be a moment with digits beyond microseconds, which msgspec would round."""
    if b"\xff" not in value:
        return False
    # In the shorter form the nanoseconds are the upper 30 of the 32 bits.
    return any(
        (int.from_bytes(short) >> 2 if (short := found[1]) is not None else int.from_bytes(found[2])) % 1000
        for found in _MOMENT.finditer(value)
    )


def _seconds_and_nanos(data: bytes) -> tuple[int, int]:
    """(seconds since 1970, nanoseconds) of the extension for moments; ValueError where it is none."""
    match len(data):
        case 4:
            return int.from_bytes(data), 0
        case 8:
            return int.from_bytes(data) & (1 << 34) - 1, int.from_bytes(data) >> 34
        case 12:
            return int.from_bytes(data[4:], signed=True), int.from_bytes(data[:4])
        case _:
            raise ValueError(data)
