"""Generated Kafka messages for a declared topic: valid values at their bounds, wrong ones, and mutated bytes."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from ratchet import Json, Topic
from ratchet.spec import types as t
from ratchet.spec.columns import Column, FieldPath

_LETTERS = (
    string.ascii_letters + string.digits + " .,:;-_/{}[]'" + "äß€ \u0661\ufeff\ufffd\u2028\U0001f600\U0010ffff\x7f"
)
_ESCAPES = ("\\n", "\\\\", '\\"', "\\/", "\\u0041", "\\u20aC", "\\ud83d\\ude00", "\\\\ud800", "\\b\\f\\r\\t")
_WRONG_ESCAPES = ("\\u0000", "\\ud800", "\\udc00", "\\ud83d\\\\ude00", "\\ude00\\ud83d", "\\x41", "\\u12", "\\", "\n")
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
    fields += [(_text(rng, 8), _any(rng)) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    if fields and rng.random() < 0.05:
        fields.append((rng.choice(fields)[0], rng.choice(fields)[1]))
    return _written(fields, rng)


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
            fields[name] = "null" if rng.random() < 0.03 else _written(_nested(inner, rng), rng)
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
            return _written(_nested(given, rng), rng)
        at = rng.randrange(len(given))
        odd = rng.choice((_any, _any, _number, _half_text, lambda r: literal(rng.choice(columns).type, r)))(rng)
        path = given[at][0]
        path = path[: rng.randrange(1, len(path) + 1)]
        match rng.random():
            case p if p < 0.1:
                fields = _nested(given, rng)
                fields.insert(rng.randrange(len(fields) + 1), (path[0], odd))
            case p if p < 0.2:
                fields = [*_nested(given, rng), (_text(rng, 4), _written([(path[0], odd)], rng))]
            case p if p < 0.25:
                del given[at]
                fields = _nested(given, rng)
            case _:
                given[at] = (path, odd)
                fields = _nested(given, rng)
        return _written(fields, rng)

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
            return _written([(name, number if rng.random() < 0.7 else number.replace("9", "0"))], rng).encode()
        case 8:
            return rng.choice((b"\x00\x00\x00\x00\x07", b"\x00")) + whole
        case 9:
            # Two halves that would be one if they stood side by side.
            at = rng.randrange(len(whole) + 1)
            return rng.choice((whole[:at], whole[at:], whole + b"," + whole, whole[:-1] + b',"x":[{}'))
        case _:
            return rng.choice(_JUNK)


def _written(fields: list[tuple[str, str]], rng: random.Random) -> str:
    """The fields as one object, in any order unless a name is there twice, with white space and escapes in names."""
    if len({name for name, _ in fields}) == len(fields):
        rng.shuffle(fields)
    gap = rng.choice(("", "", "", " ", "\n", "\t \r\n"))
    inner = f",{gap}".join(f"{gap}{_name(name, rng)}{gap}:{gap}{value}" for name, value in fields)
    return f"{gap}{{{inner}{gap}}}{gap}"


def _name(name: str, rng: random.Random) -> str:
    said = json.dumps(name, ensure_ascii=False)
    if len(name) and name.isascii() and name.isalnum() and rng.random() < 0.05:
        said = f'"\\u{ord(name[0]):04{rng.choice("xX")}}{name[1:]}"'
    return said


def literal(kind: t.Type, rng: random.Random) -> str:
    """JSON for a value of the type, most of them such as fit, many at their bounds."""
    match kind:
        case t.Decimal(precision, scale):
            return _decimal(precision, scale, rng)
        case t.Integer(bits):
            return _integer(bits, rng)
        case t.Timestamp(unit, _) if unit is not None:
            return _epoch(unit, rng)
        case t.Json():
            return _any(rng) if rng.random() < 0.9 else rng.choice(_NUMERICS)
        case t.Array(element):
            inner = ["null" if rng.random() < 0.1 else literal(element, rng) for _ in range(rng.choice((0, 1, 2, 5)))]
            return rng.choice(("[{}]", "[ {} ]")).format(", ".join(inner))
        case t.Map(value):
            pairs = [(_text(rng, 5), literal(value, rng)) for _ in range(rng.choice((0, 1, 2, 4)))]
            return _written([*pairs, *pairs[: rng.random() < 0.1]], rng)
        case t.Struct(members):
            there = [m for m in members if rng.random() < (0.85 if m.nullable else 0.99)]
            extra = [(_text(rng, 4), _any(rng))] if rng.random() < 0.1 else []
            return _written([*((m.name, literal(m.type, rng)) for m in there), *extra], rng)
    return _LITERALS[str(kind).partition(" ")[0]](rng)


_NUMERICS = (
    "1e5", "1E+2", "1.50", "-0", "-0.0", "-0e5", "0e-3", "12e-1", "1e-5", "0.50e1", "1e30", "1e131071", "1e131072",
    "1e-16383", "1e-16384", "0e99999", "1e99999999", "123456789012345678901234567890.5", '"\\u0000"',
    '{"b":1,"aa":2,"a":3}',
    '{"a":1,"a":2}', "[1,[],{}]", '"\\u001f\\u007f\\/"', '{"\\u00e9":1,"zz":2,"z":1}', "5e2000000000", "0e2000000000",
)  # fmt: skip


def _epoch(unit: str, rng: random.Random) -> str:
    """So many units since 1970."""
    digits = {"seconds": 0, "millis": 3, "micros": 6, "nanos": 9}[unit]
    at = rng.choice(
        (0, 1, -1, rng.randrange(2 * 10**9), rng.randrange(-(10**10), 10**10), rng.randrange(-63 * 10**9, 254 * 10**9))
    )
    said = str(at * 10**digits + rng.choice((0, 0, rng.randrange(10**digits))))
    if rng.random() < 0.15:
        said += "." + "".join(rng.choices(string.digits, k=rng.choice((1, 3, 6, 9, 20))))
    if rng.random() < 0.05:
        said = rng.choice(
            ("1e3", "1e-9", "-1e-40", "1e99", "-0", '"1714557600"', "1e999999999", "253402300800", "0.1e-3")
        )
    return said


def _time(rng: random.Random) -> str:
    said = f"{rng.randrange(24):02}:{rng.randrange(60):02}"
    if rng.random() < 0.8:
        said += f":{rng.randrange(60):02}"
        digits = rng.choice((0, 3, 6, 9, rng.randrange(1, 10)))
        said += "." + "".join(rng.choices(string.digits, k=digits)) if digits else ""
    if rng.random() < 0.08:
        said = rng.choice(
            ("24:00", "10", "10:60", "10:00:60", "10:00Z", "10:00+01:00", "T10:00", "1:00", "10:00:00.", said + "\\n")
        )
    return f'"{said}"'


def _uuid(rng: random.Random) -> str:
    said = str(UUID(int=rng.getrandbits(128)))
    if rng.random() < 0.1:
        said = rng.choice(
            (
                said.replace("-", ""),
                said.upper(),
                "{" + said + "}",
                said[:-1],
                said.replace("-", "", 1),
                "urn:uuid:" + said,
                "",
            )
        )
    return f'"{said}"'


def _integer(bits: int, rng: random.Random) -> str:
    bound = 2 ** (bits - 1)
    if rng.random() < 0.04:
        return rng.choice((str(bound), str(-bound - 1), "1.0", "1e2", "-0", "0.5", str(2**70), '"1"'))
    return str(rng.choice((0, 1, -1, bound - 1, -bound, rng.randrange(-bound, bound), rng.randrange(-99, 100))))


def _float(rng: random.Random) -> str:
    if rng.random() < 0.05:
        return rng.choice(("1e999", "-1e999", "1.8e308", "3.4028236e38", "3.4028235677973366e38", '"NaN"', '"1.5"'))
    edges = ("0", "-0", "-0.0", "1e-999", "4.9e-324", "2.5e-324", "1.7976931348623157e308", "3.4028235e38", "16777217")
    exact = "".join(rng.choices(string.digits, k=rng.randrange(1, 30)))
    return rng.choice(
        (
            rng.choice(edges),
            repr(rng.uniform(-1e6, 1e6)),
            repr(rng.uniform(-3, 3) * 10 ** rng.randrange(-44, 37)),
            f"{rng.choice(('', '-'))}{rng.randrange(100)}.{exact}{rng.choice(('', 'e-5', 'E+7'))}",
            str(rng.randrange(-(2**70), 2**70)),
        )
    )


def _decimal(precision: int, scale: int, rng: random.Random) -> str:
    """Digits that fit, or nearly; with zeros behind them, as an exponent, in a string."""
    whole, fraction = precision - scale, scale
    if rng.random() < 0.06:
        whole, fraction = whole + rng.choice((0, 1)), fraction + rng.choice((0, 1, 40))
    digits = "".join(rng.choices(string.digits + "999", k=rng.choice((whole, rng.randrange(whole + 1)))))
    said = digits.lstrip("0") or "0"
    if fraction and rng.random() < 0.8:
        said += "." + "".join(rng.choices(string.digits, k=rng.randrange(1, fraction + 1)))
        said += "0" * rng.choice((0, 0, 0, 3, 50))
    said = rng.choice(("", "-")) + said
    if rng.random() < 0.1:
        said += rng.choice(("e0", "E+1", "e-1", "e5", "e-30", "e30", "e999", "e-999", "e1000", "e-0001", "e99999999"))
    if rng.random() < 0.03:
        return rng.choice(
            ('"12,50"', '"1.5\\n"', '" 1"', '""', '"."', '".5"', '"+1"', '"1."', '"0x1"', '"NaN"', '"1e"')
        )
    return f'"{said}"' if rng.random() < 0.2 else said


def _boolean(rng: random.Random) -> str:
    return rng.choice(("true", "false")) if rng.random() < 0.97 else rng.choice(('"true"', "0", "TRUE"))


def _text(rng: random.Random, most: int = 20) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randrange(most)))


def _string(rng: random.Random) -> str:
    said = json.dumps(_text(rng), ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.3:
        said = f'"{rng.choice(_ESCAPES)}{said[1:-1]}{rng.choice(_ESCAPES)}"'
    return _half_text(rng) if rng.random() < 0.03 else _any(rng) if rng.random() < 0.05 else said


def _half_text(rng: random.Random) -> str:
    """A string with something in it that is no text, or is none for PostgreSQL."""
    return f'"{rng.choice(("", "a", *_ESCAPES))}{rng.choice(_WRONG_ESCAPES)}{rng.choice(("", "b", *_ESCAPES))}"'


def _timestamp(rng: random.Random) -> str:
    at = datetime(1, 1, 1) + timedelta(seconds=rng.randrange(315_537_897_600))
    near = rng.choice((datetime(1, 1, 1, 0, 30), datetime(9999, 12, 31, 23, 30), datetime(1970, 1, 1), at, at))
    said = near.strftime(f"{near.year:04}-%m-%d{rng.choice('TTT ')}%H:%M")
    seconds = rng.random() < 0.9
    if seconds:
        said += f":{near.second:02}"
        digits = rng.choice((0, 3, 6, rng.randrange(1, 10)))
        said += "." + "".join(rng.choices(string.digits, k=digits)) if digits else ""
    said += rng.choice(
        ("", "", "Z", "Z", "Z", "Z", "+00:00", "-01:00", "+05:30", "+0100", "-18:00", "+18:00", "-00:30", "+00",
         "+0000", "+02:00[Europe/Paris]", "Z[UTC]", "+00:53:28", "-17:59")
    )  # fmt: skip
    if rng.random() < 0.08:
        said = rng.choice(
            (
                said.replace("-0", "-", 1), said.replace(":", ";"), said + "\\n", " " + said, said + " UTC", said[:13],
                said.replace("T", "t"), "0000-12-31T23:30:00-01:00", "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z",
                "2013-02-29T00:00:00Z", "2012-02-29T00:00:00Z", "2013-01-01T24:00:00Z", "2013-01-01T23:59:60Z", "now",
                "2013-01-01T00:00:00+18:01", "2013-01-01T00:00:00+01:60", "2013-01-01T00:00:00.Z", "", "epoch", "2013",
                "2013-13-01T00:00:00", "2013-01-01T10:00:00.1234567890", "2013-01-01T10:60:00",
                "2013-01-01T10:00:00+01", "2013-01-01T10:00[UTC]", "T10:00", "2013-01-01T10:00Z[]",
                "20130101T100000Z", "2013-01-01T00:00:00-19:00", "2013-01-01T10", "\u0662013-01-01T00:00:00Z",
            )
        )  # fmt: skip
    return f'"{said}"'


def _date(rng: random.Random) -> str:
    at = datetime(1, 1, 1) + timedelta(days=rng.randrange(3_652_059))
    said = f"{at.year:04}-{at.month:02}-{at.day:02}"
    if rng.random() < 0.08:
        said = rng.choice(
            (
                "0000-01-01",
                "10000-01-01",
                "2013-02-29",
                "2012-02-29",
                "2013-2-3",
                said + "\\n",
                said + "T00",
                "today",
                "",
            )
        )
    return f'"{said}"' if rng.random() < 0.98 else _any(rng)


def _binary(rng: random.Random) -> str:
    said = base64.b64encode(rng.randbytes(rng.randrange(20))).decode()
    if rng.random() < 0.1:
        said = rng.choice(
            (said.rstrip("="), said + " ", " " + said, said + "=", said[:-1], said + "\\n", "QUI=QUI=", "QR==", "-_-_",
             "QQ= =", "Q Q==", "\\u0051Q==", "====", "A", "ä")
        )  # fmt: skip
    return f'"{said}"'


def _number(rng: random.Random) -> str:
    return rng.choice((_float, lambda r: _integer(80, r), lambda r: _decimal(60, 30, r)))(rng)


def _any(rng: random.Random, depth: int = 3) -> str:
    """Any JSON value, or a literal that is none."""
    if depth and rng.random() < 0.3:
        inner = [_any(rng, depth - 1) for _ in range(rng.randrange(4))]
        if rng.random() < 0.5:
            return f"[{', '.join(inner)}]"
        return "{" + ",".join(f"{json.dumps(_text(rng, 5))}: {each}" for each in inner) + "}"
    if rng.random() < 0.02:
        return rng.choice(("NaN", "Infinity", "-Infinity", "nul", "'x'", "+1", "01", "1.", ".5", "", "0x10", "1_000"))
    return rng.choice((_number, _string_only, _boolean, lambda _: "null", _timestamp, _date, _float))(rng)


def _string_only(rng: random.Random) -> str:
    return json.dumps(_text(rng))


_LITERALS: dict[str, Callable[[random.Random], str]] = {
    "boolean": _boolean,
    "time": _time,
    "uuid": _uuid,
    "float": _float,
    "double": _float,
    "string": _string,
    "timestamp": _timestamp,
    "date": _date,
    "binary": _binary,
}


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
        return _text(rng).encode()
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
            rng.choice((_text(rng, 6), "trace-id")) + rng.choice(("", "", "\x00")),
            rng.choice((b"", b"\x00\xff", b"17", b"text", rng.randbytes(70))),
        )
        for _ in range(rng.randrange(1, 4))
    )
