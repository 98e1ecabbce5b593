"""JSON as PostgreSQL's jsonb writes it: `canonical(x)` is what `x::jsonb::text` gives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring  # pyright: ignore[reportUnknownVariableType]
from typing import cast

from ratchet.values.unfit import Unfit, excerpt

_PLAIN = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_EXPONENT = re.compile(r"[eE]([-+]?[0-9]{1,20})[0-9]*$")
_LARGEST_EXPONENT = (2**31 - 1) // 2
"""PostgreSQL reads no exponent from here on, not even of a zero."""
_WHOLE_DIGITS, _DECIMALS = 131_072, 16_383
"""PostgreSQL's numeric has so many digits before the point, and so many behind it."""
_quote = cast("type[str]", encode_basestring)


class Number(str):
    """A number with its digits as they were sent."""


Document = None | bool | str | Number | Sequence["Document"] | Mapping[str, "Document"]


def _refused(constant: str) -> Document:
    raise ValueError(f"{constant} is no JSON")


def _members(pairs: list[tuple[str, Document]]) -> Document:
    """An object's members, of doubled ones the last; jsonb reads the others too, and refuses what it cannot hold."""
    members = dict(pairs)
    if len(members) < len(pairs):
        for name, value in pairs:
            # Those alone that are hidden: each is written once, however deep it stands.
            if members[name] is not value:
                written(value)
    return members


_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=_refused, object_pairs_hook=_members)


def canonical(text: str) -> str:
    """The one text that jsonb has for a JSON text: members in its order, of doubled ones the last, numbers written out.

    Raises Unfit for what jsonb refuses: U+0000, halves of surrogate pairs, numbers beyond `numeric`, and what is no
    JSON.
    """
    return written(parsed(text))


def parsed(text: str) -> Document:
    """A JSON text as a document, whose numbers keep their digits; Unfit if it is none."""
    try:
        return cast(Document, _DECODER.decode(text))
    except (ValueError, RecursionError):
        raise Unfit(excerpt(text), "json") from None


def written(document: Document) -> str:
    """The text of a document that is parsed already."""
    parts: list[str] = []
    _write(document, parts)
    said = "".join(parts)
    if "\\u0000" in said and any("\x00" in text for text in _texts(document)):
        raise Unfit("text with U+0000", "json")
    try:
        said.encode()
    except UnicodeEncodeError:
        raise Unfit("half of a surrogate pair", "json") from None
    return said


def _write(value: Document, parts: list[str]) -> None:
    """One frame of Python a level, so that no document is too deep which the format takes."""
    if isinstance(value, Number):
        parts.append(_number(value))
    elif isinstance(value, str):
        parts.append(_quote(value))
    elif value is None:
        parts.append("null")
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, Mapping):
        separator = "{"
        for name in sorted(value, key=_order):
            parts.append(separator)
            parts.append(_quote(name))
            parts.append(": ")
            _write(value[name], parts)
            separator = ", "
        parts.append("{}" if separator == "{" else "}")
    else:
        separator = "["
        for inner in value:
            parts.append(separator)
            _write(inner, parts)
            separator = ", "
        parts.append("[]" if separator == "[" else "]")


def _order(name: str) -> tuple[int, bytes]:
    """Shorter names first, those of one length by their bytes."""
    said = name.encode(errors="surrogatepass")
    return len(said), said


def _number(digits: str) -> str:
    if _PLAIN.fullmatch(digits):
        whole, _, fraction = digits.lstrip("-").partition(".")
        said = digits
    else:
        exponent = int(_EXPONENT.search(digits)[1])  # pyright: ignore[reportOptionalSubscript]
        exact = Decimal(digits) if abs(exponent) < _LARGEST_EXPONENT else None
        if exact is not None and not exact and int(exact.as_tuple().exponent) > 0:
            return "0"
        # What is too long needs no further look, and to write it out would take a megabyte.
        if exact is None or exact.adjusted() > _WHOLE_DIGITS or -int(exact.as_tuple().exponent) > _DECIMALS:
            raise Unfit(excerpt(digits), "json with numbers that PostgreSQL's numeric can hold")
        said = format(exact, "f")
        whole, _, fraction = said.lstrip("-").partition(".")
    if len(whole) > _WHOLE_DIGITS or len(fraction) > _DECIMALS:
        raise Unfit(excerpt(digits), "json with numbers that PostgreSQL's numeric can hold")
    return said if said[0] != "-" or said.strip("-0.") else said[1:]


def _texts(value: Document) -> list[str]:
    """Every name and every text in a document."""
    found: list[str] = []
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            found += value
            left += value.values()
        elif isinstance(value, str):
            found.append(value)
        elif isinstance(value, Sequence):
            left += value
    return found
