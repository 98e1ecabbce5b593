"""The program of a schema, by which its values are walked over, and where in it the fields of columns are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ratchet.formats.avro_schema import Node, Schema, named
from ratchet.formats.avro_walk import (
    ARRAY,
    BOOLEAN,
    BYTES,
    FAULTS,
    FIXED,
    MAP,
    NULL,
    NUMBER,
    RECORD,
    SLOT,
    STRING,
    UNION,
    walk,
)
from ratchet.formats.walked import Walked
from ratchet.values.moments import AFTER_LATEST, EARLIEST

_SIZES = {"float": 4, "double": 8}
_INT, _LONG = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_MICROS, _MILLIS = (EARLIEST, AFTER_LATEST - 1), (EARLIEST // 1000, (AFTER_LATEST - 1) // 1000)
_DAY = 86_400_000
RANGES = {
    ("int", "date"): (-719_162, 2_932_896),
    ("int", "time-millis"): (0, _DAY - 1),
    ("long", "time-micros"): (0, _DAY * 1000 - 1),
    ("long", "timestamp-millis"): _MILLIS,
    ("long", "timestamp-micros"): _MICROS,
    ("long", "local-timestamp-millis"): _MILLIS,
    ("long", "local-timestamp-micros"): _MICROS,
}
"""The numbers of the logical types that fastavro knows: days and moments of the years 1 to 9999, times of a day."""


@dataclass(frozen=True)
class Leaf:
    """A field that each value has once, or has null: its slot, what it is written as, and the part of the schema."""

    slot: int
    kind: str
    node: Node

    @property
    def logical(self) -> str | None:
        """Its logical type."""
        return self.node.get("logicalType") if isinstance(self.node, dict) else None


class Program:
    """The program of a schema."""

    def __init__(self, schema: Schema):
        self._schema = schema
        self._rows: list[list[int]] = []
        self._children: list[int] = []
        self._nodes: list[Node] = []
        self._placed: dict[str, int] = {}
        self._add(schema.root)
        self._reached = Counter(self._children)
        # The value itself comes to the root, which may be a part of its own schema.
        self._reached[0] += 1
        self._table = np.array(self._rows, np.int64)
        self._order = np.array(self._children, np.int64)
        self.leaves: list[Leaf] = []

    def leaf(self, path: Sequence[str]) -> Leaf | None:
        """The field that a path leads to, which from now on is kept; None where it is not one that is read at once.

        Such a field is no record, array or map, each value has it once at most, and of a union only null is beside it.
        """
        at = self._alone(0)
        for name in path:
            names = self._names(at) if at is not None else []
            if at is None or name not in names:
                return None
            at = self._alone(self._children[self._rows[at][1] + names.index(name)])
        if at is None or self._rows[at][0] in (NULL, RECORD, ARRAY, MAP):
            return None
        if self._table[at, SLOT] >= 0:
            return self.leaves[self._table[at, SLOT]]
        node = self._nodes[at]
        leaf = Leaf(len(self.leaves), node if isinstance(node, str) else node["type"], node)  # pyright: ignore
        self._table[at, SLOT] = leaf.slot
        self.leaves.append(leaf)
        return leaf

    def has(self, path: Sequence[str]) -> bool:
        """Whether a path leads to a field; False where one of its names is missing in a record that is alone there."""
        at = self._alone(0)
        for name in path:
            if at is None:
                return True
            names = self._names(at)
            if name not in names:
                return False
            at = self._alone(self._children[self._rows[at][1] + names.index(name)])
        return True

    def walked(self, data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Walked:
        """The walk over values that lie one at `data[starts[i]:ends[i]]`."""
        found = Walked.of(len(self.leaves), starts, ends)
        walk(data, starts, ends, self._table, self._order, found.faults, found.values, found.lengths, found.there)
        return found

    def said(self, fault: NDArray[np.int64]) -> str:
        """What is wrong with a value, by its row of `faults`."""
        kind, node, at = fault.tolist()
        return f"{FAULTS[kind].format(named(self._nodes[node]))}, at byte {at}"

    def _alone(self, at: int) -> int | None:
        """The node, or the one that a union has beside null; None where a value may come by it more than once."""
        if self._reached[at] > 1:
            return None
        if self._rows[at][0] != UNION:
            return at
        branches = self._children[self._rows[at][1] :][: self._rows[at][2]]
        others = [branch for branch in branches if self._rows[branch][0] != NULL]
        return others[0] if len(others) == 1 and self._reached[others[0]] == 1 else None

    def _names(self, at: int) -> list[str]:
        node = self._nodes[at]
        is_record = self._rows[at][0] == RECORD and isinstance(node, dict)
        return [field["name"] for field in node["fields"]] if is_record else []  # pyright: ignore

    def _add(self, node: Node) -> int:
        """The number of a part of the schema, which is put into the table."""
        if isinstance(node, str) and node in self._schema.named:
            if node in self._placed:
                return self._placed[node]
            node = self._schema.named[node]
        if isinstance(node, dict) and isinstance(node["type"], dict | list):
            return self._add(node["type"])
        number = len(self._rows)
        self._rows.append([NULL, 0, 0, *_LONG, -1])
        self._nodes.append(node)
        if isinstance(node, list):
            self._fill(number, UNION, [self._add(branch) for branch in node])
            return number
        declared: dict[str, Any] = {"type": node} if isinstance(node, str) else node
        kind = declared["type"]
        if "name" in declared:
            self._placed[declared["name"]] = number
        match kind:
            case "null":
                pass
            case "boolean":
                self._rows[number][0] = BOOLEAN
            case "int" | "long":
                usual = _INT if kind == "int" else _LONG
                self._range(number, *RANGES.get((kind, declared.get("logicalType", "")), usual))
            case "enum":
                self._range(number, 0, len(declared["symbols"]) - 1)
            case "bytes" | "string":
                self._rows[number][0] = BYTES if kind == "bytes" else STRING
            case "float" | "double" | "fixed":
                self._rows[number][0], self._rows[number][2] = FIXED, _SIZES.get(kind) or declared["size"]
            case "array" | "map":
                inner = self._add(declared["items" if kind == "array" else "values"])
                self._fill(number, ARRAY if kind == "array" else MAP, [inner])
            case "record" | "error":
                self._fill(number, RECORD, [self._add(field["type"]) for field in declared["fields"]])
            case _:
                # What a reader's own types are called, and no schema has without declaring it.
                return self._again(number, kind)
        return number

    def _again(self, number: int, kind: str) -> int:
        """The node of a named type in the long form, as {"type": "com.x.Order"}."""
        del self._rows[number:], self._nodes[number:]
        return self._add(kind)

    def _range(self, number: int, low: int, high: int) -> None:
        self._rows[number][0], self._rows[number][3], self._rows[number][4] = NUMBER, low, high

    def _fill(self, number: int, kind: int, children: list[int]) -> None:
        self._rows[number][:3] = [kind, len(self._children), len(children)]
        self._children += children
