"""An independent reading of one value by Python's json and decimal, as a value of a declared type.

Where the formats mean to read otherwise than Python does, a comment that begins with "Unlike Python" says so.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction
from uuid import UUID

import numpy as np

from ratchet.spec import types as t

from .parsing import Members, NoRow, Number, Sent, parse

_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?"
    r"(Z|[+-]\d\d(?::?\d\d(?::?\d\d)?)?)?(?<=[\dZ])((?<=[Z\d])\[[\w+/:-]+\])?",
    re.ASCII,
)
_TIME = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_NUMBER_TEXT = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_GREATEST, _ROUNDED_TO_INFINITY = float(2**128 - 2**104), 2**128 - 2**103
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=5000, Emin=-(10**9), Emax=10**9)
_UNITS = {"seconds": 1_000_000, "millis": 1000, "micros": 1, "nanos": Fraction(1, 1000)}


def cell(kind: t.Type, sent: Sent) -> object:
    """A JSON value as one of a type; documents as Python's lists and dicts, with numbers as Decimal."""
    value = sent.value
    if value is None:
        return None
    number, text = isinstance(value, Number), isinstance(value, str) and not isinstance(value, Number)
    match kind:
        case t.String():
            return _no_nul(value) if text else sent.text
        case t.Boolean() if isinstance(value, bool):
            return value
        case t.Integer() if number and re.fullmatch("-?[0-9]+", value):
            return _integer(kind, value)
        case t.Floating() if number:
            return _finite(kind, value)
        case t.Decimal() if number or (text and _NUMBER_TEXT.fullmatch(value)):
            return _decimal(kind, value)
        case t.Timestamp(None, _) if text:
            return _moment(kind, value)
        case t.Timestamp(unit, _) if unit is not None and number:
            return _numbered(kind, value)
        case t.Date() if text:
            return _date(value)
        case t.Time() if text:
            return _time(value)
        case t.Uuid() if text:
            return _uuid(value)
        case t.Binary() if text:
            return _binary(value)
        case t.Json():
            return _document(value)
        case t.Array(element) if isinstance(value, list) and not isinstance(value, Members):
            found = [cell(element, each) for each in value]
            return [_part(element, each) for each in found] if t.is_document(kind) else found
        case t.Map(inner) if isinstance(value, Members):
            return {_no_nul(n): _part(inner, cell(inner, each)) for n, each in value.last().items()}
        case t.Struct(members) if isinstance(value, Members):
            return {m.name: _part(m.type, _member(m, value.last())) for m in members}
    raise NoRow(f"{sent.text[:80]} is no {kind}")


def _member(member: t.Member, given: Mapping[str, Sent]) -> object:
    found = cell(member.type, given[member.name]) if member.name in given else None
    if found is None and not member.nullable:
        raise NoRow(f"{member.name} is missing or null")
    return found


def _part(kind: t.Type, value: object) -> object:
    """A value as a part of a document."""
    match value:
        case float():
            return Decimal(repr(value))
        case bool():
            return value
        case int():
            return Decimal(value)
        case datetime() | date():
            return value.isoformat()
        case time():
            return value.isoformat("microseconds")
        case UUID():
            return str(value)
        case bytes():
            return b64encode(value).decode()
        case list() if isinstance(kind, t.Array):
            return [_part(kind.element, each) for each in value]
        case Decimal() if isinstance(kind, t.Decimal):
            return value.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    return value


def _document(value: object) -> object:
    """Any JSON, as jsonb holds it."""
    match value:
        case Members():
            return {_no_nul(name): _document(each.value) for name, each in value.last().items()}
        case list():
            return [_document(each.value) for each in value]
        case Number():
            return _numeric(value)
        case str():
            return _no_nul(value)
    return value


def _numeric(written: str) -> Decimal:
    try:
        number = Decimal(written)
    except InvalidOperation:
        raise NoRow(f"{written} is no numeric") from None
    exponent = re.search("[eE](.*)", written)
    if exponent and abs(int(exponent[1])) >= 2**30 - 1:
        # PostgreSQL reads no such exponent, not even of a zero.
        raise NoRow(f"{written} is no numeric")
    if number and number.adjusted() >= 131_072 or -number.as_tuple().exponent > 16_383:
        raise NoRow(f"{written} is no numeric")
    return number


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise NoRow("U+0000")
    return text


def text_cell(kind: t.Type, sent: bytes) -> object:
    """A text of its own, as a key is, as a value of a type."""
    if isinstance(kind, t.Binary):
        return sent
    try:
        text = sent.decode()
    except ValueError:
        raise NoRow("no UTF-8") from None
    match kind:
        case t.Boolean() if text in ("true", "false"):
            return text == "true"
        case t.Integer() if re.fullmatch("[+-]?[0-9]+", text):
            return _integer(kind, text)
        case t.Floating() if _NUMBER_TEXT.fullmatch(text):
            return _finite(kind, text)
        case t.Timestamp(unit, _) if unit is not None and _NUMBER_TEXT.fullmatch(text):
            return _numbered(kind, text)
        case t.Integer() | t.Floating() | t.Boolean():
            raise NoRow(f"{text!r} is no {kind}")
        case _ if t.is_scalar(kind):
            return cell(kind, Sent(text, text))
    return cell(kind, parse(sent))


def _integer(kind: t.Integer, written: str) -> int:
    if len(written) > 30 or not -(2 ** (kind.bits - 1)) <= int(written) < 2 ** (kind.bits - 1):
        raise NoRow(f"{written[:80]} is no {kind}")
    return int(written)


def _finite(kind: t.Floating, written: str) -> float:
    value = float(written) if kind.bits == 64 else _single(written)
    if math.isinf(value):
        raise NoRow(f"{written[:80]} is infinite as a {kind}")
    return value


def _single(written: str) -> float:
    """The four-byte float nearest to a number, rounded once and not by way of eight bytes."""
    wide = float(written)
    if math.isinf(wide) or abs(wide) < 1e-60:
        return wide * 0 if abs(wide) < 1 else wide
    exact = Fraction(Decimal(written))
    if abs(exact) >= _ROUNDED_TO_INFINITY:
        return math.copysign(math.inf, wide)
    near = np.float32(math.copysign(min(abs(wide), _GREATEST), wide))
    around = (near, np.nextafter(near, np.float32(-_GREATEST)), np.nextafter(near, np.float32(_GREATEST)))
    return float(min(around, key=lambda f: abs(Fraction(float(f)) - exact)))


def _decimal(kind: t.Decimal, written: str) -> Decimal:
    """The decimal that is written, never rounded."""
    try:
        number = Decimal(written)
    except InvalidOperation:
        raise NoRow(f"{written[:80]!r} is no {kind}") from None
    if not number:
        return Decimal(0)
    if number.adjusted() >= kind.precision - kind.scale or -_trimmed(number) > kind.scale:
        raise NoRow(f"{written[:80]!r} is no {kind}")
    return number


def _trimmed(number: Decimal) -> int:
    """The exponent of the last digit that is not zero."""
    _, digits, exponent = number.as_tuple()
    said = "".join(map(str, digits))
    return exponent + len(said) - len(said.rstrip("0"))


def _moment(kind: t.Timestamp, text: str) -> datetime:
    found = _MOMENT.fullmatch(text)
    if found is None or (found[7] and not found[6]):
        raise NoRow(f"{text!r} is no time")
    at, cut = _clock(*found.groups()[1:5])
    if cut and kind.strict:
        raise NoRow(f"{text!r} is finer than microseconds")
    try:
        return datetime.combine(_date(found[1]), at, UTC) - _zone(found[6])
    except OverflowError:
        raise NoRow(f"{text!r} is not in the years 1 to 9999") from None


def _clock(hour: str, minute: str, second: str | None, fraction: str | None) -> tuple[time, bool]:
    digits = (fraction or "").ljust(9, "0")
    try:
        return time(int(hour), int(minute), int(second or 0), int(digits[:6])), digits[6:] != "000"
    except ValueError:
        raise NoRow("no time of day") from None


def _time(text: str) -> time:
    found = _TIME.fullmatch(text)
    if found is None:
        raise NoRow(f"{text!r} is no time of day")
    return _clock(*found.groups())[0]


def _numbered(kind: t.Timestamp, written: str) -> datetime:
    try:
        number = Decimal(written)
    except InvalidOperation:
        raise NoRow(f"{written} is no time") from None
    if number and number.adjusted() > 25:
        raise NoRow(f"{written} is no time")
    # A number of this or less is one nanosecond after or before the moment, whatever its digits.
    least = Decimal("1e-30")
    number = number if abs(number) > least or not number else least.copy_sign(number)
    micros = Fraction(number) * _UNITS[kind.unit]
    whole = math.floor(micros)
    if whole != micros and kind.strict:
        raise NoRow(f"{written} is finer than microseconds")
    try:
        return _EPOCH + timedelta(microseconds=whole)
    except OverflowError:
        raise NoRow(f"{written} is not in the years 1 to 9999") from None


def _zone(said: str | None) -> timedelta:
    if said in (None, "Z"):
        return timedelta()
    hours, minutes, seconds = ([int(d) for d in re.findall("[0-9]{2}", said)] + [0, 0])[:3]
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    # Unlike Python, which goes up to 24 hours; 18 are Java's limit, and there are none beyond 14.
    if minutes > 59 or seconds > 59 or offset > timedelta(hours=18):
        raise NoRow(f"{said} is no zone")
    return -offset if said[0] == "-" else offset


def _date(text: str) -> date:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
        raise NoRow(f"{text!r} is no date")
    try:
        return date(*map(int, text.split("-")))
    except ValueError:
        raise NoRow(f"{text!r} is no date") from None


def _uuid(text: str) -> UUID:
    if not re.fullmatch("[0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text):
        raise NoRow(f"{text!r} is no UUID")
    return UUID(text)


def _binary(text: str) -> bytes:
    """Base64 with its padding; white space does not count."""
    text = re.sub("[ \t\r\n]", "", text)
    if not re.fullmatch("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", text):
        raise NoRow(f"{text!r} is no base64")
    return b64decode(text)
