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
from typing import TYPE_CHECKING, Any

from ratchet.formats.objects import shown
from ratchet.formats.protobuf_known import KNOWN, Odd, is_known
from ratchet.formats.protobuf_routes import Route, entry_of
from ratchet.formats.protobuf_types import BOOL, ENUM
from ratchet.spec.types import Integer, Type

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

Read = Callable[[Any], Any]


def library() -> Any:
    """The class whose methods all messages have.

    A method is called by it, as `library().HasField(message, name)`: a message may have a field of that name.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    return FileDescriptorProto.__mro__[1]


class _Absent:
    """Stands where a field is not there."""


_ABSENT = _Absent()


def names_of(enum: EnumDescriptor) -> dict[int, str]:
    """The name of each number, of several the first."""
    found: dict[int, str] = {}
    for value in enum.values:
        found.setdefault(value.number, value.name)
    return found


class Readers:
    """Makes what reads fields of the messages of one pool."""

    def __init__(self) -> None:
        self._has: Callable[[Any, str], bool] = library().HasField
        self._messages: dict[str, Read] = {}

    def column(self, kind: Type, route: Route) -> Read:
        """What reads the field of a column from the outermost message: None where one on the way is not there."""
        has = self._has
        *outer, last = route.fields
        is_number = isinstance(kind, Integer) and last.type == ENUM and not last.is_repeated
        read = self._field(last, is_number)

        def found(message: Any) -> Any:
            for step in outer:
                if not has(message, step.name):
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

    def _field(self, field: FieldDescriptor, is_number: bool = False) -> Read:
        """What reads a field from the message that has it; `is_number` leaves an enum the number that it is."""
        name, lost, has = field.name, _lost(field), self._has
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
            one = _as_it_is if is_number else self._one(field)

            def read(message: Any) -> Any:
                return one(getattr(message, name)) if has(message, name) else _ABSENT

        else:
            one = _as_it_is if is_number else self._one(field)

            def read(message: Any) -> Any:
                return one(getattr(message, name))

        return read if lost is None else lambda message: lost(message) or read(message)

    def _one(self, field: FieldDescriptor) -> Read:
        """What reads one value of a field."""
        if field.enum_type is not None:
            names, said = names_of(field.enum_type), field.enum_type.full_name
            return lambda number: names.get(number) or Odd(f"the number {number}, which {said} has no name for")
        return _as_it_is if field.message_type is None else self._message(field.message_type)

    def _message(self, message: Descriptor) -> Read:
        name = message.full_name
        if is_known(message):
            return KNOWN[name]
        if name not in self._messages:
            fields: list[tuple[str, Read]] = []

            def read(value: Any) -> Any:
                cells = ((each, of(value)) for each, of in fields)
                return {each: cell for each, cell in cells if cell is not _ABSENT}

            # Before its fields, one of which may be of its own type.
            self._messages[name] = read
            fields += [(each.name, self._field(each)) for each in message.fields]
        return self._messages[name]


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


def _as_it_is(value: Any) -> Any:
    return value


def _key(key: bool) -> str:
    return "true" if key else "false"
