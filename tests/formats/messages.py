"""Generated Kafka messages for a declared topic: valid values, wrong ones, and mutated bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ratchet import Json, Topic
from ratchet.spec import types as t
from ratchet.spec.columns import Column, FieldPath

from .literals import anything, half_text, literal, number, text, written

_JUNK = (
    b"", b" ", b"\n\t\r ", b"{", b"}", b"{}", b" {} ", b"[]", b"[{}]", b"null", b"true", b"0", b'""', b"NaN", b"\x00",
    b"{}\x00", b"{}{}", b"{} {}", b"{},", b",{}", b"{},{}", b"{}]", b"{}}", b"{}]}", b'{}],"x":[{}',
    b'{}],"_broken":[{}', b'{}],"_broken":null}', b"],[", b"{}]},{", b"\xef\xbb\xbf{}", b"{}\xef\xbb\xbf",
    b"\xff\xfe{\x00}\x00", b"\xc0\x80",
    b"{'a': 1}", b"{a: 1}", b"{}//x", b"/* x */{}", b"#\n{}", b"{}\x0b", b"\xc2\xa0{}", b"{,}", b'{"a"}', b'{"a":}',
    b'{"a":1,}', b'{"a" 1}', b'{"a":01}', b'{"a":+1}', b'{"a":.5}', b'{"a":1.}', b'{"a":-}', b'{"a":1e}', b'{"a":tru}',
    b'{"a":True}', b'{"a":undefined}', b'{"a":Infinity}', b'{"a":-INF}', b'{1:2}', b'{"a":"\t"}', b'{"a":"\x00"}',
)  # fmt: skip


@dataclass(frozen=True)
class Message:
    """One record as it is sent; `value` None is a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def messages(topic: Topic, count: int, rng: random.Random) -> Iterator[Message]:
    """`count` messages for the topic; the same ones for the same state of `rng`."""
    for _ in range(count):
        value = _value(topic.value, rng)
        key = _key(topic, rng)
        # The client sends no record that has neither.
        yield Message(key, value if key is not None or value is not None else b"", _headers(rng))


def _value(declared: Json, rng: random.Random) -> bytes | None:
    return rng.choices((_whole, _with_a_wrong_field, _mutated, _junk), (52, 19, 19, 10))[0](declared, rng)


def fields_of(declared: Json) -> list[Column]:
    """The columns that come from the message itself."""
    return [c for c in declared.fields if isinstance(c.source, FieldPath)]


def _whole(declared: Json, rng: random.Random) -> bytes:
    """A value as declared."""
    return _rows(declared, lambda: _object(declared, rng), rng).encode("utf-8", "surrogatepass")


def _rows(declared: Json, one: Callable[[], str], rng: random.Random) -> str:
    if declared.rows == "object":
        return one()
    return "[" + ",".join(one() for _ in range(rng.choice((0, 1, 1, 2, 3, 7)))) + "]"


def _object(declared: Json, rng: random.Random) -> str:
    """An object whose fields are as declared, though some are missing and some are null."""
    there = [c for c in fields_of(declared) if not c.nullable or rng.random() < 0.85]
    given = [(c, "null" if c.nullable and rng.random() < 0.05 else literal(c.type, rng)) for c in there]
    fields = _nested([(c.source.names, said) for c, said in given], rng)
    fields += [(text(rng, 8), anything(rng)) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    if fields and rng.random() < 0.05:
        fields.append((rng.choice(fields)[0], rng.choice(fields)[1]))
    return written(fields, rng)


def _nested(given: list[tuple[tuple[str, ...], str]], rng: random.Random) -> list[tuple[str, str]]:
    """The fields of an object that has these at these paths; where two claim one name, either may win."""
    fields: dict[str, str] = {}
    deeper: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for (name, *rest), said in given:
        if rest:
            deeper.setdefault(name, []).append((tuple(rest), said))
        else:
            fields[name] = said
    for name, inner in deeper.items():
        if name not in fields or rng.random() < 0.7:
            fields[name] = "null" if rng.random() < 0.03 else written(_nested(inner, rng), rng)
    return list(fields.items())


def _with_a_wrong_field(declared: Json, rng: random.Random) -> bytes:
    """A value like that, in which one field may be anything; it may stand deeper, or be repeated."""
    columns = fields_of(declared)
    wrong = rng.randrange(3)

    def one() -> str:
        nonlocal wrong
        wrong -= 1
        given = [(c.source.names, literal(c.type, rng)) for c in columns]
        if wrong >= 0 and declared.rows == "array":
            return written(_nested(given, rng), rng)
        at = rng.randrange(len(given))
        odd = rng.choice((anything, anything, number, half_text, lambda r: literal(rng.choice(columns).type, r)))(rng)
        path = given[at][0]
        path = path[: rng.randrange(1, len(path) + 1)]
        match rng.random():
            case p if p < 0.1:
                fields = _nested(given, rng)
                fields.insert(rng.randrange(len(fields) + 1), (path[0], odd))
            case p if p < 0.2:
                fields = [*_nested(given, rng), (text(rng, 4), written([(path[0], odd)], rng))]
            case p if p < 0.25:
                del given[at]
                fields = _nested(given, rng)
            case _:
                given[at] = (path, odd)
                fields = _nested(given, rng)
        return written(fields, rng)

    return _rows(declared, one, rng).encode("utf-8", "surrogatepass")


def _mutated(declared: Json, rng: random.Random) -> bytes:
    """The bytes of a value, with some of them changed, doubled, left out or cut off."""
    data = bytearray(_whole(declared, rng))
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at:at] = rng.choice((b'"', b"\\", b"{", b"}", b"]", b",", b"0", b"e", b".", b"-", b" ", b"\xff"))
            case 2:
                del data[at : at + rng.choice((1, 1, 2, 8))]
            case 3:
                data[at:at] = data[at : at + rng.randrange(1, 12)]
            case 4:
                del data[at:]
            case 5:
                data += rng.choice(_JUNK)
    return bytes(data)


def _junk(declared: Json, rng: random.Random) -> bytes | None:
    """What is mostly no value at all."""
    whole = _whole(declared, rng)
    match rng.randrange(14):
        case 0:
            return None
        case 1:
            return rng.randbytes(rng.randrange(40))
        case 2:
            return b"\xef\xbb\xbf" + whole
        case 3:
            return whole.decode().encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-7")))
        case 4:
            return whole + rng.choice(_JUNK)
        case 5:
            return rng.choice(_JUNK) + whole
        case 6:
            # Far below the parser's limit of depth, or far above it.
            depth = rng.choice((100, 498, 499, 500, 3000))
            inside, outside = (b"[", b"]") if rng.random() < 0.5 else (b'{"x":', b"}")
            return b'{"deep":' + inside * depth + b"0" + outside * depth + b"}"
        case 7:
            column = rng.choice(fields_of(declared)).source.names[0]
            digits = "9" * rng.choice((300, 900, 1500))
            number = rng.choice(("{}", "0.{}", "-{}.5", "{}e5", '"{}"', '"0.{}"', '"1.{}"')).format(digits)
            name = column if rng.random() < 0.8 else "unknown"
            return written([(name, number if rng.random() < 0.7 else number.replace("9", "0"))], rng).encode()
        case 8:
            return rng.choice((b"\x00\x00\x00\x00\x07", b"\x00")) + whole
        case 9:
            # Two halves that would be one if they stood side by side.
            at = rng.randrange(len(whole) + 1)
            return rng.choice((whole[:at], whole[at:], whole + b"," + whole, whole[:-1] + b',"x":[{}'))
        case _:
            return rng.choice(_JUNK)


def _key(topic: Topic, rng: random.Random) -> bytes | None:
    """A key as declared, which may not fit; where the topic declares none, anything."""
    odd = rng.random()
    if odd < 0.05:
        return None
    if isinstance(topic.key, Json):
        return _value(topic.key, rng) if odd < 0.2 else _whole(topic.key, rng)
    kind = topic.key_columns[0].type if topic.key else t.BINARY
    if odd < 0.1 or kind == t.BINARY:
        return rng.choice((b"", b"\xff", b"\x00", b"a\x00b", b" ", b"1\n", b"+1", b"NaN", rng.randbytes(12)))
    if kind == t.STRING:
        return text(rng).encode()
    said = literal(kind, rng)
    said = said.strip('"') if t.is_scalar(kind) else said
    if odd < 0.2:
        said += rng.choice(("0", ".0", "1", "e-1", "e-40", "." + "0" * 45 + "1", "\n", "Z"))
    return said.encode("utf-8", "surrogatepass")


def _headers(rng: random.Random) -> tuple[tuple[str, bytes], ...]:
    if rng.random() < 0.7:
        return ()
    return tuple(
        (
            rng.choice((text(rng, 6), "trace-id")) + rng.choice(("", "", "\x00")),
            rng.choice((b"", b"\x00\xff", b"17", b"text", rng.randbytes(70))),
        )
        for _ in range(rng.randrange(1, 4))
    )
