"""Generated JSON for a value of a declared type: most of it such as fits, at its bounds, some of it wrong."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from ratchet.spec import types as t

_LETTERS = (
    string.ascii_letters + string.digits + " .,:;-_/{}[]'" + "äß€ \u0661\ufeff\ufffd\u2028\U0001f600\U0010ffff\x7f"
)
_ESCAPES = ("\\n", "\\\\", '\\"', "\\/", "\\u0041", "\\u20aC", "\\ud83d\\ude00", "\\\\ud800", "\\b\\f\\r\\t")
_WRONG_ESCAPES = ("\\u0000", "\\ud800", "\\udc00", "\\ud83d\\\\ude00", "\\ude00\\ud83d", "\\x41", "\\u12", "\\", "\n")


def written(fields: list[tuple[str, str]], rng: random.Random) -> str:
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
            return anything(rng) if rng.random() < 0.9 else rng.choice(_NUMERICS)
        case t.Array(element):
            inner = ["null" if rng.random() < 0.1 else literal(element, rng) for _ in range(rng.choice((0, 1, 2, 5)))]
            return rng.choice(("[{}]", "[ {} ]")).format(", ".join(inner))
        case t.Map(value):
            pairs = [(text(rng, 5), literal(value, rng)) for _ in range(rng.choice((0, 1, 2, 4)))]
            return written([*pairs, *pairs[: rng.random() < 0.1]], rng)
        case t.Struct(members):
            there = [m for m in members if rng.random() < (0.85 if m.nullable else 0.99)]
            extra = [(text(rng, 4), anything(rng))] if rng.random() < 0.1 else []
            return written([*((m.name, literal(m.type, rng)) for m in there), *extra], rng)
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


def text(rng: random.Random, most: int = 20) -> str:
    return "".join(rng.choices(_LETTERS, k=rng.randrange(most)))


def _string(rng: random.Random) -> str:
    said = json.dumps(text(rng), ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.3:
        said = f'"{rng.choice(_ESCAPES)}{said[1:-1]}{rng.choice(_ESCAPES)}"'
    return half_text(rng) if rng.random() < 0.03 else anything(rng) if rng.random() < 0.05 else said


def half_text(rng: random.Random) -> str:
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
    return f'"{said}"' if rng.random() < 0.98 else anything(rng)


def _binary(rng: random.Random) -> str:
    said = base64.b64encode(rng.randbytes(rng.randrange(20))).decode()
    if rng.random() < 0.1:
        said = rng.choice(
            (said.rstrip("="), said + " ", " " + said, said + "=", said[:-1], said + "\\n", "QUI=QUI=", "QR==", "-_-_",
             "QQ= =", "Q Q==", "\\u0051Q==", "====", "A", "ä")
        )  # fmt: skip
    return f'"{said}"'


def number(rng: random.Random) -> str:
    return rng.choice((_float, lambda r: _integer(80, r), lambda r: _decimal(60, 30, r)))(rng)


def anything(rng: random.Random, depth: int = 3) -> str:
    """Any JSON value, or a literal that is none."""
    if depth and rng.random() < 0.3:
        inner = [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
        if rng.random() < 0.5:
            return f"[{', '.join(inner)}]"
        return "{" + ",".join(f"{json.dumps(text(rng, 5))}: {each}" for each in inner) + "}"
    if rng.random() < 0.02:
        return rng.choice(("NaN", "Infinity", "-Infinity", "nul", "'x'", "+1", "01", "1.", ".5", "", "0x10", "1_000"))
    return rng.choice((number, _string_only, _boolean, lambda _: "null", _timestamp, _date, _float))(rng)


def _string_only(rng: random.Random) -> str:
    return json.dumps(text(rng))


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
