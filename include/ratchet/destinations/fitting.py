"""Which declared columns fit into Kafka records, so that they are read back as they are."""

from __future__ import annotations

from ratchet.spec.columns import Column
from ratchet.spec.types import Array, Map, Struct, Timestamp, Type, is_scalar


def unfit_for_json(kind: Type) -> str | None:
    """Why values of a type cannot be written so that they are read back, in a line; None where they can."""
    match kind:
        case Array(inner) | Map(inner):
            within = [inner]
        case Struct(members):
            within = [member.type for member in members]
        case _:
            return None
    for each in within:
        if isinstance(each, Timestamp) and each.unit is not None:
            return f"within others a moment is text, and {each} would be read from a number; declare it a timestamp"
    return next(filter(None, map(unfit_for_json, within)), None)


def unfit_for_key(column: Column) -> str | None:
    """Why a column cannot be the key, in a line; None where it can."""
    return None if is_scalar(column.type) else f"a {column.type} has no one text; a key is a column of a single value"
