"""Columns from texts of their own, as keys, headers and fields of CSV are: whole columns as `Cells.of_text` reads each.

What is in doubt is declined, and left to it.
"""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.formats.cells import Cell, Cells
from ratchet.formats.vectors import Rows, Vector, moments_of, numbered, plain_decimals
from ratchet.spec.columns import Column
from ratchet.spec.types import Binary, Boolean, Date, Decimal, Floating, Integer, String, Timestamp, Type
from ratchet.values.arrow import arrow_type
from ratchet.values.unfit import Unfit

_NONE: Rows = np.empty(0, np.int64)
# RE2's `$` is the very end; these take nothing that the definition refuses.
_WHOLE = "^-?[0-9]{1,18}$"
_PLAIN = r"^-?[0-9]+(\.[0-9]+)?$"
_EXPONENT = "[eE][-+]?[0-9]{1,3}"
# To the definition -0 is a whole number, which has no sign.
_NUMBER = rf"^(0|-?0*[1-9][0-9]*|-?[0-9]+(\.[0-9]+({_EXPONENT})?|{_EXPONENT}))$"
_DAY = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


def vector(kind: Type, sent: pa.BinaryArray, *, base64: bool = False) -> Vector:
    """The column of these texts; null stays null. `base64` is as in `Cells.of_text`."""
    if isinstance(kind, Binary) and not base64:
        return Vector(sent, _NONE, _NONE)
    try:
        # Arrow checks that it is UTF-8.
        texts = sent.cast(pa.string())
    except pa.ArrowInvalid:
        return _each(kind, sent, base64)
    return _at_once(kind, texts) or _each(kind, sent, base64)


@dataclass(frozen=True)
class Texts:
    """A column of texts; rows with an error are null. `cut` counts the moments that lost digits."""

    array: pa.Array
    errors: dict[int, str]
    cut: int


def column(column: Column, sent: pa.BinaryArray, where: str, *, base64: bool = False) -> Texts:
    """The column of these texts, of each what the definition says; an error begins with `where` and the name."""
    found = vector(column.type, sent, base64=base64)
    if not len(found.declined):
        return Texts(found.array, {}, len(found.cut))
    reader = Cells()
    cells: list[Cell] = []
    errors: dict[int, str] = {}
    for row, text in enumerate(sent.to_pylist()):
        cell = None
        try:
            cell = None if text is None else reader.of_text(column.type, text, base64=base64)
        except Unfit as unfit:
            errors[row] = unfit.said(f"{where} {column.name}")
        cells.append(cell)
    return Texts(pa.array(cells, arrow_type(column.type)), errors, reader.cut)


def _at_once(kind: Type, texts: pa.StringArray) -> Vector | None:
    """The column, where Arrow reads its texts as the definition does; None where each is to be read by itself."""
    match kind:
        case String():
            return Vector(texts, _where(pc.match_substring(texts, "\x00")), _NONE)
        case Integer():
            numbers, doubtful = _cast(texts, _WHOLE, pa.int64())
            limit = 1 << (kind.bits - 1)
            beyond = pc.or_(pc.less(numbers, -limit), pc.greater(numbers, limit - 1))
            fitting = pc.if_else(beyond, pa.scalar(None, pa.int64()), numbers)
            return Vector(fitting.cast(arrow_type(kind)), np.union1d(doubtful, _where(beyond)), _NONE)
        case Floating():
            floats, doubtful = _cast(texts, _NUMBER, arrow_type(kind))
            return Vector(floats, np.union1d(doubtful, _where(pc.is_inf(floats))), _NONE)
        case Decimal() if pc.all(pc.match_substring_regex(texts, _PLAIN)).as_py():
            return plain_decimals(kind, texts, pc.max(pc.binary_length(texts)).as_py() or 0)
        case Boolean():
            truths = pc.equal(texts, "true")
            return Vector(truths, _where(pc.invert(pc.or_(truths, pc.equal(texts, "false")))), _NONE)
        case Timestamp(None, strict):
            return moments_of(texts, strict)
        case Timestamp() if pc.all(pc.match_substring_regex(texts, _WHOLE)).as_py():
            return numbered(kind, texts.cast(pa.int64()).to_pylist())
        case Date() if pc.all(pc.match_substring_regex(texts, _DAY)).as_py():
            return _days(texts)
        case _:
            return None


def _cast(texts: pa.StringArray, pattern: str, kind: pa.DataType) -> tuple[pa.Array, Rows]:
    """(the numbers of the texts that are as the pattern says, the rows of the others)."""
    usual = pc.match_substring_regex(texts, pattern)
    doubtful = _where(pc.invert(usual))
    if len(doubtful):
        texts = pc.if_else(usual, texts, pa.scalar(None, pa.string()))
    return texts.cast(kind), doubtful


def _days(texts: pa.StringArray) -> Vector | None:
    try:
        # Arrow knows a year 0.
        return Vector(texts.cast(pa.date32()), _where(pc.starts_with(texts, "0000")), _NONE)
    except pa.ArrowInvalid:
        return None


def _each(kind: Type, sent: pa.BinaryArray, base64: bool) -> Vector:
    reader = Cells()
    found: list[Any] = []
    declined: list[int] = []
    cut: list[int] = []
    for row, text in enumerate(sent.to_pylist()):
        before, cell = reader.cut, None
        try:
            cell = None if text is None else reader.of_text(kind, text, base64=base64)
        except Unfit:
            declined.append(row)
        cut += [row] * (reader.cut - before)
        found.append(cell)
    return Vector(pa.array(found, arrow_type(kind)), np.array(declined, np.int64), np.array(cut, np.int64))


def _where(said: pa.BooleanArray) -> Rows:
    """The rows of which it is true."""
    return np.flatnonzero(said.fill_null(False).to_numpy(zero_copy_only=False))
