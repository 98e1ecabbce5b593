"""Columns beside the schemas of a registry: what a schema offers to a new spec, and how a spec differs from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from ratchet.errors import SettingsError, SpecError
from ratchet.formats.avro import Avro
from ratchet.formats.avro_schema import Unreadable
from ratchet.formats.json import Json
from ratchet.formats.offered import Offer, Path, Unkept, column_name
from ratchet.formats.protobuf import Protobuf
from ratchet.formats.registry import Registry, Version
from ratchet.spec.columns import Column, FieldPath
from ratchet.spec.pipeline import Pipeline
from ratchet.spec.source import DeclaredFormat
from ratchet.spec.types import Struct, Type
from ratchet.values.endpoint import Endpoint

Part = Literal["value", "key"]
Registered = Avro | Protobuf | Json
_FORMATS = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "Json"}


@dataclass(frozen=True)
class Drift:
    """One thing in which a spec's columns differ from a schema.

    `field` is the path of a field, as a spec has it behind `from`; `declared` is the column, None of a new field;
    `offered` is what the schema says of it, None of a field that is gone.
    """

    kind: Literal["new", "gone", "changed"]
    field: str
    declared: str | None
    offered: str | None

    def __str__(self) -> str:
        match self.kind:
            case "new":
                return f"new: {self.offered}"
            case "gone":
                return f"gone: the schema has no field {self.field}, from which comes: {self.declared}"
            case "changed":
                return f"changed: the schema has {self.field} as {self.offered}, and the spec: {self.declared}"


@dataclass(frozen=True)
class Compared:
    """How the columns of values, or of keys, differ from a version of a subject."""

    pipeline: str
    part: Part
    subject: str
    version: int
    schema_id: int
    drifts: tuple[Drift, ...]
    remarks: tuple[str, ...]
    """What there is to say of fields that are new."""


def lines_of(found: Compared) -> list[str]:
    """What a person reads of it."""
    about = f"{found.pipeline}: columns of the {found.part}"
    beside = f"version {found.version} of subject {found.subject} (schema {found.schema_id})"
    if not found.drifts and not found.remarks:
        return [f"{about} are those of {beside}"]
    said = "differ from" if found.drifts else "are those of"
    return [f"{about} {said} {beside}", *(f"  {each}" for each in (*found.drifts, *found.remarks))]


def offer_of(version: Version, message: str | None = None) -> Offer:
    """What a version's schema offers; of Protobuf its first message type, or the one of this full name.

    SpecError where it cannot be used, or its values are none that columns hold.
    """
    from ratchet.formats import avro_offer, json_schema_offer, protobuf_offer
    from ratchet.formats.avro_schema import declared
    from ratchet.formats.protobuf_schema import registered

    text, behind = version.schema.text, version.schema.behind()
    named: Mapping[str, str] = {each.name: each.text for each in behind}
    try:
        match version.schema.kind:
            case "AVRO":
                return avro_offer.offer_of(declared(text, [each.text for each in behind]))
            case "PROTOBUF":
                schema = registered(text, named)
                return protobuf_offer.offer_of(schema.at((0,)) if message is None else schema.message(message))
            case "JSON":
                return json_schema_offer.offer_of(text, named)
            case kind:
                raise Unkept(f"it is of {kind}")
    except (Unreadable, Unkept) as why:
        raise SpecError(f"{version} offers no columns: {why}") from why


def format_of(version: Version) -> str:
    """The name of the format that reads values by such a schema; SpecError where there is none."""
    kind = version.schema.kind
    if kind not in _FORMATS:
        raise SpecError(f"{version} is of {kind}, and columns come from schemas of {', '.join(_FORMATS)}")
    return _FORMATS[kind]


def messages_of(version: Version) -> tuple[str, ...]:
    """The full names of the message types of a schema of Protobuf, SpecError where it cannot be used; of another one
    none.
    """
    from ratchet.formats.protobuf_schema import registered

    if version.schema.kind != "PROTOBUF":
        return ()
    try:
        return registered(version.schema.text, {each.name: each.text for each in version.schema.behind()}).own
    except Unreadable as why:
        raise SpecError(f"{version} offers no columns: {why}") from why


def compared(
    spec: Pipeline, endpoints: Mapping[str, Endpoint], subjects: Mapping[Part, str], since: Mapping[Part, int]
) -> list[Compared]:
    """Each part of a pipeline's records that a registry has schemas of, beside the newest one.

    `subjects` has the subjects that are not called `TOPIC-value` and `TOPIC-key`. Fields that the version `since` of a
    subject had already are not new. SettingsError where no part has a registry, or the registry has no such subject.
    """
    source = spec.source
    given: dict[Part, DeclaredFormat | str | None] = {"value": source.value, "key": source.key}
    parts: dict[Part, Registered] = {
        p: of for p, of in given.items() if isinstance(of, Avro | Protobuf | Json) and of.registry is not None
    }
    if not parts:
        raise SettingsError(
            f"{spec.name}: neither its values nor its keys are an Avro(…), Protobuf(…) or Json(…) with a registry"
        )
    for part in {*subjects, *since} - parts.keys():
        raise SettingsError(f"{spec.name}: its {part} has no schema in a registry; leave out what is said of it")
    found: list[Compared] = []
    for part, declared in parts.items():
        connection = cast(str, declared.registry)
        registry = Registry(connection, endpoints[connection])
        subject = subjects.get(part, f"{source.name}-{part}")
        newest = registry.version(subject)
        _check_kind(spec, part, declared, newest)
        known = offer_of(registry.version(subject, since[part]), _message(declared)) if part in since else None
        found.append(_compared(spec, part, declared, newest, known))
    return found


def _check_kind(spec: Pipeline, part: Part, declared: Registered, newest: Version) -> None:
    kind = _FORMATS.get(newest.schema.kind, newest.schema.kind)
    if kind != type(declared).__name__:
        raise SpecError(f"{spec.name}: its {part} is {type(declared).__name__}(…), and {newest} is of {kind}")


def _message(declared: Registered) -> str | None:
    return declared.message if isinstance(declared, Protobuf) else None


def _compared(spec: Pipeline, part: Part, declared: Registered, newest: Version, known: Offer | None) -> Compared:
    offer = offer_of(newest, _message(declared))
    taken = {column.source.names: column for column in declared.written if isinstance(column.source, FieldPath)}
    drifts = [drift for path, column in taken.items() if (drift := _drift(offer, path, column, declared))]

    new = [path for path in _untaken(offer, taken) if known is None or not (known.at(path) or known.leaves_out(path))]
    names = {column.name for column in spec.source.columns}
    for path in new:
        if not offer.leaves_out(path):
            drifts.append(Drift("new", str(FieldPath(path)), None, str(_column(offer, path, names))))
    remarks = tuple(str(each) for each in offer.remarks if any(each.path[: len(path)] == path for path in new))
    return Compared(spec.name, part, newest.subject, newest.number, newest.id, tuple(drifts), remarks)


def _untaken(offer: Offer, taken: Mapping[Path, Column]) -> list[Path]:
    """The fields that no column takes, those within records of which columns take others among them."""
    kept = [path for path in taken if path]
    for path, column in taken.items():
        kept += _declared_within(path, column.type)
    found: list[Path] = []
    left = [] if offer.is_whole else offer.within(())
    while left:
        path = left.pop(0)
        if any(len(each) > len(path) and each[: len(path)] == path for each in kept):
            left += offer.within(path)
        elif path not in kept:
            found.append(path)
    return found


def _declared_within(path: Path, kind: Type) -> Iterator[Path]:
    if isinstance(kind, Struct):
        for member in kind.members:
            yield (*path, member.name)
            yield from _declared_within((*path, member.name), member.type)


def _column(offer: Offer, path: Path, names: set[str]) -> Column:
    """A column for a field, of a name that no other column has."""
    member = offer.at(path)
    assert member is not None, "the schema has it"
    name = column_name(path[-1]) or "column"
    while name in names:
        name += "_"
    return Column(name, member.type, member.nullable, None if path == (name,) else FieldPath(path))


def _drift(offer: Offer, path: Path, column: Column, declared: Registered) -> Drift | None:
    if offer.leaves_out(path):
        # A person has chosen the type of what none holds exactly.
        return None
    found, field = offer.at(path), str(FieldPath(path))
    if found is None:
        return Drift("gone", field, str(column), None)
    reader_has_it = isinstance(declared, Avro) and declared.schema is not None
    lacks_null = found.nullable and path not in offer.later and not column.nullable and not reader_has_it
    if offer.fits(path, column.type, found.type) and not lacks_null:
        return None
    return Drift("changed", field, str(column), f"{found.type}" + ("" if found.nullable else " not null"))
