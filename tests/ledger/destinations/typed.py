"""Rows with a column of every type, the ends of each among their cells, and how a line writes them."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa

from ratchet import Pipeline
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import SinkVote, Tag
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import Open
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.writer import Into, Writer
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.values.arrow import arrow_schema

from ..staging import Log, a_try, start, vote_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCALARS = (
    "b boolean, s smallint, i int, l bigint, f float, d double, t string, y binary, da date, ts timestamp, "
    "tse timestamp(seconds), tmi timestamp(millis), tmc timestamp(micros), tna timestamp(nanos), de decimal(10,2), "
    "dx decimal(38,18), u uuid, ti time"
)
COLUMNS = (
    f"{SCALARS}, j json, ab array<boolean>, ass array<smallint>, ai array<int>, al array<bigint>, af array<float>, "
    "ad array<double>, at array<string>, ay array<binary>, ada array<date>, ats array<timestamp>, "
    "ade array<decimal(10,2)>, au array<uuid>, ati array<time>, aa array<array<int>>, aj array<json>, "
    'm map<string, double>, st struct<"odd name": string, n: bigint not null, d: decimal(38,18), at: timestamp, '
    "y: binary, ti: time, u: uuid, da: date, f: float, l: array<string>, m: map<string, boolean>, j: json>"
)
_MICROS = (-62_135_596_800_000_000, 253_402_300_799_999_999, -1, 0, 1, 1_714_557_600_000_000)
_DOUBLES = (0.0, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1 / 3, 1e22, -1e-7, 123456789.125, 2**53 + 2.0)
_SINGLES = (0.0, -0.0, 1e-45, 3.4028234663852886e38, 0.1, 1 / 3, 16777216.0, -1e-7)
_TEXTS = ("", 'é\n\t"\\/', "\u0001\u007f\u2028\U0001f600", "null", '{"a":1}', " ", "NaN", "x" * 300)


def cells(dice: random.Random) -> dict:
    """A cell of each column, as Arrow has it, the ends of each type among them; a quarter of them are null."""

    def one(*made):
        return lambda: dice.choice(made)

    def whole(bits: int):
        return lambda: dice.choice(
            [-(1 << bits - 1), (1 << bits - 1) - 1, 0, dice.randrange(-(1 << bits - 1), 1 << bits - 1)]
        )

    def moment() -> datetime:
        return EPOCH + timedelta(microseconds=dice.choice([*_MICROS, dice.randrange(-(10**15), 10**16)]))

    def time() -> str:
        return dice.choice(["00:00:00.000000", "23:59:59.999999", "12:30:00.500000", "07:08:09.000001"])

    def exact(digits: int, scale: int):
        return lambda: Decimal(
            f"{dice.choice([0, 1, -1, 10**digits - 1, 1 - 10**digits, dice.randrange(10**digits)])}E-{scale}"
        )

    make = {
        "b": one(True, False),
        "s": whole(16),
        "i": whole(32),
        "l": whole(64),
        "f": lambda: pa.scalar(dice.choice(_SINGLES), pa.float32()).as_py(),
        "d": lambda: dice.choice([*_DOUBLES, dice.random()]),
        "t": one(*_TEXTS),
        "y": lambda: dice.choice([b"", b"\x00\xff\n", dice.randbytes(100)]),
        "da": lambda: dice.choice([date.min, date.max, date(2024, 2, 29), date(999, 1, 1)]),
        "ts": moment,
        "de": exact(10, 2),
        "dx": exact(38, 18),
        "u": lambda: str(UUID(int=dice.getrandbits(128))),
        "ti": time,
        "j": one('{"a": 1, "ab": [1.50, null, "é"]}', "[]", '"null"', "1E+2", "false"),
    }
    make |= dict.fromkeys(("tse", "tmi", "tmc", "tna"), moment)

    def some(of):
        return lambda: [dice.choice([None, of()]) for _ in range(dice.randrange(4))]

    arrays = dict(ab="b", ass="s", ai="i", al="l", af="f", ad="d", at="t", ay="y", ada="da", ats="ts", ade="de", au="u")
    make |= {name: some(make[of]) for name, of in {**arrays, "ati": "ti"}.items()}
    make["aa"] = some(make["ai"])
    make["aj"] = some(one('{"b": [2]}', "3"))
    # A document's numbers are PostgreSQL's, which have no negative zero, and its members come in its order.
    make["m"] = lambda: [(name, dice.choice([None, 0.5, 1e300])) for name in ["b", "é", "aaa"][: dice.randrange(4)]]
    make["st"] = lambda: {
        "odd name": make["t"](),
        "n": make["l"](),
        "d": make["dx"](),
        "at": moment(),
        "y": make["y"](),
        "ti": time(),
        "u": make["u"](),
        "da": make["da"](),
        "f": 0.25,
        "l": make["at"](),
        "m": [("x", None)],
        "j": None,
    }
    return {name: None if dice.random() < 0.25 else of() for name, of in make.items()}


def commit_rows(
    ledger: Ledger, spec: Pipeline, log: Log, made: list[dict], opens: Open, run: str = "a", first: int = 0
) -> pa.Table:
    """A transaction of one slice whose first sink gets these rows as Spark's tasks write them; what these were given.

    `made` has the cells of each record, by offset, of which this is the first.
    """
    begun = start(ledger, spec, log, run)
    work, sink = a_try(ledger, begun, 0, spec), sink_of(spec, spec.sinks[0].name)
    rows = [{**cells, "_partition": 0, "_offset": offset, "_n": 0} for offset, cells in enumerate(made, first)]
    given = pa.Table.from_pylist(rows, schema=arrow_schema(sink.written))
    into = Into(ledger.url, work.token, work.ranges, work.relations, work.source)
    with Writer(into, Tag(0, 0), (sink, sink_of(spec, DEAD_LETTERS))) as writer:
        writer.write(sink, given)
        done = writer.finish()
    votes = {name: SinkVote((w.writer,) if w.writer else (), w.rows, w.checksum) for name, w in done.items()}
    cast_vote(ledger, spec, work.token, vote_of(spec, work, votes))
    commit(ledger, spec, begun.claim, opens)
    return given
