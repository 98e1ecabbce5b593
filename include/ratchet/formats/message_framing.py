"""The framing of registries for Protobuf: behind the id of a schema stands which of its message types a value is."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from ratchet.formats.framing import Framed, Framing
from ratchet.formats.port import NoRow
from ratchet.formats.registry import SchemaId
from ratchet.values.unfit import excerpt

_FIRST = (0,)
_DEEPEST = 100
"""So many message types may be within each other."""
_LONGEST = 5
"""An index has so many bytes at most."""


@dataclass(frozen=True)
class FramedMessage:
    """The id of the schema, or its GUID, the message type in its file by indexes or short name, and where the message
    begins.
    """

    schema: SchemaId
    message: tuple[int, ...] | str
    start: int


class MessageFraming:
    """Finds the schemas and message types of values, or of keys.

    Confluent's serializers write how many indexes there are, and each of them, as zigzag numbers; a single 0 stands for
    the first message type. Apicurio's name the type in a header beside that of its content id, and some in front of the
    message as well.
    """

    def __init__(self, part: Literal["value", "key"]):
        self._framing = Framing(part, "BINARY", messages=True)

    def framed(self, sent: pa.BinaryArray, headers: pa.ListArray | None) -> list[FramedMessage | NoRow]:
        """What each value says of its schema and message type."""
        pairs = zip(sent.to_pylist(), self._framing.framed(sent, headers), strict=True)
        return [of if isinstance(of, NoRow) else _message(value, of) for value, of in pairs]


def _message(value: bytes, of: Framed) -> FramedMessage | NoRow:
    if of.named is not None:
        if not of.named:
            return NoRow("the value: its headers name a schema by Apicurio's id, and no message type of it")
        return FramedMessage(of.schema, of.named, _behind_name(value, of.named.encode()))
    said, start = (value, of.start) if of.behind is None else (of.behind, 0)
    try:
        indexes, end = _indexes(said, start)
    except (ValueError, IndexError):
        shown = excerpt(said[start : start + 20].hex())
        return NoRow(
            f"the value: found {shown or 'nothing'} behind the id of schema {of.schema}, wanted the indexes of a "
            "message type"
        )
    return FramedMessage(of.schema, indexes, of.start if of.behind is not None else end)


def _indexes(said: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """(the indexes that begin there, where they end); ValueError or IndexError where there are none."""
    count, at = _number(said, at)
    if not 0 <= count <= _DEEPEST:
        raise ValueError(count)
    found: list[int] = []
    for _ in range(count):
        index, at = _number(said, at)
        found.append(index)
    return tuple(found) or _FIRST, at


def _number(said: bytes, at: int) -> tuple[int, int]:
    raw = 0
    for k in range(_LONGEST):
        byte = said[at + k]
        raw |= (byte & 127) << 7 * k
        if byte < 128:
            return (raw >> 1) ^ -(raw & 1), at + k + 1
    raise ValueError(raw)


def _behind_name(value: bytes, name: bytes) -> int:
    """Where the message begins: behind a message in front of it with nothing but this name, if there is one."""
    front = bytes([len(name) + 2, 0x0A, len(name), *name]) if len(name) < 126 else b""
    return len(front) if front and value.startswith(front) else 0
