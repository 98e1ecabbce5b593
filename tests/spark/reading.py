"""An independent reading of a record by Python's json and decimal: the values of its columns, or why it is no row.

Where the decoder means to read otherwise than Python does, a comment that begins with "Unlike Python" says so.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np

from ratchet import Topic
from ratchet.spec.columns import Column

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_BITS = {"smallint": 16, "int": 32, "bigint": 64}
_TIMESTAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_KEY_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_LONGEST_NUMBER = 1000
_CONTROL = "\udc00"
"""Marks a control character that stands in a string as itself: half a pair, which no other string has by then."""
_GREATEST, _ROUNDED_TO_INFINITY = float(2**128 - 2**104), 2**128 - 2**103
_DAYS_OF_400_YEARS = 146_097
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = Context(prec=5000, Emin=-(10**9), Emax=10**9)


class NoRow(Exception):
    """The record has to be a dead letter."""


class Number(str):
    """A JSON number as it is written."""


class Members(list):
    """The members of a JSON object in order: (name, value), a name perhaps more than once."""


def read(topic: Topic, key: bytes | None, value: bytes | None) -> dict[str, object]:
    """{column: value} of a record, None for null; NoRow with the reason."""
    row = {} if topic.key_column is None else {topic.key_column.name: _key(topic, key)}
    if value is None and topic.tombstones == "delete":
        return row | dict.fromkeys((c.name for c in topic.value.fields), None)
    if value is None:
        raise NoRow("a tombstone")
    members = _members(value)
    binary = {c.name for c in topic.value.fields if c.type == "binary"}
    plain = [(name, None if name in binary and isinstance(v, str) else v) for name, v in members]
    if any(_CONTROL in part for part in _parts(Members(plain)) if isinstance(part, str)):
        raise NoRow("a control character")
    _check_namesakes(members, {c.name: c for c in topic.value.fields if _DECIMAL.fullmatch(c.type)})
    for column in topic.value.fields:
        row[column.name] = _field(column, [v for name, v in members if name == column.name])
    return row


def agrees(column: Column, expected: object, found: object) -> bool:
    """Whether what is staged is the value that was read."""
    if expected is None or found is None:
        return expected is found
    if column.type == "float":
        return np.float32(found) == np.float32(expected)
    if column.type == "string" and type(expected) is not str:
        return _same(expected, _parse(found))
    return type(found) is type(expected) and found == expected


def _members(value: bytes) -> Members:
    try:
        text = value.decode()
        parsed = _parse(text, strict=False)
        _check_parts(parsed)
        return _marked(text)
    except ValueError as error:
        raise NoRow(f"no JSON in UTF-8: {error}") from None
    except RecursionError:
        # Unlike Python, the decoder follows 1,000 levels, whatever called it; generated ones are far from that.
        raise NoRow("too deep") from None


def _check_parts(parsed: object) -> None:
    if not isinstance(parsed, Members):
        raise NoRow("no object")
    for part in _parts(parsed):
        if isinstance(part, Number) and len(re.sub("[^0-9]", "", part)) > _LONGEST_NUMBER:
            # Unlike Python, the decoder takes no number of more than a thousand digits, wherever it stands.
            raise NoRow("a number of too many digits")
        if isinstance(part, str) and re.search("[\ud800-\udfff]", part):
            # Unlike Python, to which half of a pair is a character.
            raise NoRow("half of a surrogate pair")


def _marked(text: str) -> Members:
    """The object with a mark for each control character that a string must not have, and that base64 may have."""
    while True:
        try:
            return _parse(text)
        except json.JSONDecodeError as error:
            # Nothing else is wrong with a text that was parsed when it was not strict.
            text = f"{text[: error.pos]}{_CONTROL}{text[error.pos + 1 :]}"


def _parse(text: str, strict: bool = True) -> object:
    """What JSON says; control characters may stand in its strings if it is not strict."""

    def refused(constant: str) -> object:
        # Unlike Python, JSON has no NaN and no Infinity.
        raise ValueError(f"{constant} is no JSON")

    decoder = json.JSONDecoder(
        parse_int=Number, parse_float=Number, parse_constant=refused, object_pairs_hook=Members, strict=strict
    )
    return decoder.decode(text)


def _parts(value: object) -> Iterator[object]:
    """Every name and every value that is no object or array, at any depth."""
    if isinstance(value, Members):
        for name, inner in value:
            yield name
            yield from _parts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner)
    else:
        yield value


def _field(column: Column, given: list[object]) -> object:
    """The value of a column, of whose values in the object the last one counts."""
    for earlier in given[:-1]:
        if earlier is not None and column.type not in ("string", "timestamp", "date"):
            # Unlike Python, which forgets it: it too must be of the declared type, if perhaps too fine or infinite.
            _value(column, earlier, counts=False)
    if not given or given[-1] is None:
        if not column.nullable:
            raise NoRow(f"{column.name} is missing or null")
        return None
    return _value(column, given[-1])


def _value(column: Column, value: object, counts: bool = True) -> object:
    """A JSON value as one of its column's type."""
    number, text = isinstance(value, Number), isinstance(value, str) and not isinstance(value, Number)
    if _DECIMAL.fullmatch(column.type) and (number or text):
        return _decimal(column, value, counts)
    if column.type == "string":
        if text and "\x00" in value:
            raise NoRow("U+0000")
        return value
    if column.type == "boolean" and isinstance(value, bool):
        return value
    if text and column.type in ("timestamp", "date", "binary"):
        return {"timestamp": _timestamp, "date": _date, "binary": _binary}[column.type](value)
    if number and column.type in _BITS and re.fullmatch("-?[0-9]+", value):
        return _integer(column, value)
    if number and column.type in ("float", "double"):
        return _finite(column, value) if counts else None
    raise NoRow(f"{column.name}: {value!r} is no {column.type}")


def _key(topic: Topic, key: bytes | None) -> object:
    """The key, which is text of its column's type."""
    column = topic.key_column
    if key is None:
        if topic.tombstones == "delete" or not column.nullable:
            raise NoRow("no key")
        return None
    if column.type == "binary":
        return key
    try:
        text = key.decode()
    except ValueError:
        raise NoRow("the key is no UTF-8") from None
    if column.type == "boolean" and text in ("true", "false"):
        return text == "true"
    if column.type in ("string", "timestamp", "date"):
        return _value(column, text)
    if column.type in _BITS and re.fullmatch("[+-]?[0-9]+", text):
        return _integer(column, text)
    if column.type in ("float", "double") and _KEY_NUMBER.fullmatch(text):
        return _finite(column, text)
    if _DECIMAL.fullmatch(column.type) and _KEY_NUMBER.fullmatch(text):
        if Decimal(text).adjusted() >= 38:
            # Unlike Python, to which 0e999 is a zero like any other.
            raise NoRow(f"the key {text!r} has too many digits")
        return _decimal(column, text)
    raise NoRow(f"the key {text!r} is no {column.type}")


def _integer(column: Column, written: str) -> int:
    value, bound = int(written), 2 ** (_BITS[column.type] - 1)
    if not -bound <= value < bound:
        raise NoRow(f"{column.name}: {value} is no {column.type}")
    return value


def _finite(column: Column, written: str) -> float:
    value = float(written) if column.type == "double" else _single(written)
    if math.isinf(value):
        raise NoRow(f"{column.name}: {written} is infinite as a {column.type}")
    return value


def _single(written: str) -> float:
    """The four-byte float nearest to a number, rounded once and not by way of eight bytes."""
    wide = float(written)
    if math.isinf(wide) or abs(wide) < 1e-60:
        return wide * 0 if abs(wide) < 1 else wide
    exact = Fraction(written)
    if abs(exact) >= _ROUNDED_TO_INFINITY:
        return math.copysign(math.inf, wide)
    near = np.float32(math.copysign(min(abs(wide), _GREATEST), wide))
    around = (near, np.nextafter(near, np.float32(-_GREATEST)), np.nextafter(near, np.float32(_GREATEST)))
    return float(min(around, key=lambda f: abs(Fraction(float(f)) - exact)))


def _decimal(column: Column, written: str, counts: bool = True) -> Decimal:
    """The decimal that is written, never rounded; one that does not count may be as fine as 38 digits leave room."""
    precision, scale = map(int, _DECIMAL.fullmatch(column.type).groups())
    number = _exact(written)
    if number is None or _decimals(number) > (scale if counts else _room(column)):
        raise NoRow(f"{column.name}: {written[:80]!r} is no {column.type}")
    if number and number.adjusted() >= precision - scale:
        raise NoRow(f"{column.name}: {written[:80]!r} is too large a {column.type}")
    return number


def _exact(written: str) -> Decimal | None:
    """The decimal that is written; None if none is, or its exponent has more than three digits."""
    # Unlike Python, the decoder takes no exponent of four digits, not even 1e0001.
    if not re.fullmatch("[-+.0-9eE]*", written) or re.search("[eE][-+]?[0-9]{4}", written):
        return None
    try:
        return Decimal(written)
    except ArithmeticError:
        return None


def _decimals(number: Decimal) -> int:
    return -number.normalize(_EXACT).as_tuple().exponent if number else 0


def _room(column: Column) -> int:
    precision, scale = map(int, _DECIMAL.fullmatch(column.type).groups())
    return scale + 38 - precision


def _check_namesakes(members: Members, decimals: dict[str, Column]) -> None:
    """Unlike Python, the decoder looks at every number under the name of a decimal column, at any depth."""
    for name, value in _members_at_any_depth(members):
        if name in decimals and isinstance(value, str):
            number, unlike = _exact(value), re.search("[^-+.0-9eE]|^[-+]?[.0-9]+[eE][-+]?[0-9]{4}", value)
            if unlike or number and _decimals(number) > _room(decimals[name]):
                raise NoRow(f"{name}: somewhere in the value stands {value[:80]!r}")


def _members_at_any_depth(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Members):
        yield from value
    for inner in value if isinstance(value, list) else ():
        yield from _members_at_any_depth(inner[1] if isinstance(value, Members) else inner)


def _timestamp(text: str) -> datetime:
    """ISO 8601, UTC where no zone is named, cut to microseconds, in the years 1 to 9999 of UTC."""
    found = _TIMESTAMP.fullmatch(text)
    if not found:
        raise NoRow(f"{text!r} is no timestamp")
    year, month, day, hour, minute = map(int, found.group(1, 2, 3, 4, 5))
    second, micros = int(found[6] or 0), int((found[7] or "").ljust(6, "0")[:6])
    if found[6] is None and found[8]:
        # Unlike ISO 8601, Spark takes a zone behind seconds only.
        raise NoRow(f"{text!r} has a zone and no seconds")
    if hour > 23 or minute > 59 or second > 59:
        raise NoRow(f"{text!r} is no time of a day")
    since = timedelta(_days(year, month, day), 0, micros, 0, minute, hour) + timedelta(seconds=second) - _zone(found[8])
    try:
        return _EPOCH + since
    except OverflowError:
        raise NoRow(f"{text!r} is not in the years 1 to 9999") from None


def _zone(said: str | None) -> timedelta:
    if said in (None, "Z"):
        return timedelta()
    offset = timedelta(hours=int(said[1:3]), minutes=int(said[-2:]))
    # Unlike Python, which goes up to 24 hours; 18 are Java's limit, and there are none beyond 14.
    if int(said[-2:]) > 59 or offset > timedelta(hours=18):
        raise NoRow(f"{said} is no zone")
    return -offset if said[0] == "-" else offset


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970; in the year 0 too, which a timestamp with a zone may name, and which Python does not know."""
    later = year + 400 if year == 0 else year
    if not 1 <= month <= 12 or not 1 <= day <= monthrange(later, month)[1]:
        raise NoRow("no such day")
    return date(later, month, day).toordinal() - _EPOCH.toordinal() - (_DAYS_OF_400_YEARS if year == 0 else 0)


def _date(text: str) -> date:
    try:
        return date(*map(int, _DATE.fullmatch(text).groups()))
    except (AttributeError, ValueError):
        raise NoRow(f"{text!r} is no date") from None


def _binary(text: str) -> bytes:
    """Base64 with its padding; unlike Python's, with groups behind the padding, and with white space between groups.

    There Spark takes control characters too, even such as JSON has in no string.
    """
    text = text.replace(_CONTROL, " ")
    if not re.fullmatch(r"(?:[\x00-\x20]*[A-Za-z0-9+/]{2}(?:==|[A-Za-z0-9+/](?:=|[A-Za-z0-9+/])))*[\x00-\x20]*", text):
        raise NoRow(f"{text!r} is no base64")
    return b"".join(b64decode(group) for group in re.findall(r"[^\x00-\x20]{4}", text))


def _same(expected: object, found: object) -> bool:
    """Whether two JSON values are one, whatever their white space and escapes.

    Unlike Python's, the text that Spark gives a number is that of its double: 5.1 for 5.10, "Infinity" for 1e999.
    """
    if isinstance(expected, Number) and isinstance(found, Number):
        whole = not re.search("[.eE]", expected)
        return int(expected) == int(found) if whole else float(expected) == float(found)
    if isinstance(expected, Number) and math.isinf(float(expected)):
        return found == ("-Infinity" if expected[0] == "-" else "Infinity")
    if isinstance(expected, (list, tuple)):
        pairs = type(found) is type(expected) and len(found) == len(expected)
        return pairs and all(map(_same, expected, found))
    return type(found) is type(expected) and found == expected
