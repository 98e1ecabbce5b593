"""Messages that everybody knows: what they mean, where a schema has them as Google, or Confluent, has made them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal as Exact
from typing import TYPE_CHECKING, Any

from ratchet.formats.avro_schema import decimal_of
from ratchet.formats.fine import FineMoment
from ratchet.formats.protobuf_routes import entry_of
from ratchet.formats.protobuf_types import (
    BINARY,
    BOOL,
    DOUBLE,
    ENUM,
    FLOAT,
    INT32,
    INT64,
    STRING,
    UINT32,
    UINT64,
)

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_LONGEST_SECONDS = 315_576_000_000
"""A Duration is up to 10,000 years."""
_SECOND = 1_000_000_000
_MOST_DIGITS, _MOST_BYTES = 1_000, 128
"""No decimal has a greater scale, or more bytes."""
_G, _T = "google.protobuf.", "google.type."
_WRAPPERS = {
    f"{_G}{name}Value": kind
    for name, kind in {
        "Double": DOUBLE,
        "Float": FLOAT,
        "Int64": INT64,
        "UInt64": UINT64,
        "Int32": INT32,
        "UInt32": UINT32,
        "Bool": BOOL,
        "String": STRING,
        "Bytes": BINARY,
    }.items()
}
_SHAPES: dict[str, dict[str, int | str]] = {
    **{name: {"value": kind} for name, kind in _WRAPPERS.items()},
    f"{_G}Timestamp": {"seconds": INT64, "nanos": INT32},
    f"{_G}Duration": {"seconds": INT64, "nanos": INT32},
    f"{_G}Struct": {"fields": f"map {_G}Struct.FieldsEntry"},
    f"{_G}Struct.FieldsEntry": {"key": STRING, "value": f"{_G}Value"},
    f"{_G}Value": {
        "null_value": f"kind {ENUM}",
        "number_value": f"kind {DOUBLE}",
        "string_value": f"kind {STRING}",
        "bool_value": f"kind {BOOL}",
        "struct_value": f"kind {_G}Struct",
        "list_value": f"kind {_G}ListValue",
    },
    f"{_G}ListValue": {"values": f"repeated {_G}Value"},
    f"{_T}Date": {"year": INT32, "month": INT32, "day": INT32},
    f"{_T}TimeOfDay": {"hours": INT32, "minutes": INT32, "seconds": INT32, "nanos": INT32},
    f"{_T}Decimal": {"value": STRING},
    "confluent.type.Decimal": {"value": BINARY, "precision": UINT32, "scale": INT32},
}
"""What each of their fields is: its type or its message, behind `repeated`, `map` or the name of its oneof."""


@dataclass(frozen=True)
class Odd:
    """Stands where a field means nothing; it fits no type."""

    said: str

    def __str__(self) -> str:
        return self.said


def is_known(message: Descriptor) -> bool:
    """Whether it is such a message, and not another one of that name; so are those within it."""
    left, seen = [message], {message.full_name}
    while left:
        at = left.pop()
        known = {field.name: field for field in at.fields}
        for name, said in _SHAPES.get(at.full_name, {"": ""}).items():
            if name not in known or _shape(known[name]) != str(said):
                return False
            inner = known[name].message_type
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                left.append(inner)
    return True


def is_moment(message: Descriptor) -> bool:
    """Whether it is Google's Timestamp."""
    return message.full_name == f"{_G}Timestamp" and is_known(message)


def is_wrapper(message: Descriptor) -> bool:
    """Whether it is one of Google's wrappers, as Int64Value, which tells whether a value is there."""
    return message.full_name in _WRAPPERS and is_known(message)


def _shape(field: FieldDescriptor) -> str:
    kind = str(field.type) if field.message_type is None else field.message_type.full_name
    if field.is_repeated:
        return f"{'repeated' if entry_of(field) is None else 'map'} {kind}"
    return kind if field.containing_oneof is None else f"{field.containing_oneof.name} {kind}"


def _moment(message: Any) -> Any:
    try:
        return FineMoment.of(message.seconds, message.nanos)
    except (ValueError, OverflowError):
        return Odd(f"{message.seconds} s and {message.nanos} ns, which is no moment of the years 1 to 9999")


def _duration(message: Any) -> Any:
    seconds, nanos = message.seconds, message.nanos
    if abs(seconds) > _LONGEST_SECONDS or abs(nanos) >= _SECOND or seconds * nanos < 0:
        return Odd(f"{seconds} s and {nanos} ns, which is no duration")
    return Exact(seconds * _SECOND + nanos).scaleb(-9).normalize() if nanos else Exact(seconds)


def _struct(message: Any) -> Any:
    return {name: _value(each) for name, each in sorted(message.fields.items())}


def _value(message: Any) -> Any:
    match message.WhichOneof("kind"):
        case "null_value":
            return None
        case "number_value":
            number = message.number_value
            # JSON's 5 is sent as 5.0; beyond 2**53 a double does not say which whole number was meant.
            return int(number) if number.is_integer() and abs(number) <= 2**53 else number
        case "string_value":
            return message.string_value
        case "bool_value":
            return message.bool_value
        case "struct_value":
            return _struct(message.struct_value)
        case "list_value":
            return _list(message.list_value)
        case _:
            return Odd("a Value without one")


def _list(message: Any) -> Any:
    return [_value(each) for each in message.values]


def _date(message: Any) -> Any:
    try:
        return date(message.year, message.month, message.day)
    except (ValueError, OverflowError):
        return Odd(f"year {message.year}, month {message.month}, day {message.day}, which is no date")


def _time(message: Any) -> Any:
    parts = (message.hours, message.minutes, message.seconds, message.nanos)
    if all(0 <= part < most for part, most in zip(parts, (24, 60, 60, _SECOND), strict=True)):
        return "{:02}:{:02}:{:02}.{:09}".format(*parts).rstrip("0").rstrip(".")
    return Odd("{} h, {} min, {} s and {} ns, which is no time of a day".format(*parts))


def _own_value(message: Any) -> Any:
    return message.value


def _decimal(message: Any) -> Any:
    if abs(message.scale) > _MOST_DIGITS or len(message.value) > _MOST_BYTES:
        return Odd(f"a decimal of {len(message.value)} bytes and scale {message.scale}")
    return decimal_of(message.value, message.scale)


KNOWN: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_WRAPPERS, _own_value),
    f"{_G}Timestamp": _moment,
    f"{_G}Duration": _duration,
    f"{_G}Struct": _struct,
    f"{_G}Value": _value,
    f"{_G}ListValue": _list,
    f"{_T}Date": _date,
    f"{_T}TimeOfDay": _time,
    f"{_T}Decimal": _own_value,
    "confluent.type.Decimal": _decimal,
}
"""What reads them, by their full names."""
