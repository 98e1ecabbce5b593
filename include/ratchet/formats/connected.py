"""What a field stands for by the schema of Kafka Connect, or by its declared type where there is none."""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Exact
from typing import TYPE_CHECKING, Any, cast

from msgspec import json

from ratchet.formats.objects import shown
from ratchet.spec.columns import Column
from ratchet.spec.types import MICROS, Binary, Date, Decimal, Json, Time, Timestamp, Type, Unit
from ratchet.values.unfit import Unfit

if TYPE_CHECKING:
    from ratchet.formats.debezium import Debezium

_CONNECT, _DEBEZIUM, _TIME = "org.apache.kafka.connect.data.", "io.debezium.data.", "io.debezium.time."
_DATES = (f"{_CONNECT}Date", f"{_TIME}Date")
_TIMES: dict[str, Unit] = {
    f"{_CONNECT}Time": "millis",
    f"{_TIME}Time": "millis",
    f"{_TIME}MicroTime": "micros",
    f"{_TIME}NanoTime": "nanos",
}
_MOMENTS: dict[str, Unit] = {
    f"{_CONNECT}Timestamp": "millis",
    f"{_TIME}Timestamp": "millis",
    f"{_TIME}MicroTimestamp": "micros",
    f"{_TIME}NanoTimestamp": "nanos",
}
_SCALE = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_EPOCH = date(1970, 1, 1)
_MOST_DIGITS = 1_000
"""No decimal of a source has more."""
_DAY_NANOS = 86_400_000_000_000


@dataclass(frozen=True)
class LogicalType:
    """What a schema says of a field: the name of its logical type, and that one's parameters."""

    name: str
    parameters: Mapping[str, Any]


def interpreted(column: Column, value: Any, logical: LogicalType | None, declared: Debezium) -> Any:
    """The field as `Objects.cell` takes it; Unfit where it cannot be what its schema, or the spec, says.

    What neither says anything of is left as it is.
    """
    kind = column.type
    name = "" if logical is None else logical.name
    match kind:
        case Date() if _is_whole(value) and (logical is None or name in _DATES):
            return _day(value)
        case Time() if _is_whole(value):
            return _time_of_day(kind, value, _TIMES.get(name) if logical else declared.times)
        case Timestamp() if _is_whole(value) and name in _MOMENTS:
            return _moment(kind, value, _MOMENTS[name])
        case Timestamp(None, _) if _is_whole(value):
            raise Unfit(shown(value), f"{kind}, whose unit is given, as timestamp(micros)")
        case Decimal():
            return _decimal(column, value, logical, declared)
        case Binary() if isinstance(value, str):
            return _bytes(kind, value)
        case Json() if isinstance(value, str) and (logical is None or name == f"{_DEBEZIUM}Json"):
            return _document(value)
        case _:
            return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _day(days: int) -> object:
    try:
        return _EPOCH + timedelta(days)
    except OverflowError:
        return days


def _time_of_day(kind: Type, number: int, unit: Unit | None) -> str:
    if unit is None:
        raise Unfit(shown(number), f"{kind}, whose unit is given: Debezium(…, times=…)")
    numerator, denominator = MICROS[unit]
    nanos = number * numerator * 1000 // denominator
    if not 0 <= nanos < _DAY_NANOS:
        raise Unfit(shown(number), kind)
    seconds, rest = divmod(nanos, 1_000_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:09}"


def _moment(kind: Timestamp, number: int, unit: Unit) -> object:
    if kind.unit is not None:
        if kind.unit != unit:
            raise Unfit(f"{number} {unit}, by the event's schema", kind)
        return number
    numerator, denominator = MICROS[unit]
    micros, rest = divmod(number * numerator, denominator)
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    except OverflowError:
        raise Unfit(shown(number), kind) from None
    # With the digits that a column cannot hold, so that they are counted, or refused.
    said = moment.replace(tzinfo=None).isoformat(timespec="microseconds")
    return moment if not rest else f"{said}{rest:03}Z"


def _decimal(column: Column, value: Any, logical: LogicalType | None, declared: Debezium) -> Any:
    kind = column.type
    assert isinstance(kind, Decimal)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        scale, digits = fields.get("scale"), fields.get("value")
        if _is_whole(scale) and isinstance(digits, str | bytes):
            return _unscaled(kind, digits, cast(int, scale))
        return value
    if not isinstance(value, str | bytes):
        return value
    if logical is not None:
        scale = logical.parameters.get("scale")
        if logical.name == f"{_CONNECT}Decimal" and _SCALE.fullmatch(str(scale)):
            return _unscaled(kind, value, int(cast(str, scale)))
        return value
    return (
        _unscaled(kind, value, declared.scales.get(column.name, kind.scale))
        if declared.decimals == "precise"
        else value
    )


def _unscaled(kind: Decimal, sent: str | bytes, scale: int) -> Exact:
    """The decimal of a whole number in bytes, the most significant first, which JSON has in base64, and its scale."""
    if abs(scale) > _MOST_DIGITS:
        raise Unfit(f"a decimal of scale {shown(scale)}", kind)
    number = int.from_bytes(sent if isinstance(sent, bytes) else _bytes(kind, sent), "big", signed=True)
    if number.bit_length() > 1_000:
        raise Unfit("a number of more than 300 digits", kind)
    return Exact((number < 0, tuple(map(int, str(abs(number)))), -scale))


def _bytes(kind: Type, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (NoBase64, ValueError):
        raise Unfit(f"{shown(text)}, which is no base64", kind) from None


def _document(text: str) -> object:
    try:
        return json.Decoder(float_hook=Exact).decode(text)
    except (ValueError, RecursionError, ArithmeticError):
        raise Unfit(shown(text), Json()) from None
