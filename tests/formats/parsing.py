"""An independent parsing of JSON by Python's json, with the characters that each value was sent as."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import JSONArray, JSONObject, scanstring
from json.scanner import py_make_scanner

_DEEPEST = 500


class NoRow(Exception):
    """The record has to be a dead letter."""


class Number(str):
    """A JSON number as it is written."""


class Members(list):
    """The members of a JSON object in order: (name, sent), a name perhaps more than once."""

    def last(self) -> dict[str, Sent]:
        return dict(self)


@dataclass(frozen=True)
class Sent:
    """A JSON value, and the characters that it was sent as."""

    value: object
    text: str


def parse(value: bytes) -> Sent:
    """The JSON of a value, all of it looked at."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        text = value.decode()
        sent = _Spanning().whole(text)
    except (ValueError, RecursionError) as error:
        raise NoRow(f"no JSON in UTF-8: {error}") from None
    finally:
        sys.setrecursionlimit(limit)
    for part, depth in _parts(sent):
        if depth > _DEEPEST:
            # Unlike Python, which has its own limit.
            raise NoRow("too deep")
        if isinstance(part, str) and re.search("[\ud800-\udfff]", part):
            # Unlike Python, to which half of a pair is a character.
            raise NoRow("half of a surrogate pair")
    return sent


class _Spanning(json.JSONDecoder):
    """Python's own decoder, with the characters of each value."""

    def __init__(self) -> None:
        super().__init__(parse_int=Number, parse_float=Number, parse_constant=self._refused)
        self.parse_string = scanstring
        self.parse_object = lambda state, strict, *_: JSONObject(state, strict, self._sent, None, Members, {})
        self.parse_array = lambda state, _: JSONArray(state, self._sent)
        self._scan = py_make_scanner(self)

    def whole(self, text: str) -> Sent:
        at = len(text) - len(text.lstrip(" \t\n\r"))
        try:
            sent, end = self._sent(text, at)
        except StopIteration as error:
            raise ValueError(f"nothing at {error.value}") from None
        if text[end:].strip(" \t\n\r"):
            raise ValueError("text behind it")
        return sent

    def _sent(self, text: str, at: int) -> tuple[Sent, int]:
        value, end = self._scan(text, at)
        return Sent(value, text[at:end]), end

    @staticmethod
    def _refused(constant: str) -> object:
        # Unlike Python, JSON has no NaN and no Infinity.
        raise ValueError(f"{constant} is no JSON")


def _parts(sent: Sent) -> Iterator[tuple[object, int]]:
    """Every name and every value that is no object or array, with the number of brackets around it."""
    left: list[tuple[object, int]] = [(sent.value, 0)]
    while left:
        value, depth = left.pop()
        if isinstance(value, list):
            yield None, depth + 1
            for inner in value:
                name, each = inner if isinstance(inner, tuple) else (None, inner)
                left += [(name, depth + 1), (each.value, depth + 1)]
        else:
            yield value, depth
