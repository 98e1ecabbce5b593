"""Structured values as jsonb's canonical text: what a struct, a map or an array of Arrow's is in PostgreSQL."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ratchet.spec.types import Array, Json, Map, Struct, Time, Type, Uuid, is_document
from ratchet.values.jsonb import Document, Number, canonical, parsed, written
from ratchet.values.moments import time_of_day
from ratchet.values.unfit import Unfit, excerpt
from ratchet.values.uuids import uuid_of


def staged(kind: Type, value: Any) -> Any:
    """A value as it is staged: documents as canonical text, UUIDs and times of day in their one form, arrays of these.

    Unfit where the value is none of the type.
    """
    if value is None:
        return None
    if isinstance(kind, Json):
        return canonical(value)
    if is_document(kind):
        return written(document(kind, value))
    match kind:
        case Array(element):
            return [staged(element, each) for each in value]
        case Uuid() | Time():
            return document(kind, value)
        case _:
            return value


def document(kind: Type, value: Any) -> Document:
    """A value of Arrow's as a part of a JSON document."""
    match kind:
        case _ if value is None:
            return None
        case Json():
            return parsed(value)
        case Array(element):
            return [document(element, each) for each in value]
        case Map(inner):
            pairs = value.items() if isinstance(value, Mapping) else value
            return {name: document(inner, each) for name, each in pairs}
        case Struct(members):
            return {m.name: document(m.type, value[m.name]) for m in members}
        case Uuid():
            if (uuid := uuid_of(value)) is None:
                raise Unfit(excerpt(value), kind)
            return uuid
        case Time():
            return _time_of_day(kind, value)
        case _:
            return _scalar(kind, value)


def _scalar(kind: Type, value: Any) -> Document:
    match value:
        case bool() | str():
            return value
        case int():
            return Number(value)
        case Decimal():
            return Number(format(value, "f"))
        case float():
            if not math.isfinite(value):
                raise Unfit(str(value), f"{kind}, which JSON can hold")
            return Number(repr(value))
        case datetime() | date():
            return value.isoformat()
        case bytes():
            return b64encode(value).decode()
        case _:
            raise Unfit(excerpt(repr(value)), kind)


def _time_of_day(kind: Type, value: str) -> str:
    try:
        return time_of_day(value)[0]
    except ValueError:
        raise Unfit(excerpt(value), kind) from None
