"""Declared columns: one small DDL for the spec, Spark and PostgreSQL alike, and its only parser.

    name type [from source] [not null], ...

A type is `string`, `boolean`, `smallint`, `int`, `bigint`, `float`, `double`, `decimal(p,s)`, `date`, `time`,
`timestamp`, `timestamp(seconds|millis|micros|nanos)`, either with `strict` behind it, `binary`, `uuid`, `json`,
`array<type>`, `map<string, type>` or `struct<name: type [not null], ...>`. Types and keywords may be in capitals.

A source is the path of a field in the message, `order.id` or `"@meta"."user-id"`, each name exactly as it is sent;
without one it is the field with the column's name. `_timestamp`, `_topic`, `_key`, `_headers` and `_headers.name`
without quotes are parts of the record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from ratchet.errors import SpecError
from ratchet.spec.types import (
    MICROS,
    NAMED,
    Array,
    Decimal,
    Floating,
    Integer,
    Map,
    Member,
    String,
    Struct,
    Timestamp,
    Type,
    Unit,
    quoted,
)

IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
TABLE = re.compile(r"([a-z][a-z0-9_]{0,62}\.)?[a-z][a-z0-9_]{0,62}")

DEEPEST = 32
"""So many types may be within each other."""


@dataclass(frozen=True)
class FieldPath:
    """A field of the message: its name, or names from the outermost object inwards."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        first = f'"{self.names[0]}"' if self.names[0] in _PARTS else quoted(self.names[0])
        return ".".join((first, *map(quoted, self.names[1:])))


Part = Literal["_timestamp", "_topic", "_key", "_headers"]
_PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class RecordPart:
    """A part of the Kafka record; of the headers all, or the last one of a name."""

    part: Part
    header: str | None = None

    def __str__(self) -> str:
        return self.part if self.header is None else f"{self.part}.{quoted(self.header)}"


@dataclass(frozen=True)
class Column:
    """One declared column.

    `nullable` is false after `not null`. `source` says where its value comes from, where it is declared for a message.
    """

    name: str
    type: Type
    nullable: bool = True
    origin: FieldPath | RecordPart | None = None

    @property
    def source(self) -> FieldPath | RecordPart:
        """The field of the message, or part of the record, that the value comes from."""
        return self.origin or FieldPath((self.name,))

    @property
    def exact(self) -> bool:
        """Whether sums over this column are exact."""
        return isinstance(self.type, Integer | Decimal)

    @property
    def floating(self) -> bool:
        return isinstance(self.type, Floating)

    def __str__(self) -> str:
        said = "" if self.origin is None else f" from {self.origin}"
        return f"{self.name} {self.type}{said}" + ("" if self.nullable else " not null")


@lru_cache(maxsize=1024)
def parse_columns(ddl: str) -> tuple[Column, ...]:
    """The columns of a declaration, in order; kept, since a transaction asks for them hundreds of times.

    Raises SpecError that names the column when a name is no identifier, begins with `_` (hidden columns do), is
    repeated, differs from another only in case (Spark takes the two for one), or has an unknown type.
    """
    return _Parser(ddl).columns()


_TOKEN = re.compile(r'\s*(?:(?P<quoted>"(?:[^"]|"")*")|(?P<word>[^\s,().<>:"]+)|(?P<sign>[,().<>:"]))', re.DOTALL)
_HALF = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"0|[1-9][0-9]?")


@dataclass(frozen=True)
class _Token:
    text: str
    kind: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """The name that the token is, without its quotes."""
        return self.text[1:-1].replace('""', '"') if self.kind == "quoted" else self.text

    def says(self, word: str) -> bool:
        return self.kind != "quoted" and self.text.lower() == word


class _NoType(Exception):
    """Here begins no type."""


class _Parser:
    """Reads one declaration from left to right."""

    def __init__(self, ddl: str):
        self._ddl = ddl
        self._tokens = list(_tokens(ddl))
        self._at = 0

    def columns(self) -> tuple[Column, ...]:
        found: list[Column] = []
        while True:
            column = self._column()
            for other in found:
                if other.name == column.name:
                    raise SpecError(f"column {column.name!r} is declared twice")
                if other.name.lower() == column.name.lower():
                    raise SpecError(
                        f"column {column.name!r} differs from {other.name!r} only in case, and Spark takes the two for "
                        f"one; give it another name, and say: from {quoted(column.name)}"
                    )
            found.append(column)
            if self._peek() is None:
                return tuple(found)
            self._expect(",", column.name)

    def _column(self) -> Column:
        first = self._peek()
        if first is None or first.says(","):
            raise SpecError(f'an empty column in {self._ddl!r}; write "name type, name type"')
        self._at += 1
        if first.kind == "quoted" or not IDENTIFIER.fullmatch(first.text):
            raise SpecError(
                f"{first.name!r} is not a legal column name; use up to 63 letters, 0 to 9 and _, a letter first, and "
                f"take a field of another name by from: name type from {quoted(first.name)}"
            )
        name, kind = first.text, self._declared_type(first.text)
        nullable, origin = True, None
        while (token := self._peek()) is not None and not token.says(","):
            if nullable and token.says("not"):
                self._not_null(name)
                nullable = False
            elif origin is None and token.says("from"):
                self._at += 1
                origin = self._source(name, kind)
            else:
                raise SpecError(
                    f"column {name!r}: {self._rest(token.start)!r} is not understood; write: name type [from source] "
                    "[not null]"
                )
        return Column(name, kind, nullable, None if origin == FieldPath((name,)) else origin)

    def _declared_type(self, name: str) -> Type:
        start = self._at
        try:
            return self._type(0)
        except _NoType:
            begin = self._tokens[start].start if start < len(self._tokens) else len(self._ddl)
            decimal, timestamp = "decimal(p,s) with s ≤ p ≤ 38", f"timestamp({'|'.join(get_args(Unit))})"
            known = ", ".join([*NAMED, decimal, timestamp, "array<…>", "map<string, …>", "struct<…>"])
            raise SpecError(f"column {name!r} has the unknown type {self._rest(begin)!r}; known are {known}") from None

    def _rest(self, begin: int) -> str:
        """The text from here to the end of the column, for an error, without what stands behind the type."""
        depth, end = 0, begin
        for token in self._tokens:
            if token.start < begin:
                continue
            if depth == 0 and (token.says(",") or (token.start > begin and (token.says("not") or token.says("from")))):
                break
            depth += token.text in ("(", "<")
            depth -= token.text in (")", ">")
            end = token.end
        said = " ".join(self._ddl[begin:end].split())
        return said if len(said) <= 80 else said[:80] + "…"

    def _type(self, depth: int) -> Type:
        token = self._take()
        word = token.text.lower() if token.kind == "word" else ""
        if depth > DEEPEST:
            raise _NoType
        match word:
            case "decimal":
                return self._decimal()
            case "timestamp":
                return self._timestamp()
            case "array":
                self._sign("<")
                element = self._type(depth + 1)
                self._sign(">")
                return Array(element)
            case "map":
                self._sign("<")
                if not self._take().says("string"):
                    raise _NoType
                self._sign(",")
                value = self._type(depth + 1)
                self._sign(">")
                return Map(value)
            case "struct":
                return self._struct(depth)
            case _:
                if word not in NAMED:
                    raise _NoType
                return NAMED[word]

    def _decimal(self) -> Decimal:
        self._sign("(")
        precision = self._number()
        self._sign(",")
        scale = self._number()
        self._sign(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise _NoType
        return Decimal(precision, scale)

    def _timestamp(self) -> Timestamp:
        unit: Unit | None = None
        token = self._peek()
        if token is not None and token.says("("):
            self._at += 1
            said = self._take().text.lower()
            if said not in MICROS:
                raise _NoType
            unit = said
            self._sign(")")
            token = self._peek()
        strict = token is not None and token.says("strict")
        self._at += strict
        return Timestamp(unit, strict)

    def _struct(self, depth: int) -> Struct:
        self._sign("<")
        members: list[Member] = []
        while True:
            token = self._take()
            if (
                token.kind == "sign"
                or _HALF.search(token.name)
                or any(token.name.lower() == m.name.lower() for m in members)
            ):
                raise _NoType
            self._sign(":")
            kind, nullable = self._type(depth + 1), True
            following = self._peek()
            if following is not None and following.says("not"):
                self._not_null(token.name)
                nullable = False
            members.append(Member(token.name, kind, nullable))
            following = self._take()
            if following.says(">"):
                return Struct(tuple(members))
            if not following.says(","):
                raise _NoType

    def _source(self, column: str, kind: Type) -> FieldPath | RecordPart:
        """What stands behind `from`."""
        tokens = [self._path_part(column)]
        while (token := self._peek()) is not None and token.says("."):
            self._at += 1
            tokens.append(self._path_part(column))
        names = tuple(token.name for token in tokens)
        if tokens[0].kind == "quoted" or names[0] not in _PARTS:
            return FieldPath(names)
        part = names[0]
        if len(names) > (2 if part == "_headers" else 1):
            raise SpecError(
                f'column {column!r}: {part} has no such part; a field of that name is written in quotes: from "{part}"'
            )
        if part == "_timestamp" and not isinstance(kind, Timestamp):
            raise SpecError(f"column {column!r}: the record's timestamp is a timestamp, and not a {kind}")
        if part == "_topic" and not isinstance(kind, String):
            raise SpecError(f"column {column!r}: the name of the record's topic is a string, and not a {kind}")
        return RecordPart(part, names[1] if len(names) == 2 else None)

    def _path_part(self, column: str) -> _Token:
        token = self._peek()
        if token is None or token.kind == "sign" or (token.kind == "word" and quoted(token.text) != token.text):
            said = "" if token is None else f", not {token.text!r}"
            raise SpecError(
                f'column {column!r}: from takes the name of a field, in quotes where it is odd ("user-id"){said}'
            )
        if _HALF.search(token.name):
            raise SpecError(
                f"column {column!r}: {token.name!r} holds half of a surrogate pair, and no field has that name"
            )
        self._at += 1
        return token

    def _not_null(self, column: str) -> None:
        self._at += 1
        token = self._peek()
        if token is None or not token.says("null"):
            raise SpecError(f"column {column!r}: after not comes null")
        self._at += 1

    def _number(self) -> int:
        said = self._take().text
        if not _NUMBER.fullmatch(said):
            raise _NoType
        return int(said)

    def _sign(self, sign: str) -> None:
        if not self._take().says(sign):
            raise _NoType

    def _expect(self, sign: str, column: str) -> None:
        token = self._peek()
        if token is None or not token.says(sign):
            raise SpecError(f"column {column!r}: a {sign} is missing behind it")
        self._at += 1

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _take(self) -> _Token:
        token = self._peek()
        if token is None:
            raise _NoType
        self._at += 1
        return token


def _tokens(ddl: str) -> Iterator[_Token]:
    at, end = 0, len(ddl.rstrip())
    while at < end:
        found = _TOKEN.match(ddl, at)
        assert found is not None  # every character but white space begins a token
        kind = str(found.lastgroup)
        yield _Token(found[kind], kind, found.start(kind), found.end(kind))
        at = found.end()
