"""What the fields of messages of Protobuf mean: as Python has them, for `objects`; Google's library reads messages.

- A field that is not there, and whose presence is told, is null; within a message it is left out. Of one whose presence
  is not told it is the default of its type.
- An enum is the name of its number. A number without a name fits nothing, in a closed enum too, where Protobuf's
  libraries take the field for an unknown one.
- Maps have texts as names, in the order of their keys: on the wire they have none.
- Of messages that everybody knows, the meaning counts: moments, numbers, JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal as Exact
from typing import TYPE_CHECKING, Any

from ratchet.formats.avro_schema import decimal_of
from ratchet.formats.fine import FineMoment
from ratchet.formats.objects import shown
from ratchet.formats.protobuf_program import BINARY, BOOL, ENUM, INT32, INT64, STRING, UINT32
from ratchet.formats.protobuf_routes import Route, entry_of
from ratchet.spec.types import Integer, Type

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

Read = Callable[[Any], Any]

_LONGEST_SECONDS = 315_576_000_000
"""A Duration is up to 10,000 years."""
_SECOND = 1_000_000_000
_MOST_DIGITS, _MOST_BYTES = 1_000, 128
"""No decimal has a greater scale, or more bytes."""
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)


@dataclass(frozen=True)
class Odd:
    """Stands where a field means nothing; it fits no type."""

    said: str

    def __str__(self) -> str:
        return self.said


class _Absent:
    """Stands where a field is not there."""


_ABSENT = _Absent()


def is_moment(message: Descriptor) -> bool:
    """Whether it is Google's Timestamp, and not another message of that name."""
    return message.full_name == "google.protobuf.Timestamp" and _has(message, seconds=INT64, nanos=INT32)


def is_wrapper(message: Descriptor) -> bool:
    """Whether it is one of Google's wrappers, as Int64Value, which tells whether a value is there."""
    return message.full_name in _WRAPPERS and [each.name for each in message.fields] == ["value"]


def names_of(enum: EnumDescriptor) -> dict[int, str]:
    """The name of each number, of several the first."""
    found: dict[int, str] = {}
    for value in enum.values:
        found.setdefault(value.number, value.name)
    return found


class Readers:
    """Makes what reads fields of the messages of one pool."""

    def __init__(self) -> None:
        self._messages: dict[str, Read] = {}
        self._known: dict[str, tuple[dict[str, int], Read]] = {
            "google.protobuf.Timestamp": ({"seconds": INT64, "nanos": INT32}, _moment),
            "google.protobuf.Duration": ({"seconds": INT64, "nanos": INT32}, _duration),
            "google.protobuf.Struct": ({}, _struct),
            "google.protobuf.Value": ({}, _value),
            "google.protobuf.ListValue": ({}, _list),
            "google.type.Date": ({"year": INT32, "month": INT32, "day": INT32}, _date),
            "google.type.TimeOfDay": (dict.fromkeys(("hours", "minutes", "seconds", "nanos"), INT32), _time),
            "google.type.Decimal": ({"value": STRING}, _text),
            "confluent.type.Decimal": ({"value": BINARY, "precision": UINT32, "scale": INT32}, _decimal),
        }

    def column(self, kind: Type, route: Route) -> Read:
        """What reads the field of a column from the outermost message: None where one on the way is not there."""
        *outer, last = route.fields
        is_number = isinstance(kind, Integer) and last.type == ENUM and not last.is_repeated
        read = _plain(last) if is_number else self._field(last)

        def found(message: Any) -> Any:
            for step in outer:
                if not message.HasField(step.name):
                    return None
                message = getattr(message, step.name)
            value = read(message)
            for name in route.rest:
                if value is _ABSENT or value is None:
                    return None
                if not isinstance(value, dict):
                    return Odd(shown(value))
                value = value.get(name)
            return None if value is _ABSENT else value

        return found

    def _field(self, field: FieldDescriptor) -> Read:
        name, lost = field.name, _lost(field)
        entry = entry_of(field)
        if entry is not None:
            one = self._one(entry.fields_by_name["value"])
            key = _key if entry.fields_by_name["key"].type == BOOL else str

            def read(message: Any) -> Any:
                return {key(each): one(value) for each, value in sorted(getattr(message, name).items())}

        elif field.is_repeated:
            one = self._one(field)

            def read(message: Any) -> Any:
                return [one(each) for each in getattr(message, name)]

        elif field.has_presence:
            one = self._one(field)

            def read(message: Any) -> Any:
                return one(getattr(message, name)) if message.HasField(name) else _ABSENT

        else:
            one = self._one(field)

            def read(message: Any) -> Any:
                return one(getattr(message, name))

        return read if lost is None else lambda message: lost(message) or read(message)

    def _one(self, field: FieldDescriptor) -> Read:
        """What reads one value of a field."""
        if field.enum_type is not None:
            names, said = names_of(field.enum_type), field.enum_type.full_name
            return lambda number: names.get(number) or Odd(f"the number {number}, which {said} has no name for")
        return (lambda value: value) if field.message_type is None else self._message(field.message_type)

    def _message(self, message: Descriptor) -> Read:
        name = message.full_name
        shape, known = self._known.get(name, ({}, None))
        if known is not None and _has(message, **shape):
            return known
        if is_wrapper(message):
            return lambda value: value.value
        if name not in self._messages:
            fields: list[tuple[str, Read]] = []

            def read(value: Any) -> Any:
                cells = ((each, of(value)) for each, of in fields)
                return {each: cell for each, cell in cells if cell is not _ABSENT}

            # Before its fields, one of which may be of its own type.
            self._messages[name] = read
            fields += [(each.name, self._field(each)) for each in message.fields]
        return self._messages[name]


def _plain(field: FieldDescriptor) -> Read:
    """What reads the number of an enum."""
    lost = _lost(field)

    def read(message: Any) -> Any:
        is_there = not field.has_presence or message.HasField(field.name)
        return (lost and lost(message)) or (getattr(message, field.name) if is_there else _ABSENT)

    return read


def _lost(field: FieldDescriptor) -> Read | None:
    """What finds a number that a closed enum lacks, where the library has put it among unknown fields."""
    entry = entry_of(field)
    enum = (field if entry is None else entry.fields_by_name["value"]).enum_type
    if enum is None or not enum.is_closed:
        return None
    from google.protobuf.unknown_fields import UnknownFieldSet

    said, number = enum.full_name, field.number

    def read(message: Any) -> Odd | None:
        for each in UnknownFieldSet(message):
            if each.field_number == number:
                shown_ = f"the number {each.data}" if isinstance(each.data, int) else "a number"
                return Odd(f"{shown_}, which {said} has no name for")
        return None

    return read


def _has(message: Descriptor, **fields: int) -> bool:
    """Whether a message has these fields, by their types, each once."""
    known = message.fields_by_name
    return all(
        name in known and known[name].type == kind and not known[name].is_repeated for name, kind in fields.items()
    )


def _key(key: bool) -> str:
    return "true" if key else "false"


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


def _text(message: Any) -> Any:
    return message.value


def _decimal(message: Any) -> Any:
    if abs(message.scale) > _MOST_DIGITS or len(message.value) > _MOST_BYTES:
        return Odd(f"a decimal of {len(message.value)} bytes and scale {message.scale}")
    return decimal_of(message.value, message.scale)
