"""Whole columns at once: cells as msgspec gives them become Arrow arrays; what is in doubt is declined, not decided."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from ratchet.formats.cells import NULL, Cell, Cells, ties
from ratchet.spec.types import (
    Binary,
    Boolean,
    Date,
    Decimal,
    Floating,
    Integer,
    String,
    Time,
    Timestamp,
    Type,
    Uuid,
)
from ratchet.values import moments
from ratchet.values.arrow import arrow_type
from ratchet.values.unfit import Unfit
from ratchet.values.uuids import uuid_of

Rows = np.ndarray[Any, np.dtype[np.int64]]
_NONE: Rows = np.empty(0, np.int64)
ABSENT = Raw(NULL)
"""What a missing field is where fields are taken as they were sent."""
_LONGEST_PLAIN = 38
_DAY = 86_400_000_000


@dataclass(frozen=True)
class Vector:
    """A column; the rows in `declined` mean nothing. `cut` are the rows whose moments have lost digits."""

    array: pa.Array
    declined: Rows
    cut: Rows


def wire_type(kind: Type, lenient: bool) -> Any:
    """As what msgspec is to read a field; a lenient reading takes more as it was sent, and is slower."""
    match kind:
        case String() if not lenient:
            return str | None
        case Boolean():
            return bool | None
        case Integer():
            return int | None
        case Floating():
            return float | None
        case Date():
            return date | None
        case Timestamp(None, _) | Time() | Uuid():
            return str | None
        case Binary():
            return bytes | None
        case Timestamp() if not lenient:
            return int | None
        case _:
            return Raw


def vector(kind: Type, cells: list[Any], lenient: bool, escapes: bool) -> Vector:
    """The column of these cells, which are of `wire_type`; `escapes` says that texts may hold U+0000."""
    match kind:
        case String() if not lenient:
            return _strings(cells, escapes)
        case Integer():
            return _integers(kind, cells)
        case Floating():
            return _floats(kind, cells)
        case Decimal():
            return _decimals(kind, cells)
        case Boolean() | Date() | Binary():
            return Vector(pa.array(cells, arrow_type(kind)), _NONE, _NONE)
        case Timestamp(None, strict):
            return moments_of(pa.array(cells, pa.string()), strict)
        case Timestamp() if not lenient:
            return numbered(kind, cells)
        case Uuid():
            return each(kind, cells, lambda _, text: _uuid(kind, text))
        case Time():
            return each(kind, cells, lambda reader, text: reader.of_text(kind, text.encode()))
        case String():
            return _strings_as_sent(cells)
        case _:
            return each(kind, as_sent(cells), lambda reader, raw: reader.of_json(kind, raw))


def as_sent(cells: list[Raw]) -> list[bytes | None]:
    """The bytes of each field, None where it is missing."""
    return [None if cell is ABSENT else bytes(cell) for cell in cells]


def _strings(cells: list[str | None], escapes: bool) -> Vector:
    declined = [i for i, cell in enumerate(cells) if cell is not None and "\x00" in cell] if escapes else []
    return Vector(pa.array(cells, pa.string()), _rows(declined), _NONE)


def _strings_as_sent(cells: list[Raw]) -> Vector:
    """Texts of any JSON values: of a string its characters, of everything else the bytes."""
    reader, kind = Cells(), String()
    found: list[Any] = []
    declined: list[int] = []
    for i, raw in enumerate(as_sent(cells)):
        if raw is None or raw == NULL:
            found.append(None)
        elif raw[0] != 0x22:
            found.append(raw)
        elif b"\\" not in raw:
            found.append(raw[1:-1])
        else:
            try:
                found.append(reader.of_json(kind, raw))
            except Unfit:
                found.append(None)
                declined.append(i)
    return Vector(pa.array(found, pa.string()), _rows(declined), _NONE)


def _integers(kind: Integer, cells: list[int | None]) -> Vector:
    try:
        return Vector(pa.array(cells, arrow_type(kind)), _NONE, _NONE)
    except (pa.ArrowInvalid, OverflowError):
        declined = [i for i, cell in enumerate(cells) if cell is not None and cell not in kind]
        fitting = [cell if cell is None or cell in kind else None for cell in cells]
        return Vector(pa.array(fitting, arrow_type(kind)), _rows(declined), _NONE)


def _floats(kind: Floating, cells: list[float | None]) -> Vector:
    doubles = pa.array(cells, pa.float64())
    if kind.bits == 64:
        return Vector(doubles, _NONE, _NONE)
    doubtful = ties(doubles.fill_null(0.0).to_numpy())
    return Vector(doubles.cast(pa.float32(), safe=False), np.flatnonzero(doubtful), _NONE)


def _decimals(kind: Decimal, cells: list[Raw]) -> Vector:
    sent = [None if cell is ABSENT or (raw := bytes(cell)) == NULL else raw for cell in cells]
    present = [raw for raw in sent if raw is not None]
    longest = max(map(len, present), default=0)
    if not b"".join(present).translate(None, b"0123456789.-"):
        found = plain_decimals(kind, pa.array(sent, pa.string()), longest)
        if found is not None:
            return found
    return each(kind, sent, lambda reader, raw: reader.of_json(kind, raw))


def plain_decimals(kind: Decimal, texts: pa.Array, longest: int) -> Vector | None:
    """Plain digits are cast by Arrow, which neither rounds them nor drops any; with an exponent it would.

    It moves the point by a multiplication whose overflow it does not see: 5405249.45 as decimal(38,38) came to be 0.16.
    So what might need more than 128 bits is given 256, in which these digits have room at every scale. None where a
    text, of which the longest has so many characters, does not fit.
    """
    if longest > _LONGEST_PLAIN:
        return None
    try:
        if longest + kind.scale > _LONGEST_PLAIN:
            texts = texts.cast(pa.decimal256(2 * _LONGEST_PLAIN, kind.scale))
        return Vector(texts.cast(arrow_type(kind)), _NONE, _NONE)
    except pa.ArrowInvalid:
        return None


def numbered(kind: Timestamp, cells: list[int | None]) -> Vector:
    """Moments as whole numbers."""
    if kind.unit in ("micros", "millis", "seconds"):
        factor = {"micros": 1, "millis": 1000, "seconds": 1_000_000}[kind.unit]
        bound = (moments.AFTER_LATEST - _DAY) // factor
        try:
            numbers = pa.array(cells, pa.int64())
        except (pa.ArrowInvalid, OverflowError):
            numbers = None
        if numbers is not None and _within(numbers, (moments.EARLIEST + _DAY) // factor, bound):
            return Vector(pc.multiply(numbers, factor).cast(pa.timestamp("us", "UTC")), _NONE, _NONE)
    return each(kind, cells, lambda reader, number: reader.of_text(kind, str(number).encode()))


def moments_of(texts: pa.Array, strict: bool) -> Vector:
    """Moments as text: the common forms by Arrow, which reads them alike, every other text by itself."""
    if _is_usual(texts):
        for unit in ("us", "ns"):
            try:
                moved = texts.cast(pa.timestamp(unit, "UTC"))
            except pa.ArrowInvalid:
                continue
            return _trimmed(moved, texts, unit, strict)
    kind = Timestamp(None, strict)
    return each(kind, texts.to_pylist(), lambda reader, text: reader.of_text(kind, text.encode()))


def _trimmed(moved: pa.Array, texts: pa.Array, unit: str, strict: bool) -> Vector:
    """Microseconds of what Arrow has read; declined where the years are not plainly within ours."""
    if unit == "ns":
        nanos = moved.cast(pa.int64()).fill_null(0).to_numpy()
        cut = np.flatnonzero(nanos % 1000)
        micros = pa.array(nanos // 1000, mask=texts.is_null().to_numpy(zero_copy_only=False))
    else:
        micros, cut = moved.cast(pa.int64()), _NONE
    array = micros.cast(pa.timestamp("us", "UTC"))
    if within_years(micros):
        return Vector(array, cut if strict else _NONE, cut)
    values = micros.fill_null(0).to_numpy()
    outside = (values < moments.EARLIEST + _DAY * 2) | (values >= moments.AFTER_LATEST - _DAY * 2)
    return Vector(array, np.union1d(np.flatnonzero(outside), cut if strict else _NONE), cut)


def _is_usual(texts: pa.Array) -> bool:
    """Whether every text has the length and the signs of `yyyy-mm-ddThh:mm:ss…` with a usual zone.

    Of these Arrow takes none that the definition refuses, and reads them alike.
    """
    present = texts.drop_null() if texts.null_count else texts
    if not len(present):
        return False
    _, offsets, data = present.buffers()
    ends = np.frombuffer(offsets, np.int32)[present.offset : present.offset + len(present) + 1].astype(np.int64)
    letters = np.frombuffer(data, np.uint8)
    begin, end = ends[:-1], ends[1:]
    if (end - begin).min() < 20 or not ((letters[begin + 13] == 0x3A) & (letters[begin + 16] == 0x3A)).all():
        return False
    zulu = letters[end - 1] == 0x5A
    sign, colon = letters[end - 6], letters[end - 3]
    hours = (letters[end - 5].astype(np.int64) - 0x30) * 10 + letters[end - 4].astype(np.int64) - 0x30
    offset = ((sign == 0x2B) | (sign == 0x2D)) & (colon == 0x3A) & (hours < 18)
    return bool((zulu | offset).all())


def within_years(micros: pa.Array) -> bool:
    """Whether all of these microseconds since 1970 are plainly within the years that a moment may be of."""
    return _within(micros, moments.EARLIEST + _DAY * 2, moments.AFTER_LATEST - _DAY * 2)


def _within(numbers: pa.Array, least: int, greatest: int) -> bool:
    found = pc.min_max(numbers)
    low, high = found["min"].as_py(), found["max"].as_py()
    return low is None or (least <= low and high < greatest)


def each(kind: Type, cells: Iterable[Any], read: Callable[[Cells, Any], Cell]) -> Vector:
    """One cell after the other by the definition; what is unfit there is declined here."""
    reader = Cells()
    found: list[Any] = []
    declined: list[int] = []
    cut: list[int] = []
    for i, cell in enumerate(cells):
        value = None
        if cell is not None and cell != NULL:
            before = reader.cut
            try:
                value = read(reader, cell)
            except Unfit:
                declined.append(i)
            cut += [i] * (reader.cut - before)
        found.append(value)
    return Vector(pa.array(found, arrow_type(kind)), _rows(declined), _rows(cut))


def _uuid(kind: Type, text: str) -> str:
    found = uuid_of(text)
    if found is None:
        raise Unfit(text, kind)
    return found


def _rows(numbers: list[int]) -> Rows:
    return np.array(numbers, np.int64) if numbers else _NONE
