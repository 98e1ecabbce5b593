"""What a schema of Avro offers to columns."""

from __future__ import annotations

from typing import Any, cast

from ratchet.formats.avro_schema import Node, Schema, named
from ratchet.formats.offered import OWN_KIND, WITHIN, Offer, Offered, Offering, Path, Unkept
from ratchet.spec.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIME,
    TIMESTAMP,
    UUID,
    Array,
    Decimal,
    Map,
    Member,
    Type,
)

_PLAIN: dict[str, Type] = {
    "boolean": BOOLEAN,
    "int": INT,
    "long": BIGINT,
    "float": FLOAT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BINARY,
    "fixed": BINARY,
    "enum": STRING,
}
_LOGICAL: dict[tuple[str, str], Type] = {
    ("int", "date"): DATE,
    ("int", "time-millis"): TIME,
    ("long", "time-micros"): TIME,
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): TIMESTAMP,
    ("long", "local-timestamp-micros"): TIMESTAMP,
    ("string", "uuid"): UUID,
    ("fixed", "uuid"): UUID,
}
_MOST_DIGITS = 38


def offer_of(schema: Schema) -> Offer:
    """The offer of a schema as it was declared; Unkept where it is that of no value that a column holds."""
    return _Reading(schema).offer()


class _Reading:
    def __init__(self, schema: Schema):
        self._schema, self._offering = schema, Offering()
        self._around: list[str] = []
        """The records around the field that is looked at, by name."""

    def offer(self) -> Offer:
        if self._schema.is_record:
            return self._offering.made(
                self._offering.members((), self._fields(cast("dict[str, Any]", self._schema.root)))
            )
        kind, nullable = self._type(self._schema.root, ("value",))
        return self._offering.made((Member("value", kind, nullable),), is_whole=True)

    def _fields(self, record: dict[str, Any]) -> Any:
        self._around.append(record["name"])
        for each in record["fields"]:
            yield each["name"], lambda at, of=each: self._field(of, at)
        self._around.pop()

    def _field(self, declared: dict[str, Any], path: Path) -> Offered:
        kind, nullable = self._type(declared["type"], path)
        # A field with a default may have come later, and is null in what was written before.
        if nullable or "default" not in declared:
            return kind, nullable
        self._offering.later(path)
        return kind, True

    def _type(self, node: Node, path: Path) -> Offered:
        if isinstance(node, str):
            node = self._schema.named.get(node, node)
        if isinstance(node, list):
            return self._union(node, path)
        declared: dict[str, Any] = {"type": node} if isinstance(node, str) else node
        kind = declared["type"]
        if isinstance(kind, dict | list) or kind in self._schema.named:
            return self._type(cast("Node", kind), path)
        match kind:
            case "null":
                raise Unkept("it is always null")
            case "record" | "error":
                if declared["name"] in self._around:
                    raise Unkept(OWN_KIND)
                return self._offering.struct(path, self._fields(declared)), False
            case "array":
                return Array(self._type(declared["items"], (*path, WITHIN))[0]), False
            case "map":
                return Map(self._type(declared["values"], (*path, WITHIN))[0]), False
            case _:
                return self._scalar(kind, declared, path), False

    def _scalar(self, kind: str, declared: dict[str, Any], path: Path) -> Type:
        logical = declared.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            precision, scale = declared.get("precision", 0), declared.get("scale", 0)
            if not 0 <= scale <= precision <= _MOST_DIGITS or not precision:
                raise Unkept(f"it is a decimal({precision},{scale}), and a column has up to {_MOST_DIGITS} digits")
            return Decimal(precision, scale)
        known = _LOGICAL.get((kind, str(logical)))
        if str(logical).startswith("local-timestamp") and known:
            self._offering.remark(path, "it is a time without a zone, which is taken for UTC")
        elif str(logical).endswith("timestamp-nanos"):
            self._offering.remark(path, "it is nanoseconds since 1970; timestamp(nanos) would cut them to microseconds")
        elif logical is not None and known is None:
            self._offering.remark(path, f"its logical type {logical} is not known; it is kept as the {kind} that it is")
        return known or _PLAIN[kind]

    def _union(self, branches: list[Any], path: Path) -> Offered:
        others = [branch for branch in branches if named(branch) != "null"]
        if not others:
            raise Unkept("it is always null")
        said = "a union of " + " and ".join(map(named, others))
        kinds = [self._type(branch, path)[0] for branch in others]
        return self._offering.one_of(kinds, said), len(others) < len(branches)
