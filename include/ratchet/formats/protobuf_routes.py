"""Ways through the messages of a type to the fields of columns, by the names in the .proto file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

DOCUMENTS = ("google.protobuf.Struct", "google.protobuf.Value")
"""Messages that are JSON: what is within them has names of its own."""


@dataclass(frozen=True)
class Route:
    """The fields on the way, each of the message before it, and the names within the last one, a map or a document."""

    fields: tuple[FieldDescriptor, ...]
    rest: tuple[str, ...] = ()


@dataclass(frozen=True)
class Astray:
    """A message on the way has no field of a name; `names` are those that it has."""

    said: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.said}; it has {', '.join(self.names)}" if self.names else self.said


def route_of(message: Descriptor, path: tuple[str, ...]) -> Route | Astray:
    """The way that a path leads."""
    fields: list[FieldDescriptor] = []
    at: Descriptor | None = message
    for depth, name in enumerate(path):
        known: Mapping[str, FieldDescriptor] = {} if at is None else at.fields_by_name
        if name not in known:
            return Astray(f"{_said(fields, message)} has no field {name!r}", tuple(known))
        field = known[name]
        fields.append(field)
        at, rest = field.message_type, path[depth + 1 :]
        is_document = at is not None and at.full_name in DOCUMENTS and not field.is_repeated
        if rest and (is_document or entry_of(field) is not None):
            return Route(tuple(fields), rest)
        if rest and field.is_repeated:
            return Astray(f"{field.full_name} is repeated, and has no field {rest[0]!r}", ())
    return Route(tuple(fields))


def entry_of(field: FieldDescriptor) -> Descriptor | None:
    """The message that an entry of a map is; None of a field that is none."""
    of = field.message_type
    return of if of is not None and of.GetOptions().map_entry else None


def _said(fields: list[FieldDescriptor], message: Descriptor) -> str:
    if not fields:
        return message.full_name
    return fields[-1].full_name if fields[-1].message_type is None else fields[-1].message_type.full_name
