"""What an Iceberg table takes; readers find values there as they were."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, LessThan
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from ratchet import Append
from ratchet.destinations import iceberg_files
from ratchet.destinations.iceberg_table import _Once
from ratchet.errors import DestinationRefused, DestinationUnreachable, MarkMoved
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.follow import follow

from ..staging import appended
from .icebergs import IcebergOf
from .typed import COLUMNS, cells, commit_rows

ROWS = 200
later = partial(pytest.param, marks=pytest.mark.all)


@pytest.mark.invariant("I1")
def test_a_column_that_is_added_is_added_there(iceberg):
    iceberg.run("a")
    iceberg.columns = "a bigint, b string"
    migrate(iceberg.ledger.url, [iceberg.spec])
    iceberg.run("b", of=lambda at: {"a": 1, "b": f"b{at['_offset']}"})
    assert iceberg.rows() == appended(iceberg.ledger)
    found = iceberg.table().select(["_txid", "_offset", "b"]).to_pylist()
    assert {row["b"] for row in found if row["_txid"] == 1} == {None}
    assert all(row["b"] == f"b{row['_offset']}" for row in found if row["_txid"] == 2)
    iceberg.run("a", clear_number=1, of=lambda at: {"a": 2, "b": "new"})
    assert iceberg.rows() == appended(iceberg.ledger)
    assert len(iceberg.loaded().snapshots()) == 4, "a column comes with its step"


def test_lineage_calls_a_table_by_where_its_files_are(iceberg):
    iceberg.run("a")
    (file, *_) = iceberg.files()
    named = iceberg.to.dataset(json.dumps(iceberg.properties))
    assert named.namespace == "file" and file.startswith(f"{named.name}/data/")


def sent(iceberg: IcebergOf, columns: str, made: list[dict]) -> pa.Table:
    """Have a line of its own send rows of these cells, as Spark's tasks write them; what these were given."""
    iceberg.log.beginning, iceberg.log.stable = {0: 0}, {0: len(made)}
    iceberg.name += "_typed"
    sizes = {"name": "typed", "max_records": len(made), "slice_records": len(made)}
    sinks = [Append("typed_rows", columns=columns, to=iceberg.to)]
    spec = iceberg.spec.model_copy(update={**sizes, "sinks": sinks})
    migrate(iceberg.ledger.url, [spec])
    given = commit_rows(iceberg.ledger, spec, iceberg.log, made, iceberg.opens)
    return given.rename_columns({"_partition": "_source_partition"})


@pytest.mark.invariant("I1")
def test_values_of_every_type_are_read_back_as_they_were(iceberg):
    with psycopg.connect(iceberg.ledger.url) as conn:
        # What a session shows of a value is no part of it.
        for said in ("extra_float_digits = -10", "timezone = 'Pacific/Auckland'"):
            conn.execute(f"alter database {conn.info.dbname} set {said}")  # pyright: ignore[reportArgumentType]
    iceberg.ledger.engine.dispose()
    dice = random.Random(11)
    made = [cells(dice) for _ in range(ROWS)]
    # Parquet has them, and no JSON has.
    made[0] |= {"f": math.nan, "d": -math.inf}
    made[1] |= {"f": math.inf, "d": math.nan}
    given = sent(iceberg, COLUMNS, made)
    within = pa.concat_tables(map(pq.read_table, iceberg.files())).sort_by("_offset")
    for found in (within, iceberg.table().sort_by("_offset")):
        assert found.num_rows == ROWS
        for name in given.schema.names:
            # A document is what PostgreSQL has made of it.
            if name not in ("j", "aj"):
                # -0.0 is told from 0.0, and NaN is like NaN; names within are those that Parquet allows.
                as_text = [repr(value).replace("odd_x20name", "odd name") for value in found[name].to_pylist()]
                assert as_text == list(map(repr, given[name].to_pylist())), name
    documents = {'{"a": 1, "ab": [1.50, null, "é"]}', "[]", '"null"', "100", "false", None}
    assert set(within["j"].to_pylist()) == documents


@pytest.mark.invariant("I1")
def test_an_array_that_is_null_is_no_empty_one_whatever_is_in_it(in_postgresql):
    columns = "s array<struct<x: int, l: array<struct<y: string>>>>, m map<string, array<struct<x: smallint>>>"
    lists = [None, [], [None], [{"x": None, "l": None}], [{"x": 1, "l": []}, {"x": 2, "l": [None, {"y": None}]}]]
    maps = [None, [], [("k", None)], [("k", []), ("l", [None, {"x": -1}])]]
    sent(in_postgresql, columns, [{"s": lists[n % 5], "m": maps[n % 4]} for n in range(20)])
    assert [row["s"] for row in in_postgresql.read("s")] == [lists[n % 5] for n in range(20)]
    assert [row["m"] for row in in_postgresql.read("m")] == [maps[n % 4] for n in range(20)]


@pytest.mark.invariant("I1")
def test_texts_are_what_they_were_wherever_they_stand(in_postgresql):
    iceberg = in_postgresql
    iceberg.columns, iceberg.more = "b string", {"partition_by": "b"}
    migrate(iceberg.ledger.url, [iceberg.spec])
    texts = ["\ufeffabc", "\ufeff", "", "\\.", 'a"b', "a,b", "a\r\nb", "\n", "NULL", " ", "a/b=c%", "é" * 300, None]
    iceberg.run("a", of=lambda at: {"b": texts[at["_offset"] % len(texts)]})
    found = iceberg.read("b")
    assert [row["b"] for row in found] == [texts[row["_offset"] % len(texts)] for row in found]
    assert len({row["b"] for row in found}) == len(iceberg.files()) > 9
    for text in filter(None, texts):
        assert iceberg.loaded().scan(EqualTo("b", text)).to_arrow().num_rows == sum(row["b"] == text for row in found)


DIVIDED = "year(at)", "month(day)", "hour(other)", "bucket(3, b)", "truncate(2, t)", "d", "u"
MOMENTS = [
    datetime(1769, 10, 29, 23, 59, 59, 820450, UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    None,
]


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("by", [DIVIDED, later(("day(at)", "day", "other", "truncate(7, b)"))])
def test_a_table_is_divided_as_iceberg_says_and_finds_its_rows(in_postgresql, by, monkeypatch):
    # Many times of what is in memory at once.
    monkeypatch.setattr(iceberg_files, "BYTES", 1000)
    iceberg = in_postgresql
    iceberg.columns = "at timestamp, day date, other timestamp, b bigint, t string, d decimal(10,2), u uuid"
    iceberg.more = {"partition_by": by}
    migrate(iceberg.ledger.url, [iceberg.spec])

    def of(at: dict[str, int]) -> dict[str, object]:
        n = at["_offset"]
        moment = MOMENTS[n % 6]
        return {
            "at": moment,
            "day": None if moment is None else moment.date(),
            "other": datetime(1960, 1, 1, tzinfo=UTC) + timedelta(hours=n % 2, microseconds=-1),
            "b": [-(2**63) + 9, -1, 0, 7, None][n % 5],
            "t": ["", "é", "ab", "abc", None][n % 5],
            "d": Decimal("-1.25") if n % 2 else None,
            "u": "6f4a6e1c-0000-4000-8000-00000000000a" if n % 3 else None,
        }

    iceberg.run("a", of=of)
    assert iceberg.rows() == appended(iceberg.ledger) and len(iceberg.files()) > 5
    table, rows = iceberg.loaded(), iceberg.table().to_pylist()
    for name in ("at", "day", "other", "b", "t", "d"):
        for value in {row[name] for row in rows} - {None}:
            # A wrong partition would hide rows from a reader who asks for them.
            found = table.scan(EqualTo(name, value.isoformat() if isinstance(value, date) else value)).to_arrow()
            assert found.num_rows == sum(row[name] == value for row in rows) > 0, (name, value)
    early = table.scan(LessThan("at", "1970-01-01T00:00:00+00:00")).to_arrow()
    assert early.num_rows == sum(row["at"] is not None and row["at"].year < 1970 for row in rows)
    # A revision takes its rows from each of the files.
    iceberg.run("a", clear_number=1, drop=1, of=of)
    assert iceberg.rows() == appended(iceberg.ledger)


@pytest.mark.invariant("I1")
def test_others_may_compact_the_table_and_expire_its_snapshots_between_two_steps(iceberg):
    for run in "abc":
        iceberg.run(run)
    # All rows in one file, as a compaction leaves them, and a person's own beside them.
    table = iceberg.loaded()
    mine = pa.Table.from_pylist([{"a": 7}], schema=table.schema().as_arrow())
    table.overwrite(pa.concat_tables([table.scan().to_arrow(), mine]))
    last = table.current_snapshot().snapshot_id
    table.maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in table.snapshots() if each.snapshot_id != last]
    ).commit()
    assert len(iceberg.loaded().snapshots()) == 1 and iceberg.mark().step == 3
    iceberg.run("b", clear_number=1, drop=2)
    iceberg.run("d")
    assert iceberg.rows() == appended(iceberg.ledger)
    assert iceberg.mark().step == 5
    detach(iceberg.ledger, "line", iceberg.address, "for the test", "me")
    attach(iceberg.ledger, iceberg.spec, iceberg.address, How.ANEW, "for the test", "me", iceberg.opens)
    assert iceberg.rows() == appended(iceberg.ledger)
    assert [row["a"] for row in iceberg.table().to_pylist() if row["_txid"] is None] == [7]


@pytest.mark.invariant("I1", "I2")
def test_a_table_that_others_change_while_a_step_is_committed_takes_it_once(iceberg, monkeypatch):
    iceberg.run("a")
    once, changes = _Once.once, iter(range(3))

    def late(step) -> None:
        if next(changes, None) is not None:
            iceberg.loaded().append(pa.table({"a": pa.array([7], pa.int64())}))
        once(step)

    monkeypatch.setattr(_Once, "once", late)
    iceberg.run("a", clear_number=1, drop=1)
    assert iceberg.rows() == appended(iceberg.ledger)
    assert iceberg.table()["a"].to_pylist().count(7) == 3 and iceberg.mark().step == 2
    changes = iter(range(100))
    with pytest.raises(DestinationUnreachable, match="somebody else has changed the table meanwhile"):
        iceberg.run("b")
    monkeypatch.undo()
    follow(iceberg.ledger, iceberg.spec, iceberg.opens)
    assert iceberg.rows() == appended(iceberg.ledger)


@pytest.mark.invariant("I1")
def test_a_table_that_is_rolled_back_is_told_and_gets_what_it_lacks(iceberg):
    iceberg.run("a")
    earlier = iceberg.loaded().current_snapshot().snapshot_id
    iceberg.run("b")
    iceberg.loaded().manage_snapshots().set_current_snapshot(earlier).commit()
    assert iceberg.mark().step == 1
    with pytest.raises(MarkMoved, match="an older copy is in its place"):
        iceberg.run("c")
    detach(iceberg.ledger, "line", iceberg.address, "for the test", "me")
    attach(iceberg.ledger, iceberg.spec, iceberg.address, How.ON, "for the test", "me", iceberg.opens)
    assert iceberg.rows() == appended(iceberg.ledger) and iceberg.mark().step == 3


@pytest.mark.invariant("I1")
def test_a_table_whose_rows_rest_on_nothing_of_ours_has_no_mark(in_postgresql):
    iceberg = in_postgresql
    iceberg.made(pa.schema([("a", pa.int64())])).append(pa.table({"a": pa.array([1], pa.int64())}))
    of_somebody = iceberg.loaded().current_snapshot().snapshot_id
    iceberg.loaded().delete()
    iceberg.run("a")
    # As a table has it that somebody has replaced.
    iceberg.loaded().manage_snapshots().set_current_snapshot(of_somebody).commit()
    assert iceberg.mark() is None
    with pytest.raises(MarkMoved, match="or it has no mark any more, since somebody has replaced its rows"):
        iceberg.run("b")
    detach(iceberg.ledger, "line", iceberg.address, "for the test", "me")
    attach(iceberg.ledger, iceberg.spec, iceberg.address, How.ANEW, "for the test", "me", iceberg.opens)
    assert iceberg.rows() == appended(iceberg.ledger) and iceberg.mark().step == 2
    assert [row["a"] for row in iceberg.table().to_pylist() if row["_txid"] is None] == [1]


@pytest.mark.invariant("I1")
def test_an_iceberg_table_that_is_gone_is_told_and_made_anew(iceberg):
    iceberg.run("a")
    with iceberg.catalog() as catalog:
        catalog.drop_table(iceberg.name)
    with pytest.raises(MarkMoved, match="there is no such table in the catalog"):
        iceberg.run("b")
    detach(iceberg.ledger, "line", iceberg.address, "for the test", "me")
    attach(iceberg.ledger, iceberg.spec, iceberg.address, How.ANEW, "for the test", "me", iceberg.opens)
    assert iceberg.rows() == appended(iceberg.ledger)
    iceberg.run("c")
    assert iceberg.rows() == appended(iceberg.ledger)


@pytest.mark.all
@pytest.mark.invariant("I1")
def test_an_attached_table_goes_on_or_leaves_what_it_has(in_postgresql):
    iceberg = in_postgresql
    iceberg.run("a")
    detach(iceberg.ledger, "line", iceberg.address, "for the test", "me")
    iceberg.run("b")
    assert {row[3] for row in iceberg.rows()} == {1}
    attach(iceberg.ledger, iceberg.spec, iceberg.address, How.ON, "for the test", "me", iceberg.opens)
    assert iceberg.rows() == appended(iceberg.ledger)
    detach(iceberg.ledger, "line", iceberg.address, "for the test", "me")
    iceberg.run("c")
    attach(iceberg.ledger, iceberg.spec, iceberg.address, How.FROM_HERE, "for the test", "me", iceberg.opens)
    iceberg.run("d")
    assert iceberg.rows() == [row for row in appended(iceberg.ledger) if row[3] != 3]


@pytest.mark.all
@pytest.mark.invariant("I1")
def test_an_empty_table_that_was_made_by_hand_is_taken_as_it_is(in_postgresql):
    iceberg = in_postgresql
    fields = [NestedField(1, "a", LongType(), required=False), NestedField(2, "mine", StringType(), required=False)]
    iceberg.made(Schema(*fields))
    iceberg.loaded().update_spec().add_identity("mine").commit()
    iceberg.run("a")
    iceberg.run("b")
    iceberg.run("a", clear_number=1, drop=1)
    assert iceberg.rows() == appended(iceberg.ledger)
    assert set(iceberg.table()["mine"].to_pylist()) == {None}


@pytest.mark.all
def test_a_column_is_renamed_there_too(in_postgresql):
    iceberg = in_postgresql
    iceberg.run("a")
    spec = iceberg.spec
    renamed = Append("rows", columns="b bigint", renamed={"b": "a"}, to=iceberg.to)
    spec = spec.model_copy(update={"sinks": [renamed, *spec.sinks[1:]]})
    migrate(iceberg.ledger.url, [spec])
    iceberg.columns = "b bigint"
    type(iceberg).spec, before = property(lambda _: spec), type(iceberg).spec
    try:
        with pytest.raises(DestinationRefused, match="has no column b, which was a; rename it there too"):
            iceberg.run("b", of=lambda at: {"b": 1})
        iceberg.loaded().update_schema().rename_column("a", "b").commit()
        follow(iceberg.ledger, spec, iceberg.opens)
    finally:
        type(iceberg).spec = before
    assert iceberg.rows() == appended(iceberg.ledger)
    assert [row["b"] for row in iceberg.table().to_pylist() if row["_txid"] == 2] == [1] * 20
