"""What every part of a spec is: frozen, checked when it is made, with errors that name the field."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.errors import SpecError
from ratchet.spec.columns import TABLE, parse_columns

LONGEST_NAME = 63
"""PostgreSQL's limit for a name, in bytes."""
LONGEST_ENDING = 5
"""The longest ending that ratchet adds to a table's name (`_once`, `_txid`), or to a column's (`_sum`)."""


class Declaration(BaseModel, frozen=True):
    """A frozen part of a spec; its fields with `kw_only=False` may be given by position."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, *args: Any, **data: Any) -> None:
        kind = type(self).__name__
        positional = self.positional()
        if len(args) > len(positional):
            raise SpecError(f"{kind} takes {len(positional)} positional arguments, not {len(args)}")
        for name, value in zip(positional, args, strict=False):
            if name in data:
                raise SpecError(f"{kind}.{name}: it is given twice, by its place and by its name")
            data[name] = value
        try:
            super().__init__(**data)
        except ValidationError as error:
            problems = "; ".join(
                f"{kind}.{'.'.join(map(str, e['loc'])) or 'spec'}: {e['msg'].removeprefix('Value error, ')}"
                for e in error.errors()
            )
            raise SpecError(problems) from None

    @classmethod
    def positional(cls) -> list[str]:
        """The fields that may be given by position, in order."""
        return [name for name, field in cls.model_fields.items() if field.kw_only is False]


def column_list(ddl: str) -> str:
    """Check a column declaration; SpecError becomes pydantic's error, which names the field."""
    try:
        parse_columns(ddl)
    except SpecError as error:
        # pydantic takes no message with half of a surrogate pair.
        raise ValueError(str(error).encode(errors="backslashreplace").decode()) from None
    return ddl


def sink_columns(ddl: str) -> str:
    """Check the columns of a sink, which the transform makes under these names."""
    for column in parse_columns(column_list(ddl)):
        if column.origin is not None:
            raise ValueError(
                f"column {column.name!r}: from belongs to the columns of a message; a sink's come from the transform"
            )
    return ddl


def table_name(name: str) -> str:
    """Check the name of a sink's table."""
    if not TABLE.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a legal table name; use table or schema.table, a to z, 0 to 9 and _, a letter first"
        )
    if name.startswith("public."):
        # By its sink's name the ledger finds what was written into a table.
        raise ValueError(f"{name!r} is the table {name.removeprefix('public.')!r}; leave public out")
    whole = name if "." in name else f"public.{name}"
    if len(whole) > LONGEST_NAME - LONGEST_ENDING:
        raise ValueError(
            f"{name!r} is too long: {whole} has {len(whole)} characters and may have {LONGEST_NAME - LONGEST_ENDING}, "
            f"because a table of deltas and its indexes are named after it, and PostgreSQL's names end at "
            f"{LONGEST_NAME}"
        )
    return name
