"""What a message type of Protobuf offers to columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ratchet.formats.offered import OWN_KIND, WITHIN, Offer, Offered, Offering, Path, Unkept
from ratchet.formats.protobuf_known import is_known, is_moment, is_wrapper
from ratchet.formats.protobuf_routes import entry_of
from ratchet.formats.protobuf_types import (
    BOOL,
    DOUBLE,
    ENUM,
    FIXED32,
    FIXED64,
    FLOAT,
    INT32,
    INT64,
    SFIXED32,
    SFIXED64,
    SINT32,
    SINT64,
    STRING,
    UINT32,
    UINT64,
)
from ratchet.spec import types
from ratchet.spec.types import Array, Decimal, Floating, Integer, Map, Struct, Timestamp, Type

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_PLAIN: dict[int, Type] = {
    **dict.fromkeys((INT32, SINT32, SFIXED32), types.INT),
    **dict.fromkeys((INT64, SINT64, SFIXED64, UINT32, FIXED32), types.BIGINT),
    **dict.fromkeys((UINT64, FIXED64), Decimal(20, 0)),
    BOOL: types.BOOLEAN,
    FLOAT: types.FLOAT,
    DOUBLE: types.DOUBLE,
    STRING: types.STRING,
    ENUM: types.STRING,
}
_DURATION = Decimal(21, 9)
"""10,000 years, to the nanosecond."""
_KNOWN: dict[str, Type] = {
    "google.protobuf.Duration": _DURATION,
    "google.protobuf.Struct": types.JSON,
    "google.protobuf.Value": types.JSON,
    "google.protobuf.ListValue": types.JSON,
    "google.type.Date": types.DATE,
    "google.type.TimeOfDay": types.TIME,
}


def offer_of(message: Descriptor) -> Offer:
    """The offer of a message type."""
    return _Reading().offer(message)


class _Reading:
    def __init__(self) -> None:
        self._offering = Offering()
        self._around: list[str] = []
        """The message types around the field that is looked at, by name."""

    def offer(self, message: Descriptor) -> Offer:
        return self._offering.made(self._offering.members((), self._fields(message)))

    def _fields(self, message: Descriptor) -> Iterator[tuple[str, Callable[[Path], Offered]]]:
        self._around.append(message.full_name)
        for each in message.fields:
            yield each.name, lambda at, of=each: self._field(of, at)
        self._around.pop()

    def _field(self, field: FieldDescriptor, path: Path) -> Offered:
        # A schema of before may lack any field, which then is null.
        if not field.has_presence:
            self._offering.later(path)
        entry = entry_of(field)
        if entry is not None:
            if entry.fields_by_name["key"].type != STRING:
                self._offering.remark(path, "its keys are no texts, and become such")
            return Map(self._one(entry.fields_by_name["value"], (*path, WITHIN))), True
        if field.is_repeated:
            return Array(self._one(field, (*path, WITHIN))), True
        return self._one(field, path), True

    def _one(self, field: FieldDescriptor, path: Path) -> Type:
        if field.message_type is not None:
            return self._message(field.message_type, path)
        if field.type == ENUM:
            self._offering.also(path, Integer)
        return _PLAIN.get(field.type, types.BINARY)

    def _message(self, message: Descriptor, path: Path) -> Type:
        name = message.full_name
        if is_moment(message):
            self._offering.remark(
                path, "strict refuses a moment with digits beyond microseconds; timestamp alone cuts them"
            )
            return Timestamp(strict=True)
        if is_wrapper(message):
            return _PLAIN.get(message.fields_by_name["value"].type, types.BINARY)
        if is_known(message) and name in _KNOWN:
            self._offering.also(path, *((Floating,) if _KNOWN[name] == _DURATION else ()))
            return _KNOWN[name]
        if is_known(message) and name.endswith(".Decimal"):
            raise Unkept("it is a decimal of any number of digits; declare it as decimal(p,s) with enough for yours")
        if name in self._around:
            raise Unkept(OWN_KIND)
        return self._struct(message, path)

    def _struct(self, message: Descriptor, path: Path) -> Struct:
        return self._offering.struct(path, self._fields(message))
