"""What a topic is given of a row is read back as it is: by `Json(…)` of the same columns, and as a key."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from sqlalchemy.dialects.postgresql.base import PGDialect

from ratchet import Append, Json, KafkaTopic, Pipeline, Text, Topic
from ratchet.destinations import rendered
from ratchet.errors import SpecError
from ratchet.formats.port import Use
from ratchet.formats.whole import Bytes
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import SinkVote, Tag
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.types import POSITION, sql_type
from ratchet.sinks.writer import Into, Writer
from ratchet.spec.columns import parse_columns
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.spec.types import is_scalar
from ratchet.values.arrow import arrow_schema
from tests.ledger.staging import a_try, start, vote_of

from .sent import Sent, sending, spec_of

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
ROWS = 150
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


@pytest.fixture
def ledger(ledger_url):
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def given(ledger, kafka_properties, make_topic) -> tuple[Sent, pa.Table]:
    """A line that has sent rows with every type, and what they were when they were written."""
    topic = make_topic(3)
    sinks = [Append("typed_rows", columns=COLUMNS, to=KafkaTopic(topic, key="t"))]
    spec = spec_of(topic).model_copy(update={"sinks": sinks, "max_records": ROWS, "slice_records": ROWS})
    sent = sending(ledger, kafka_properties, spec)
    sent.log.beginning, sent.log.stable = {0: 0}, {0: ROWS}
    # Whatever sessions are like: nothing that is sent depends on it.
    with psycopg.connect(ledger.url, autocommit=True) as conn:
        for setting in ("timezone = 'Asia/Kathmandu'", "extra_float_digits = -5"):
            conn.execute(f"alter database {conn.info.dbname} set {setting}")
        conn.execute(f"alter database {conn.info.dbname} set bytea_output = 'escape'")
        conn.execute(f"alter database {conn.info.dbname} set intervalstyle = 'sql_standard'")
    ledger.engine.dispose()
    begun = start(ledger, spec, sent.log, "a")
    work = a_try(ledger, begun, 0, spec)
    sink, dice = sink_of(spec, "typed_rows"), random.Random(7)
    rows = [{**cells(dice), "_partition": 0, "_offset": offset, "_n": 0} for offset in range(ROWS)]
    table = pa.Table.from_pylist(rows, schema=arrow_schema((*sink.needed, *POSITION)))
    into = Into(ledger.url, work.token, work.ranges, work.relations, work.source)
    with Writer(into, Tag(0, 0), (sink, sink_of(spec, DEAD_LETTERS))) as writer:
        writer.write(sink, table)
        done = writer.finish()
    votes = {name: SinkVote((w.writer,) if w.writer else (), w.rows, w.checksum) for name, w in done.items()}
    cast_vote(ledger, spec, work.token, vote_of(spec, work, votes))
    commit(ledger, spec, begun.claim, sent.opens)
    return sent, table


@pytest.mark.parametrize(
    ("column", "fits", "unfit"),
    [
        ("d date", "0001-01-01", "0001-12-31 BC"),
        ("d date", "9999-12-31", "10000-01-01"),
        ("d date", None, "-infinity"),
        ("d array<date>", "{9999-12-31,NULL}", "{2026-01-01,infinity}"),
        ("d timestamp", "0001-01-01 00:00:00+00", "0001-12-31 23:59:59.999999+00 BC"),
        ("d timestamp", "9999-12-31 23:59:59.999999+00", "10000-01-01 00:00:00+00"),
        ("d timestamp", "9999-12-31 23:59:59.999999+00", "infinity"),
    ],
)
def test_a_day_that_four_digits_do_not_write_is_told(ledger_url, column, fits, unfit):
    (declared,) = parse_columns(column)
    query = sql.SQL("select {} from (select %s::{} as d) as of").format(
        rendered.unfit_of([declared]), sql.SQL(sql_type(declared.type).compile(dialect=PGDialect()))
    )
    with psycopg.connect(ledger_url) as conn:
        conn.execute("set timezone = 'Pacific/Auckland'")
        assert [conn.execute(query, [cell]).fetchone() for cell in (fits, unfit)] == [(None,), ("d",)]


def said(cell: object) -> str:
    """Text by which -0.0 is told from 0.0."""
    return repr(cell)


@pytest.mark.invariant("I1")
def test_values_of_every_type_are_read_back_as_they_were(given):
    sent, table = given
    records = sorted(sent.records(), key=lambda record: record.place)
    assert len(records) == ROWS
    decoded = Json(COLUMNS).decoder(Use()).decode(pa.array([record.value for record in records], pa.binary()))
    assert decoded.errors.to_pylist() == [None] * ROWS and decoded.cut == 0
    for name in decoded.columns.schema.names:
        found, expected = decoded.columns.column(name).to_pylist(), table.column(name).to_pylist()
        if name in ("j", "aj", "st", "m"):
            # A document is what PostgreSQL has made of it.
            continue
        assert list(map(said, found)) == list(map(said, expected)), name
    assert decoded.columns.column("st").to_pylist() == table.column("st").to_pylist()
    assert [None if row is None else dict(row) for row in decoded.columns.column("m").to_pylist()] == [
        None if row is None else dict(row) for row in table.column("m").to_pylist()
    ]
    documents = {'{"a": 1, "ab": [1.50, null, "é"]}', "[]", '"null"', "100", "false", None}
    assert set(decoded.columns.column("j").to_pylist()) == documents
    assert {each for row in decoded.columns.column("aj").to_pylist() for each in row or ()} == {'{"b": [2]}', "3", None}


@pytest.mark.invariant("I1")
def test_a_key_of_every_type_is_read_back_as_it_was(given):
    sent, table = given
    sink = sink_of(sent.spec, "typed_rows")
    columns = [column for column in sink.fields if is_scalar(column.type)]
    assert len(columns) == SCALARS.count(", ") + 1
    query = sql.SQL("select {} from {} order by _offset").format(
        sql.SQL(", ").join(map(rendered.key_of, columns)), sql.Identifier(*sink.home)
    )
    with psycopg.connect(sent.ledger.url) as conn:
        conn.execute("set local extra_float_digits = 1")
        rows = conn.execute(query).fetchall()
    for number, column in enumerate(columns):
        keys = [key.encode() if isinstance(key := row[number], str) else key for row in rows]
        expected = table.column(column.name).to_pylist()
        assert [key is None for key in keys] == [cell is None for cell in expected]
        of = Bytes(f"k {column.type}") if column.name == "y" else Text(f"k {column.type}")
        decoded = of.decoder(Use("key")).decode(pa.array([key for key in keys if key is not None], pa.binary()))
        assert set(decoded.errors.to_pylist()) == {None}, column.name
        found = decoded.columns.column(0).to_pylist()
        assert list(map(said, found)) == [said(cell) for cell in expected if cell is not None], column.name


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (dict(name="a b"), "KafkaTopic.name: 'a b' is no name of a topic; use up to 249"),
        (dict(name=".."), "KafkaTopic.name: '..' is no name of a topic"),
        (dict(name="x" * 250), "is no name of a topic"),
        (dict(name="ratchet_marks"), "'ratchet_marks' is the topic in which ratchet notes what it has sent"),
        (dict(name="a", kafka=""), "KafkaTopic.kafka: name the Airflow connection to Kafka, or leave it out"),
    ],
)
def test_what_is_no_topic_to_send_to_is_refused(given, error):
    with pytest.raises(SpecError, match=error.replace(".", r"\.")):
        KafkaTopic(**given)


@pytest.mark.parametrize(
    ("columns", "key", "error"),
    [
        ("a bigint", "b", "kafka:out: key 'b' is not one of columns: a"),
        ("a json", "a", "kafka:out: key 'a': a json has no one text"),
        ("a array<int>", "a", "key 'a': a array<int> has no one text"),
        ("a struct<at: timestamp(millis)>", None, "column 'a': within others a moment is text, and timestamp(millis)"),
        ("a map<string, array<timestamp(nanos)>>", None, "column 'a': within others a moment is text"),
    ],
)
def test_columns_that_a_topic_cannot_be_given_are_refused(columns, key, error):
    with pytest.raises(SpecError) as raised:
        Append("rows", columns=columns, to=KafkaTopic("out", key=key))
    assert error in str(raised.value)


def test_a_topic_is_called_by_its_connection_and_name():
    assert KafkaTopic("out").address == "kafka:out" and KafkaTopic("out", kafka="other").address == "other:out"
    sinks = [Append(name, columns="a bigint", to=KafkaTopic("out")) for name in ("one", "two")]
    with pytest.raises(SpecError, match="destination 'kafka:out' is declared twice"):
        Pipeline(name="line", source=Topic("t", value=Json("a bigint")), sinks=sinks)
