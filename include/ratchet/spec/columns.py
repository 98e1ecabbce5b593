"""Declared columns: one small DDL for the spec, Spark and PostgreSQL alike."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ratchet.errors import SpecError

IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,62}")
TABLE = re.compile(r"([a-z][a-z0-9_]{0,62}\.)?[a-z][a-z0-9_]{0,62}")

_TYPES = ("string", "boolean", "smallint", "int", "bigint", "float", "double", "date", "timestamp", "binary")
_DECIMAL = re.compile(r"decimal\(([1-9][0-9]?),(0|[1-9][0-9]?)\)")
EXACT = frozenset({"smallint", "int", "bigint"})
"""Types whose sums are exact; decimals are too."""


@dataclass(frozen=True)
class Column:
    """One declared column; `type` is Spark's name of it, `nullable` is false after `not null`."""

    name: str
    type: str
    nullable: bool = True

    @property
    def exact(self) -> bool:
        """Whether sums over this column are exact."""
        return self.type in EXACT or self.type.startswith("decimal")

    def __str__(self) -> str:
        return f"{self.name} {self.type}" + ("" if self.nullable else " not null")


def parse_columns(ddl: str) -> tuple[Column, ...]:
    """The columns of `"name type [not null], ..."`, in order.

    Raises SpecError that names the column when a name is no identifier, begins with `_` (hidden columns do),
    is repeated, or has an unknown type.
    """
    found: list[Column] = []
    for part in re.split(r",(?![^(]*\))", ddl):
        words = part.strip().lower().split()
        if not words:
            raise SpecError(f'an empty column in {ddl!r}; write "name type, name type"')
        name, rest = words[0], " ".join(words[1:])
        nullable = not rest.endswith("not null")
        kind = re.sub(r"\s*([(),])\s*", r"\1", rest.removesuffix("not null").strip())
        if not IDENTIFIER.fullmatch(name):
            raise SpecError(f"{name!r} is not a legal column name; use a to z, 0 to 9 and _, a letter first")
        if kind not in _TYPES and not _legal_decimal(kind):
            known = ", ".join([*_TYPES, "decimal(p,s)"])
            raise SpecError(f"column {name!r} has the unknown type {kind!r}; known are {known}")
        if any(c.name == name for c in found):
            raise SpecError(f"column {name!r} is declared twice")
        found.append(Column(name, kind, nullable))
    return tuple(found)


def _legal_decimal(kind: str) -> bool:
    decimal = _DECIMAL.fullmatch(kind)
    return bool(decimal) and int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1])
