"""Moments, dates and times of day, as texts and numbers have them; the years are 1 to 9999."""

from __future__ import annotations

import re
from datetime import date
from decimal import Context, Decimal, InvalidOperation

from ratchet.spec.types import MICROS, Unit

_ZONE = r"(?:Z|([+-])(\d\d)(?::?(\d\d)(?::?(\d\d))?)?)(?:\[[A-Za-z0-9_+/:-]+\])?"
_MOMENT = re.compile(
    rf"(\d{{4}})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{{1,9}}))?)?(?:{_ZONE})?",
    re.ASCII,
)
_TIME = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_EPOCH = date(1970, 1, 1).toordinal()
_WIDEST_ZONE = 18 * 3600
"""Java's limit; nobody lives beyond 14 hours."""
_EXACT = Context(prec=60)
EARLIEST = (date(1, 1, 1).toordinal() - _EPOCH) * 86_400_000_000
AFTER_LATEST = (date(9999, 12, 31).toordinal() + 1 - _EPOCH) * 86_400_000_000


def moment(text: str) -> tuple[int, bool]:
    """(microseconds since 1970, whether digits were cut) of an ISO 8601 text; UTC where it names no zone.

    Takes what Java, Python, Go, JavaScript and PostgreSQL write: `T` or a space; seconds may be left out, and have at
    most nine decimals; zones are `Z`, `+hh`, `+hhmm`, `+hh:mm` or `+hh:mm:ss`, and may have a region in brackets behind
    them, which changes nothing. Raises ValueError for every other text.
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second, fraction, sign, *offset = found.groups()
    days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    micros, cut = _since_midnight(hour, minute, second, fraction)
    if sign:
        hours, minutes, seconds = (int(part or 0) for part in offset)
        zone = hours * 3600 + minutes * 60 + seconds
        if minutes > 59 or seconds > 59 or zone > _WIDEST_ZONE:
            raise ValueError(text)
        micros -= zone * 1_000_000 if sign == "+" else -zone * 1_000_000
    return _within_years(days * 86_400_000_000 + micros), cut


def moment_of_number(number: str, unit: Unit) -> tuple[int, bool]:
    """(microseconds since 1970, whether digits were cut) of so many units since 1970; ValueError if out of range."""
    try:
        exact = Decimal(number)
    except InvalidOperation:
        raise ValueError(number) from None
    if exact and exact.adjusted() > 25:
        raise ValueError(number)
    numerator, denominator = MICROS[unit]
    # Digits beyond 40 decimals say only that something was cut.
    kept = exact.quantize(Decimal("1e-12"), rounding="ROUND_FLOOR", context=_EXACT)
    scaled = _EXACT.divide(_EXACT.multiply(kept, Decimal(numerator)), Decimal(denominator))
    micros = int(scaled.to_integral_value(rounding="ROUND_FLOOR"))
    return _within_years(micros), micros != scaled or kept != exact


def day(text: str) -> date:
    """The day of `yyyy-mm-dd`; ValueError for every other text."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return date(*map(int, found.groups()))


def time_of_day(text: str) -> tuple[str, bool]:
    """(`hh:mm:ss.ffffff`, whether digits were cut) of `hh:mm`, `hh:mm:ss` or `hh:mm:ss.f`, without a zone."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    hour, minute, second, fraction = found.groups()
    _, cut = _since_midnight(hour, minute, second, fraction)
    return f"{hour}:{minute}:{second or '00'}.{(fraction or '')[:6].ljust(6, '0')}", cut


def _since_midnight(hour: str, minute: str, second: str | None, fraction: str | None) -> tuple[int, bool]:
    hours, minutes, seconds = int(hour), int(minute), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(f"{hour}:{minute}:{second}")
    digits = (fraction or "").ljust(9, "0")
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(digits[:6]), digits[6:] != "000"


def _within_years(micros: int) -> int:
    if not EARLIEST <= micros < AFTER_LATEST:
        raise ValueError(micros)
    return micros
