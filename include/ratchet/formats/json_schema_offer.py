"""What a JSON Schema offers to columns; where it leaves open what a value is, a column of JSON keeps whatever it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal as Exact
from typing import Any, cast
from urllib.parse import unquote

from ratchet.formats.offered import OWN_KIND, WITHIN, Offer, Offered, Offering, Path, Unkept
from ratchet.spec.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    JSON,
    STRING,
    UUID,
    Array,
    Decimal,
    Floating,
    Integer,
    Map,
    Timestamp,
    Type,
)

_MOST_DIGITS, _MOST_SCALE = 38, 18
_ANYTHING: tuple[type[Type], ...] = cast("tuple[type[Type], ...]", (object,))
_DEEPEST = 50
"""So many references may lead to one another."""

Node = Mapping[str, Any]


def offer_of(text: str, references: Mapping[str, str]) -> Offer:
    """The offer of a JSON Schema, which refers to others by their names; Unkept where its values are no objects."""
    try:
        root, *others = (json.loads(each, parse_float=Exact) for each in (text, *references.values()))
    except (ValueError, RecursionError):
        raise Unkept("it is no JSON") from None
    return _Reading(root, dict(zip(references, others, strict=True))).offer()


class _Reading:
    def __init__(self, root: Any, known: Mapping[str, Any]):
        self._root, self._known, self._offering = root, known, Offering()
        self._around: list[int] = []
        """The objects around the field that is looked at, by identity."""

    def offer(self) -> Offer:
        root, _ = self._meant(self._root, self._root)
        if not isinstance(root.get("properties"), dict):
            raise Unkept("its values have no properties that it names")
        return self._offering.made(self._offering.members((), self._fields(root, self._root)))

    def _fields(self, node: Node, document: Any) -> Iterator[tuple[str, Callable[[Path], Offered]]]:
        required = node.get("required")
        needed = cast("list[Any]", required) if isinstance(required, list) else []
        self._around.append(id(node))
        for name, each in cast("dict[str, Any]", node["properties"]).items():
            yield name, lambda at, of=each, name=name: self._field(of, document, at, name in needed)
        self._around.pop()

    def _field(self, node: Any, document: Any, path: Path, is_needed: bool) -> Offered:
        kind, nullable = self._type(node, document, path)
        return kind, nullable or not is_needed

    def _type(self, node: Any, document: Any, path: Path) -> Offered:
        node, document = self._meant(node, document)
        for word in ("oneOf", "anyOf"):
            branches = node.get(word)
            if isinstance(branches, list) and "type" not in node:
                others = [each for each in cast("list[Any]", branches) if not _is_null(each)]
                if len(others) == 1:
                    return self._type(others[0], document, path)[0], True
                return self._open(path)
        said = node.get("type")
        kinds = cast("list[Any]", said) if isinstance(said, list) else [said]
        others = [kind for kind in kinds if kind != "null"]
        if kinds == ["null"]:
            raise Unkept("it is always null")
        if len(others) != 1 or "allOf" in node or "not" in node or "if" in node:
            return self._open(path)
        return self._of(str(others[0]), node, document, path), len(others) < len(kinds)

    def _open(self, path: Path) -> Offered:
        """The type of what may be anything, null too."""
        self._offering.also(path, *_ANYTHING)
        return JSON, True

    def _of(self, kind: str, node: Node, document: Any, path: Path) -> Type:
        match kind:
            case "string":
                return self._string(node, path)
            case "boolean":
                return BOOLEAN
            case "integer":
                return BIGINT
            case "number":
                return self._number(node, path)
            case "array":
                return self._array(node, document, path)
            case "object":
                return self._object(node, document, path)
            case _:
                return self._open(path)[0]

    def _string(self, node: Node, path: Path) -> Type:
        if node.get("contentEncoding") == "base64":
            return BINARY
        match node.get("format"):
            case "date-time":
                self._offering.remark(
                    path,
                    "as a timestamp it loses its offset from UTC, and strict refuses digits beyond microseconds; a "
                    "string keeps the text",
                )
                return Timestamp(strict=True)
            case "date":
                return DATE
            case "uuid":
                return UUID
            case _:
                return STRING

    def _number(self, node: Node, path: Path) -> Type:
        """A number whose steps are said has a scale; of any other one only JSON keeps all digits."""
        step = node.get("multipleOf")
        if isinstance(step, int | Exact) and not isinstance(step, bool) and step > 0:
            scale = max(0, -int(Exact(step).normalize().as_tuple().exponent))
            if scale <= _MOST_SCALE:
                return Decimal(_MOST_DIGITS, scale)
        self._offering.also(path, Decimal, Floating, Integer)
        self._offering.remark(path, "it is a number of any digits; declare decimal(p,s), or double where that is meant")
        return JSON

    def _array(self, node: Node, document: Any, path: Path) -> Type:
        if not isinstance(node.get("items"), dict) or "prefixItems" in node:
            return self._open(path)[0]
        return Array(self._type(node["items"], document, (*path, WITHIN))[0])

    def _object(self, node: Node, document: Any, path: Path) -> Type:
        if isinstance(node.get("properties"), dict) and node["properties"]:
            if id(node) in self._around:
                raise Unkept(OWN_KIND)
            if isinstance(node.get("additionalProperties"), dict) or "patternProperties" in node:
                return self._open(path)[0]
            return self._offering.struct(path, self._fields(node, document))
        if isinstance(node.get("additionalProperties"), dict):
            return Map(self._type(node["additionalProperties"], document, (*path, WITHIN))[0])
        return self._open(path)[0]

    def _meant(self, node: Any, document: Any) -> tuple[Node, Any]:
        """(what a schema, or its reference, says, the document in which its own references lead)."""
        for _ in range(_DEEPEST):
            if not isinstance(node, dict):
                return {}, document
            said = cast("Node", node)
            if not isinstance(said.get("$ref"), str):
                return said, document
            name, _, pointer = said["$ref"].partition("#")
            if name and name not in self._known:
                raise Unkept(f"it refers to {said['$ref']!r}, which the registry does not have as a reference")
            document = self._known[name] if name else document
            node = _at(document, pointer)
        raise Unkept("its references lead to one another")


def _is_null(node: Any) -> bool:
    return isinstance(node, dict) and cast("Node", node).get("type") == "null"


def _at(document: Any, pointer: str) -> Any:
    """What a JSON pointer leads to; Unkept where there is nothing."""
    for step in pointer.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if not isinstance(document, dict) or name not in document:
            raise Unkept(f"it refers to #{pointer}, which is not there")
        document = cast("Node", document)[name]
    return document
