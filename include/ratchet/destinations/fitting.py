"""Which declared columns fit into Kafka records, so that they are read back as they are."""

from __future__ import annotations

import re

from ratchet.spec.columns import Column
from ratchet.spec.types import Array, Map, Struct, Timestamp, Type, is_scalar

_AVRO = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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


def unfit_for_avro(kind: Type) -> str | None:
    """Why a schema of Avro has nothing for a type, in a line; None where it has."""
    match kind:
        case Array(inner) | Map(inner):
            return unfit_for_avro(inner)
        case Struct(members):
            for member in members:
                if not _AVRO.fullmatch(member.name):
                    return f"Avro has no field {member.name!r}; its names have letters, digits and _ alone"
            return next(filter(None, (unfit_for_avro(member.type) for member in members)), None)
        case _:
            return None


def unfit_for_key(column: Column) -> str | None:
    """Why a column cannot be the key, in a line; None where it can."""
    return None if is_scalar(column.type) else f"a {column.type} has no one text; a key is a column of a single value"
