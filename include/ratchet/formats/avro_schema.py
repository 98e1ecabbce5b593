"""Schemas of Avro, made ready for fastavro so that it rounds nothing, and guesses nothing.

- A decimal keeps all digits that were sent: fastavro rounds to the precision that the schema says.
- A UUID stays the text, or the bytes, that it is written as.
- A default of a reader's schema becomes what fastavro would have read: it takes the JSON as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_PREC, Context, Decimal
from typing import Any, cast

Node = dict[str, Any] | list[Any] | str
"""A part of a schema, as fastavro has parsed it; a text names a primitive type, or one that is declared elsewhere."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=MAX_PREC)
_CONVERTED = "__ratchet_converted"
"""Marks a field whose default is converted; fastavro takes any further name."""


class Unreadable(ValueError):
    """The schema cannot be used; its text says why."""


@dataclass(frozen=True, eq=False)
class Schema:
    """A schema, as fastavro reads by it; `named` has each type that is declared in it, or in what it refers to."""

    root: Node
    named: dict[str, Node]

    @property
    def name(self) -> str:
        """Its full name, of a type without one what it is."""
        return named(self.root)

    @property
    def is_record(self) -> bool:
        return isinstance(self.root, dict) and self.root.get("type") in ("record", "error")


def named(node: Node) -> str:
    """What an error calls a type."""
    match node:
        case str():
            return node
        case list():
            return f"a union of {len(node)} types"
        case _:
            return str(node.get("name") or node.get("logicalType") or node["type"])


def schema_of(text: str, references: Sequence[str] = ()) -> Schema:
    """The schema of its JSON text, made ready; `references` are those that it refers to, each behind those that it
    needs itself.

    Raises Unreadable.
    """
    schema = _parsed([*references, text], _without_uuids)
    for node in _nodes([schema.root, *schema.named.values()]):
        if node.get("logicalType") == "decimal" and "precision" in node:
            node["precision"] = MAX_PREC
    return schema


def declared(text: str, references: Sequence[str] = ()) -> Schema:
    """The schema as it was written, by which nothing is read; the rest as `schema_of`."""
    return _parsed([*references, text], lambda node: node)


def _parsed(texts: Sequence[str], made: Callable[[Any], Any]) -> Schema:
    from fastavro import parse_schema
    from fastavro.schema import SchemaParseException, UnknownType

    found: dict[str, Any] = {}
    root: Any = None
    try:
        for each in texts:
            root = parse_schema(made(json.loads(each)), named_schemas=found)
        return Schema(root, found)
    except UnknownType as error:
        raise Unreadable(f"it names a type {error.name}, which is not declared") from error
    except RecursionError:
        raise Unreadable("its types are within each other too often") from None
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(f"it is no schema of Avro: {error or type(error).__name__}") from error


def reader_of(text: str) -> Schema:
    """A reader's schema; raises Unreadable, also for a default that is none of its type."""
    schema = schema_of(text)
    for node in _nodes([schema.root, *schema.named.values()]):
        for field in node.get("fields", ()):
            if "default" in field and _CONVERTED not in field:
                try:
                    field["default"] = _default(schema, field["type"], field["default"])
                except (ValueError, TypeError, KeyError, OverflowError, AttributeError, ArithmeticError) as error:
                    raise Unreadable(f"the default of its field {field['name']} is none of its type") from error
                field[_CONVERTED] = True
    return schema


def _without_uuids(node: Any) -> Any:
    """The JSON of a schema, whose UUIDs are what they are written as."""
    match node:
        case dict():
            fields = cast("dict[str, Any]", node)
            drop = fields.get("logicalType") == "uuid"
            return {
                name: each if name == "default" else _without_uuids(each)
                for name, each in fields.items()
                if not (drop and name == "logicalType")
            }
        case list():
            return [_without_uuids(each) for each in cast("list[Any]", node)]
        case _:
            return node


def _nodes(within: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Each object of parsed schemas, once."""
    left, seen = list(within), set[int]()
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += cast("list[Any]", node)
        elif isinstance(node, dict) and id(cast("object", node)) not in seen:
            seen.add(id(cast("object", node)))
            fields = cast("dict[str, Any]", node)
            yield fields
            left += [fields[name] for name in ("type", "items", "values") if name in fields]
            left += [field["type"] for field in fields.get("fields", ())]


def _default(schema: Schema, kind: Node, said: Any) -> Any:
    """What fastavro would have read of a default; raises what conversions raise."""
    if isinstance(kind, str) and kind in schema.named:
        kind = schema.named[kind]
    if isinstance(kind, list):
        for branch in kind:
            try:
                return _default(schema, branch, said)
            except (ValueError, TypeError, KeyError, OverflowError, AttributeError, ArithmeticError):
                continue
        raise ValueError("it is of no branch")
    of = kind if isinstance(kind, str) else kind["type"]
    if isinstance(of, dict | list):
        return _default(schema, of, said)
    declared = {} if isinstance(kind, str) else kind
    logical = _logical(of, declared, said)
    if logical is not None:
        return logical
    match of, said:
        case "null", None:
            return None
        case ("boolean", bool()) | ("string", str()):
            return said
        case (("int" | "long"), int()) if not isinstance(said, bool):
            return said
        case (("float" | "double"), int() | float()) if not isinstance(said, bool):
            return float(said)
        case (("bytes" | "fixed"), str()):
            return said.encode("latin-1")
        case "enum", str() if said in declared["symbols"]:
            return said
        case "array", list():
            return [_default(schema, declared["items"], each) for each in cast("list[Any]", said)]
        case "map", dict():
            pairs = cast("dict[str, Any]", said).items()
            return {name: _default(schema, declared["values"], each) for name, each in pairs}
        case (("record" | "error"), dict()):
            given = cast("dict[str, Any]", said)
            return {field["name"]: _of_field(schema, field, given) for field in declared["fields"]}
        case _:
            raise ValueError("it is of another type")


def _of_field(schema: Schema, field: dict[str, Any], given: dict[str, Any]) -> Any:
    """A field of a default that is a record: what is given there, or the field's own default."""
    if field["name"] in given:
        return _default(schema, field["type"], given[field["name"]])
    return field["default"] if _CONVERTED in field else _default(schema, field["type"], field["default"])


def _logical(of: str, declared: dict[str, Any], said: Any) -> Any:
    """The moment, time or decimal that a default says; None where the type is none of these."""
    match of, declared.get("logicalType"):
        case "int", "date":
            return date(1970, 1, 1) + timedelta(days=said)
        case "int", "time-millis":
            return _time(said * 1000)
        case "long", "time-micros":
            return _time(said)
        case "long", "timestamp-millis" | "timestamp-micros" | "local-timestamp-millis" | "local-timestamp-micros":
            unit = 1000 if declared["logicalType"].endswith("millis") else 1
            moment = _EPOCH + timedelta(microseconds=said * unit)
            return moment.replace(tzinfo=None) if declared["logicalType"].startswith("local") else moment
        case (("bytes" | "fixed"), "decimal"):
            return decimal_of(said.encode("latin-1"), declared.get("scale", 0))
        case _:
            return None


def _time(micros: int) -> time:
    if not 0 <= micros < 86_400_000_000:
        raise ValueError("no time of a day")
    return (datetime.min + timedelta(microseconds=micros)).time()


def decimal_of(written: bytes, scale: int) -> Decimal:
    """The number of which these are the bytes, with all its digits."""
    return Decimal(int.from_bytes(written, "big", signed=True)).scaleb(-scale, _EXACT)
