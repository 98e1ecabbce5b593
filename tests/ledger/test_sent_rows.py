"""Values of every type reach PostgreSQL as they are, wherever what is sent at once ends."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from sqlalchemy import Text, select

from ratchet import Append, Pipeline
from ratchet.errors import TransformError
from ratchet.ledger.work import Tag
from ratchet.operate.migrate import migrate
from ratchet.sinks.checksum import MODULUS, row_hash
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.types import POSITION
from ratchet.sinks.writer import Into, Writer
from ratchet.values.arrow import arrow_schema

from .staging import SPEC, a_try, start

SPEC_OF_ALL = SPEC.model_copy(
    update={
        "name": "typed",
        "sinks": [
            Append(
                "typed_rows",
                columns="b boolean, s smallint, i int, l bigint, f float, d double, t string, y binary, da date, "
                "ts timestamp, de decimal(10,2), dx decimal(38,18), j json, u uuid, ti time, ls array<string>, "
                "li array<int>, lt array<time>, ld array<decimal(5,2)>",
            )
        ],
    }
)
ROWS = 60


def cells(dice: random.Random) -> dict:
    """A cell of each column, as Arrow has it; a third of them are null."""

    def moment() -> str:
        return time(dice.randrange(24), dice.randrange(60), dice.randrange(60), dice.randrange(10**6)).isoformat(
            "microseconds"
        )

    def some(make) -> list:
        return [dice.choice([None, make()]) for _ in range(dice.randrange(4))]

    made = {
        "b": dice.random() < 0.5,
        "s": dice.randrange(-(2**15), 2**15),
        "i": dice.randrange(-(2**31), 2**31),
        "l": dice.randrange(-(2**63), 2**63),
        "f": dice.randrange(1000) / 8,
        "d": dice.random(),
        "t": "é\n" * dice.randrange(4),
        "y": dice.randbytes(dice.randrange(5)),
        "da": date(2000, 1, 1) + timedelta(days=dice.randrange(9999)),
        "ts": datetime(1960, 1, 1, tzinfo=UTC) + timedelta(microseconds=dice.randrange(10**16)),
        "de": Decimal(dice.randrange(-(10**9), 10**9)) / 100,
        "dx": Decimal(dice.randrange(-(10**27), 10**27)) / 10**18,
        "j": f'{{"a": {dice.randrange(99)}}}',
        "u": str(UUID(int=dice.getrandbits(128))),
        "ti": moment(),
        "ls": some(lambda: "x" * dice.randrange(3)),
        "li": some(lambda: dice.randrange(99)),
        "lt": some(moment),
        "ld": some(lambda: Decimal(dice.randrange(99_999)) / 100),
    }
    return {name: None if dice.random() < 0.33 else cell for name, cell in made.items()}


def as_read(name: str, cell):
    """As it is read through the sink's table."""
    if cell is None:
        return None
    if name == "ti":
        return time.fromisoformat(cell)
    if name == "lt":
        return [each and time.fromisoformat(each) for each in cell]
    return cell


@pytest.mark.parametrize("sent", [1, 3, 7, 8, 59, 10_000])
@pytest.mark.invariant("I1")
def test_rows_of_every_type_are_what_was_given_however_many_are_sent_at_once(ledger, log, monkeypatch, sent):
    monkeypatch.setattr("ratchet.sinks.writer.SENT_ROWS", sent)
    migrate(ledger.url, [SPEC_OF_ALL])
    log.beginning, log.stable = {0: 0}, {0: ROWS}
    spec = SPEC_OF_ALL.model_copy(update={"max_records": ROWS, "slice_records": ROWS})
    work = a_try(ledger, start(ledger, spec, log, "a"), 0, spec)
    sink, dice = sink_of(spec, "typed_rows"), random.Random(7)
    rows = [{**cells(dice), "_partition": 0, "_offset": offset, "_n": 0} for offset in range(ROWS)]
    given = pa.Table.from_pylist(rows, schema=arrow_schema((*sink.needed, *POSITION)))
    into = Into(ledger.url, work.token, work.ranges, work.relations, work.source)
    with Writer(into, Tag(0, 0), (sink,)) as writer:
        writer.write(sink, given)
        done = writer.finish()[sink.name]
    names = list(cells(random.Random(0)))
    of = sink.tables[0].c
    with ledger.begin() as conn:
        shown = [of[name].cast(Text) if name == "j" else of[name] for name in names]
        found = conn.execute(select(*shown).order_by(of._offset)).all()
    assert [tuple(row) for row in found] == [tuple(as_read(name, row[name]) for name in names) for row in rows]
    assert done.rows == ROWS
    assert (
        done.checksum == sum(row_hash(sink.written, [row.get(c.name) for c in sink.written]) for row in rows) % MODULUS
    )


def test_not_null_holds_for_newer_rows_of_a_table_that_lets_older_ones_be_null(ledger, log):
    def spec_of(columns: str) -> Pipeline:
        return SPEC_OF_ALL.model_copy(update={"sinks": [Append("few_rows", columns=columns)]})

    migrate(ledger.url, [spec_of("k string, a bigint")])
    spec = spec_of("k string, a bigint not null")
    migrate(ledger.url, [spec])
    work, sink = a_try(ledger, start(ledger, spec, log, "a"), 0, spec), sink_of(spec, "few_rows")
    (part, *_) = work.ranges
    given = pa.table(
        {"k": [None, None], "a": [1, None], "_partition": [part.partition] * 2, "_offset": [part.from_offset] * 2}
        | {"_n": [0, 1]}
    ).cast(arrow_schema((*sink.needed, *POSITION)))
    into = Into(ledger.url, work.token, work.ranges, work.relations, work.source)
    with Writer(into, Tag(0, 0), (sink,)) as writer:
        writer.write(sink, given.slice(0, 1))
        writer.write(sink, given.slice(1))
        with pytest.raises(TransformError, match=r"try 1: sink 'few_rows': column a is declared not null and is null"):
            writer.finish()
