"""What a schema offers to columns: of each field the type that holds it exactly, or the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ratchet.spec.columns import DEEPEST, IDENTIFIER, Column, FieldPath
from ratchet.spec.types import (
    Array,
    Binary,
    Date,
    Decimal,
    Floating,
    Integer,
    Json,
    Map,
    Member,
    String,
    Struct,
    Time,
    Timestamp,
    Type,
    Uuid,
    quoted,
)

Path = tuple[str, ...]
Offered = tuple[Type, bool]
"""(the type that holds a field, whether it may be null)."""

WITHIN = "[]"
"""Stands in a path for an element of an array, or a value of a map."""
_INSTEAD = 'declare a column as: name type from "…"'
OWN_KIND = "it is within one of its own kind; declare it as json"
_DIGITS = {16: 5, 32: 10, 64: 19}
"""So many digits has a whole number of so many bits."""


class Unkept(Exception):
    """No type holds the field exactly; its text says why."""


@dataclass(frozen=True)
class Remark:
    """What a person should know of a field before the columns are committed."""

    path: Path
    said: str
    left_out: bool

    def __str__(self) -> str:
        path = "".join(f"{'' if name == WITHIN or not i else '.'}{_shown(name)}" for i, name in enumerate(self.path))
        return f"{path} is left out: {self.said}" if self.left_out else f"{path}: {self.said}"


def _shown(name: str) -> str:
    return name if name == WITHIN else quoted(name)


@dataclass(frozen=True)
class Offer:
    """The fields of a schema's values.

    `also` has, by path, classes of further types that a person may choose. `later` has the fields that are null only in
    what was written by a schema without them. Of values that are no record, `is_whole` is true and the only member is
    the value.
    """

    members: tuple[Member, ...]
    remarks: tuple[Remark, ...] = ()
    also: Mapping[Path, tuple[type[Type], ...]] = field(default_factory=dict[Path, "tuple[type[Type], ...]"])
    later: frozenset[Path] = frozenset()
    is_whole: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a new spec, in the order of the fields."""
        named = {member.name: column_name(member.name) for member in self.members}
        return tuple(
            Column(name, member.type, member.nullable, None if name == member.name else FieldPath((member.name,)))
            for member in self.members
            if (name := named[member.name]) is not None
        )

    def at(self, path: Path) -> Member | None:
        """The field that a path leads to, None where there is none; what is within JSON may be anything."""
        first, *rest = (self.members[0].name,) if self.is_whole and len(path) == 1 else path
        found = next((member for member in self.members if member.name == first), None)
        for name in rest:
            match found and found.type:
                case Struct(members):
                    found = next((member for member in members if member.name == name), None)
                case Map(value):
                    found = Member(name, value)
                case Json():
                    found = Member(name, Json())
                case _:
                    return None
        return found

    def within(self, path: Path) -> list[Path]:
        """The fields of the record that a path leads to, `()` to the value itself; those with a type come first."""
        of = self.at(path) if path else None
        members = self.members if not path else of.type.members if of and isinstance(of.type, Struct) else ()
        lost = [of.path for of in self.remarks if of.left_out and of.path[:-1] == path]
        return [*((*path, member.name) for member in members), *lost]

    def leaves_out(self, path: Path) -> bool:
        """Whether the field is there, or what it is within, and is left out."""
        return any(of.left_out and of.path == path[: len(of.path)] for of in self.remarks)

    def fits(self, path: Path, kind: Type, offered: Type) -> bool:
        """Whether a column of this type keeps what the field at the path offers."""
        return holds(kind, offered) or isinstance(kind, self.also.get(path, ()))


class Offering:
    """Gathers what there is to say of the fields of a schema, while a caller goes through them."""

    def __init__(self) -> None:
        self._remarks: list[Remark] = []
        self._also: dict[Path, tuple[type[Type], ...]] = {}
        self._later: set[Path] = set()

    def later(self, path: Path) -> None:
        """Note that the schema has a value for the field always, and one before it may have lacked the field."""
        self._later.add(path)

    def remark(self, path: Path, said: str) -> None:
        self._remarks.append(Remark(path, said, False))

    def also(self, path: Path, *kinds: type[Type]) -> None:
        self._also[path] = kinds

    def members(self, path: Path, fields: Iterable[tuple[str, Callable[[Path], Offered]]]) -> tuple[Member, ...]:
        """The fields of a record at a path, without those that nothing holds, of which it is noted why."""
        found: dict[str, Member] = {}
        for name, offered in fields:
            at = (*path, name)
            try:
                if len(path) > DEEPEST:
                    raise Unkept(f"it is within more than {DEEPEST} types; declare one around it as json")
                key = name.lower() if path else column_name(name)
                if key is None:
                    raise Unkept(f"its name makes no column; {_INSTEAD}")
                if key in found:
                    raise Unkept(f"its name and that of {quoted(found[key].name)} make one; {_INSTEAD}")
                kind, nullable = offered(at)
            except Unkept as why:
                self._remarks.append(Remark(at, str(why), True))
                continue
            found[key] = Member(name, kind, nullable)
        return tuple(found.values())

    def struct(self, path: Path, fields: Iterable[tuple[str, Callable[[Path], Offered]]]) -> Struct:
        """The same as a type; Unkept where no field is left."""
        members = self.members(path, fields)
        if not members:
            raise Unkept("it has no field that can be kept")
        return Struct(members)

    def one_of(self, kinds: list[Type], said: str) -> Type:
        """The one of several types that holds the others; Unkept where none does, with what the field is."""
        for kind in kinds:
            if all(holds(kind, other) for other in kinds):
                return kind
        raise Unkept(f"it is {said}, and no type holds all of them; declared as json it is kept as each was sent")

    def made(self, members: tuple[Member, ...], is_whole: bool = False) -> Offer:
        return Offer(members, tuple(self._remarks), self._also, frozenset(self._later), is_whole)


def column_name(name: str) -> str | None:
    """The column that a field of such a name becomes, `customer_name` of `customerName`; None where that is no name."""
    made = re.sub(r"\W", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).lower()
    return made if IDENTIFIER.fullmatch(made) else None


def holds(kind: Type, offered: Type) -> bool:
    """Whether a column keeps every value that a field offers, or was declared for what its texts say."""
    match kind, offered:
        case Json(), _:
            return True
        case Integer(bits), Integer(other):
            return bits >= other
        case Decimal(precision, scale), Integer(bits):
            return precision - scale >= _DIGITS[bits]
        case Decimal(precision, scale), Decimal(digits, behind):
            return scale >= behind and precision - scale >= digits - behind
        case Floating(bits), Floating(other) | Integer(other):
            return bits >= other if isinstance(offered, Floating) else bits > other
        case Timestamp(), Timestamp():
            return True
        case Timestamp(unit, _), Integer():
            return unit is not None
        case ((Decimal() | Date() | Time() | Timestamp(None, _) | Uuid()), String()):
            return True
        case ((String() | Binary()), Uuid()):
            return True
        case (Array(inner), Array(of)) | (Map(inner), Map(of)):
            return holds(inner, of)
        case Map(inner), Struct(members):
            return all(holds(inner, member.type) for member in members)
        case Struct(members), Struct(others):
            known = {member.name: member for member in others}
            return all(
                (of := known.get(member.name)) is not None
                and holds(member.type, of.type)
                and (member.nullable or not of.nullable)
                for member in members
            )
        case _:
            return kind == offered
