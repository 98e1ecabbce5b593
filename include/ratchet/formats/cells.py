"""What one JSON text, or one plain text, means as a value of a declared type: the definition, read by read.

Whatever is faster gives the same, or leaves the value to this.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from collections.abc import Callable
from datetime import date
from decimal import Context, InvalidOperation
from decimal import Decimal as Exact
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Raw

from ratchet.spec.types import (
    Array,
    Binary,
    Boolean,
    Date,
    Decimal,
    Floating,
    Integer,
    Json,
    Map,
    String,
    Struct,
    Time,
    Timestamp,
    Type,
    Uuid,
)
from ratchet.values import jsonb, moments
from ratchet.values.unfit import Unfit, excerpt
from ratchet.values.uuids import uuid_of

Cell = None | str | bool | int | float | Exact | date | bytes | list[Any] | dict[str, Any]
"""A value as Arrow takes it.

Moments are microseconds, times of day their text, maps lists of pairs, JSON its canonical text.
"""

_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(rb"-?[0-9]{1,30}")
_DECIMAL_TEXT = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_INTEGER_TEXT = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_LEADING_ZEROS = re.compile(rb"^\+?(-?)0*(?=[0-9])")
_SPACES = re.compile(r"[ \t\r\n]")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_ROOM = Context(prec=80)
_BEYOND_SINGLE = Exact(2**128 - 2**103)
"""From here on the nearest four-byte float is infinite."""
_GREATEST_SINGLE = float(2**128 - 2**104)

members_of = msgspec.json.Decoder(dict[str, Raw]).decode
"""The members of a JSON object, each as the bytes that were sent; of doubled ones the last."""
raw_of = msgspec.json.Decoder(Raw).decode
"""A JSON text without the white space around it."""
elements_of = msgspec.json.Decoder(list[Raw]).decode
_text_of = msgspec.json.Decoder(str).decode
_double_of = msgspec.json.Decoder(float).decode

NULL = b"null"
T = TypeVar("T")


class Cells:
    """Reads cells, and counts in `cut` the moments that lost digits."""

    def __init__(self) -> None:
        self.cut = 0

    def of_json(self, kind: Type, raw: bytes) -> Cell:
        """The value of one JSON text, which holds no invalid UTF-8; Unfit if it is none of the type."""
        if raw == NULL:
            return None
        match kind:
            case String():
                return _storable(_text_of(raw), kind) if raw[0] == 0x22 else raw.decode()
            case Boolean() if raw in (b"true", b"false"):
                return raw == b"true"
            case Integer() if _INTEGER.fullmatch(raw) and int(raw) in kind:
                return int(raw)
            case Floating() if _NUMBER.fullmatch(raw):
                return _floating(kind, raw)
            case Decimal() if _NUMBER.fullmatch(raw):
                return _decimal(kind, raw.decode())
            case Timestamp(unit, _) if unit is not None and _NUMBER.fullmatch(raw):
                return self._moment(kind, raw.decode(), lambda text: moments.moment_of_number(text, unit))
            case Json():
                return jsonb.canonical(raw.decode())
            case Array(element) if raw[0] == 0x5B:
                return [self._inner(element, bytes(r), f"[{i}]") for i, r in enumerate(elements_of(raw))]
            case Map(value) if raw[0] == 0x7B:
                items = members_of(raw).items()
                return [(_storable(name, kind), self._inner(value, bytes(r), f"[{name!r}]")) for name, r in items]
            case Struct() if raw[0] == 0x7B:
                return self._struct(kind, members_of(raw))
            case _ if raw[0] == 0x22 and _sent_as_text(kind):
                return self._of_string(kind, _text_of(raw), raw)
            case _:
                raise Unfit(excerpt(raw), kind)

    def of_text(self, kind: Type, sent: bytes, *, base64: bool = False) -> Cell:
        """The value of a text of its own, as a key or a header is; Unfit if it is none of the type.

        A binary column has the bytes themselves, or where bytes are written in base64 those.
        """
        if isinstance(kind, Binary) and not base64:
            return sent
        try:
            text = sent.decode()
        except UnicodeDecodeError:
            raise Unfit(f"{excerpt(sent)}, which is not UTF-8", kind) from None
        match kind:
            case String():
                return _storable(text, kind)
            case Integer() if _INTEGER_TEXT.fullmatch(text) and int(text) in kind:
                return int(text)
            case Floating() if _DECIMAL_TEXT.fullmatch(text):
                return _floating(kind, _LEADING_ZEROS.sub(rb"\1", sent))
            case Timestamp(unit, _) if unit is not None and _DECIMAL_TEXT.fullmatch(text):
                return self._moment(kind, text, lambda number: moments.moment_of_number(number, unit))
            case Boolean() if text in ("true", "false"):
                return text == "true"
            case Json() | Array() | Map() | Struct():
                return self.of_json(kind, _checked(kind, sent))
            case _ if _sent_as_text(kind):
                return self._of_string(kind, text, sent)
            case _:
                raise Unfit(excerpt(sent), kind)

    def _of_string(self, kind: Type, text: str, raw: bytes) -> Cell:
        match kind:
            case Decimal() if _DECIMAL_TEXT.fullmatch(text):
                return _decimal(kind, text)
            case Timestamp():
                return self._moment(kind, text, moments.moment)
            case Time():
                return self._moment(kind, text, moments.time_of_day)
            case Date():
                return _tried(moments.day, text, kind)
            case Uuid() if (uuid := uuid_of(text)) is not None:
                return uuid
            case Binary():
                return _tried(_bytes_of, text, kind)
            case _:
                raise Unfit(excerpt(raw), kind)

    def _moment(self, kind: Timestamp | Time, text: str, read: Callable[[str], tuple[T, bool]]) -> T:
        found, cut = _tried(read, text, kind)
        if cut and isinstance(kind, Timestamp) and kind.strict:
            raise Unfit(excerpt(text), f"{kind}, with no digits beyond microseconds")
        self.cut += cut
        return found

    def _inner(self, kind: Type, raw: bytes, step: str) -> Cell:
        try:
            return self.of_json(kind, raw)
        except Unfit as unfit:
            raise unfit.within(step) from None

    def _struct(self, kind: Struct, given: dict[str, Raw]) -> dict[str, Cell]:
        found: dict[str, Cell] = {}
        for member in kind.members:
            raw = bytes(given[member.name]) if member.name in given else None
            cell = None if raw is None else self._inner(member.type, raw, f".{member.name}")
            if cell is None and not member.nullable:
                raise Unfit("nothing" if raw is None else "null", f"{member.type} not null", f".{member.name}")
            found[member.name] = cell
        return found


def ties(doubles: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of these lie in the very middle of two four-byte floats, or beyond them, so that the digits must tell."""
    with np.errstate(over="ignore", invalid="ignore"):
        near = doubles.astype(np.float32)
        wide = near.astype(np.float64)
        toward = np.where(doubles > wide, np.float32(np.inf), np.float32(-np.inf)).astype(np.float32)
        other = np.nextafter(near, toward).astype(np.float64)
        return np.isinf(wide) | ((doubles != wide) & (np.abs(doubles - wide) == np.abs(doubles - other)))


def _storable(text: str, kind: Type) -> str:
    if "\x00" in text:
        raise Unfit("text with U+0000", kind)
    return text


def _sent_as_text(kind: Type) -> bool:
    """Whether a JSON string can be of the type."""
    return isinstance(kind, Decimal | Date | Time | Uuid | Binary) or (
        isinstance(kind, Timestamp) and kind.unit is None
    )


def _checked(kind: Type, sent: bytes) -> bytes:
    """The JSON text, without white space around it; Unfit if it is none."""
    try:
        return bytes(raw_of(sent))
    except (msgspec.DecodeError, RecursionError):
        raise Unfit(excerpt(sent), kind) from None


def _tried(read: Callable[[str], T], text: str, kind: Type) -> T:
    try:
        return read(text)
    except (ValueError, OverflowError):
        raise Unfit(f'"{excerpt(text)}"' if _sent_as_text(kind) else excerpt(text), kind) from None


def _bytes_of(text: str) -> bytes:
    """Base64 with its padding, between whose characters white space may stand."""
    bare = _SPACES.sub("", text)
    if not _BASE64.fullmatch(bare):
        # Python's own check lets surplus padding pass.
        raise ValueError(text)
    return b64decode(bare)


def _floating(kind: Floating, raw: bytes) -> float:
    """The nearest float of the type, rounded once, by the digits as they are sent."""
    try:
        double = _double_of(raw)
    except msgspec.ValidationError:
        raise Unfit(excerpt(raw), f"a finite {kind}") from None
    if kind.bits == 64:
        return double
    if not ties(np.array([double]))[0]:
        return double
    exact = Exact(raw.decode())
    if abs(exact) >= _BEYOND_SINGLE:
        raise Unfit(excerpt(raw), f"a finite {kind}")
    if abs(double) >= _GREATEST_SINGLE:
        return math.copysign(_GREATEST_SINGLE, double)
    if exact == Exact(double):
        return double
    # Which side of the middle it is on, the next double on that side says without being in the middle itself.
    return float(np.nextafter(double, math.inf if exact > Exact(double) else -math.inf))


def _decimal(kind: Decimal, text: str) -> Exact:
    """The number that is written; Unfit where it would have to be rounded or has too many digits."""
    try:
        exact = Exact(text)
    except InvalidOperation:
        raise Unfit(excerpt(text), kind) from None
    if not exact:
        return Exact(0)
    _, digits, exponent = exact.as_tuple()
    last = int(exponent)
    for digit in reversed(digits):
        if digit:
            break
        last += 1
    if -last > kind.scale or exact.adjusted() >= kind.precision - kind.scale:
        raise Unfit(excerpt(text), kind)
    return exact.quantize(Exact(1).scaleb(-kind.scale), context=_ROOM)
