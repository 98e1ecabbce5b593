"""What a change event of Debezium means: the row that it leaves, or the row that it deletes.

The event's own schema, where it has one, says what numbers and texts stand for; else the declared types and the spec
do. A value that the connector has left out, as PostgreSQL's unchanged TOAST values, is an error and never a value.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from hashlib import md5
from typing import Any, cast
from uuid import UUID

import numpy as np
import pyarrow as pa

from ratchet.formats.connected import LogicalType, interpreted
from ratchet.formats.debezium import Debezium
from ratchet.formats.debezium_events import WANTED, Event, Events
from ratchet.formats.object_columns import ObjectColumns
from ratchet.formats.objects import shown
from ratchet.formats.port import Decoded, NoRow
from ratchet.spec.columns import Column, FieldPath
from ratchet.values.unfit import Unfit

UNAVAILABLE = "__debezium_unavailable_value"
"""What the connector sends, unless it is told otherwise, in place of a value that the source's log does not have."""
_ROW, _EVENT = "row", "event"
_KEPT = ("c", "u", "r")


class DebeziumDecoder:
    """Reads change events that `events` finds in values."""

    def __init__(self, declared: Debezium, events: Events):
        self.columns = declared.written
        self._declared, self._events = declared, events
        own = [_within(_ROW, column) for column in declared.changing]
        event = [_within(_EVENT, column) for column in declared.enveloping]
        self._rows = ObjectColumns((*own, *event), WANTED)
        # The row before a deletion has its key, and what else the source is told to send.
        self._deletions = ObjectColumns((*(replace(column, nullable=True) for column in own), *event), WANTED)

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        opened = [self._opened(event) for event in self._events.of(values, headers)]
        gone = [i for i, event in enumerate(opened) if isinstance(event, dict) and event["deletes"]]
        are_gone = set(gone)
        left = [i for i, event in enumerate(opened) if event is not None and i not in are_gone]
        parts = [
            (self._rows.decoded([opened[i] for i in left]), np.array(left, np.int64), False),
            (self._deletions.decoded([opened[i] for i in gone]), np.array(gone, np.int64), True),
        ]
        return _joined(parts, len(opened))

    def _opened(self, event: Event | NoRow) -> object:
        """{row, event, deletes} of an event; None where it changes no row, NoRow where it is none."""
        if isinstance(event, NoRow):
            return event
        try:
            return self._change(event)
        except NoRow as reason:
            return reason
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # What is wrong within an event's own schema, however it is wrong.
            return NoRow(f"the value: found a schema that is none ({type(error).__name__}), wanted {WANTED}")

    def _change(self, event: Event) -> object:
        payload = event.payload
        op = payload.get("op")
        if op == "m":
            return None
        if op == "t":
            raise NoRow(
                "the value: found a truncation of the source's table, which names no rows, wanted the change of a row; "
                "void or replay what it concerns, or let the connector skip truncations (skipped.operations=t)"
            )
        if op not in (*_KEPT, "d"):
            said = f"op {shown(op)}" if "op" in payload else "no op, as in an event that a transform has flattened"
            raise NoRow(f"the value: found {said}, wanted {WANTED}")
        side = "before" if op == "d" else "after"
        row = payload.get(side)
        if not isinstance(row, dict):
            why = "; set the table's REPLICA IDENTITY to DEFAULT or FULL" if op == "d" else ""
            raise NoRow(f"the value: found {shown(row)} as {side} of op {op}, wanted the source's row{why}")
        fields = cast("dict[str, Any]", row)
        return {_ROW: self._row(fields, event.logical_types(side)), _EVENT: payload, "deletes": op == "d"}

    def _row(self, row: dict[str, Any], logical_types: Mapping[str, LogicalType]) -> dict[str, Any]:
        """The fields of the row, those that are declared as what they stand for."""
        found = dict(row)
        for column in self._declared.changing:
            assert isinstance(column.source, FieldPath)
            name, *inner = column.source.names
            value = row.get(name)
            if value is None or inner:
                continue
            if _is_unavailable(value):
                raise NoRow(
                    f"column {column.name}: found {UNAVAILABLE}, wanted {column.type}; the source's log does not have "
                    "values that are stored apart and were not changed: set the table's REPLICA IDENTITY to FULL"
                )
            try:
                found[name] = interpreted(column, value, logical_types.get(name), self._declared)
            except Unfit as unfit:
                raise NoRow(unfit.said(f"column {column.name}")) from None
        return found


def _within(part: str, column: Column) -> Column:
    assert isinstance(column.source, FieldPath)
    return replace(column, origin=FieldPath((part, *column.source.names)))


def _is_unavailable(value: object) -> bool:
    return value in _UNAVAILABLE


_UNAVAILABLE_BYTES = b64encode(UNAVAILABLE.encode()).decode()
_UNAVAILABLE_UUID = str(UUID(bytes=md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3))
_UNAVAILABLE = (
    UNAVAILABLE,
    UNAVAILABLE.encode(),
    _UNAVAILABLE_BYTES,
    [UNAVAILABLE],
    [UNAVAILABLE.encode()],
    [_UNAVAILABLE_BYTES],
    # Arrays of numbers have its bytes, those of UUIDs the one that Java makes of them, an hstore has it as a pair.
    list(UNAVAILABLE.encode()),
    [_UNAVAILABLE_UUID],
    {UNAVAILABLE: UNAVAILABLE},
    f'{{"{UNAVAILABLE}":"{UNAVAILABLE}"}}',
)
"""The forms in which it comes, by the type of its column."""


def _joined(parts: list[tuple[Decoded, np.ndarray[Any, Any], bool]], count: int) -> Decoded:
    """One answer for all values, in their order; those that are in no part give neither a row nor an error."""
    errors: list[str | None] = [None] * count
    for decoded, numbers, _ in parts:
        for number, error in zip(numbers.tolist(), decoded.errors.to_pylist(), strict=True):
            errors[number] = error
    parents = np.concatenate([numbers[decoded.parents.to_numpy()] for decoded, numbers, _ in parts])
    gone = np.concatenate([np.full(decoded.columns.num_rows, deletes) for decoded, _, deletes in parts])
    order = np.argsort(parents, kind="stable")
    at = pa.array(order)
    form = parts[0][0].columns.schema
    arrays = [pa.concat_arrays([d.columns.column(i) for d, _, _ in parts]).take(at) for i in range(len(form))]
    found = frozenset[str]().union(*(decoded.found for decoded, _, _ in parts))
    beside = {name: names for d, _, _ in parts for name, names in d.beside.items() if name not in found}
    return Decoded(
        pa.RecordBatch.from_arrays(arrays, schema=form),
        pa.array(parents[order], pa.int32()),
        pa.array(errors, pa.string()),
        found,
        beside,
        sum(decoded.cut for decoded, _, _ in parts),
        pa.array(gone[order], pa.bool_()),
    )
