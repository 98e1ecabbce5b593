"""A Delta Lake table has each row once, whatever is killed, repeated or late, and other readers find it as it was."""

from __future__ import annotations

import math
import random
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ratchet import Append, DeltaLake
from ratchet.destinations.arrow_rows import arrow_rows
from ratchet.destinations.lake import Lake
from ratchet.destinations.port import Destination, Mark, Owner
from ratchet.errors import (
    DestinationRefused,
    DestinationUnreachable,
    MarkMoved,
    SettingsError,
    SpecError,
    StageMismatch,
)
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run, SinkVote, Tag
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.follow import follow
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.types import POSITION
from ratchet.sinks.writer import Into, Writer
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.values.arrow import arrow_schema
from tests.kafka.test_kafka_values import COLUMNS, cells

from .staging import SPEC, Log, a_try, appended, prepare, start, vote_of, write_all

ROWS = 200


@dataclass
class LakeOf:
    """A pipeline whose rows go to a table in a directory."""

    ledger: Ledger
    path: Path
    log: Log
    columns: str = "a bigint"
    more: dict = field(default_factory=dict)

    @property
    def spec(self) -> Pipeline:
        to = DeltaLake(str(self.path), **self.more)
        return SPEC.model_copy(update={"sinks": [Append("rows", columns=self.columns, to=to), *SPEC.sinks[1:]]})

    @property
    def address(self) -> str:
        return f"delta:{self.path}"

    def opens(self, destination: Destination, owner: Owner):
        return destination.open(owner, "")

    def run(self, run: str, clear_number: int = 0, drop: int = 0, of=lambda at: {"a": -at["_offset"]}) -> int:
        """A run that commits; its transaction."""
        spec = self.spec
        begun = start(self.ledger, spec, self.log, run, clear_number)
        for part in begun.slices:
            work = a_try(self.ledger, begun, part.number, spec)
            made = [{**of(at), **at} for at in places(work)][drop:]
            votes = write_all(self.ledger, spec, work, {"rows": made, "totals": [], "latest": []})
            cast_vote(self.ledger, spec, work.token, vote_of(spec, work, votes))
        assert isinstance(commit(self.ledger, spec, begun.claim, self.opens), Committed)
        settle(self.ledger, spec, Run("dag", run, clear_number), succeeded=True)
        return begun.claim.txid

    def table(self) -> pa.Table:
        return DeltaTable(str(self.path)).to_pyarrow_table()

    def rows(self) -> list[tuple]:
        """(partition, offset, n, txid) of every row, sorted."""
        found = self.table().select(["_partition", "_offset", "_n", "_txid"])
        return sorted(tuple(row.values()) for row in found.to_pylist())

    def mark(self) -> Mark | None:
        with self.open() as outside:
            return outside.mark()

    def open(self, pipeline: str = "line"):
        (destination,) = self.spec.sinks[0].destinations
        return destination.open(Owner(pipeline, "rows", self.spec.sinks[0].fields), "")

    def steps(self) -> list[tuple[int, bool]]:
        with self.ledger.begin() as conn:
            return [(of.step, of.is_attached) for of in steps.destinations_of(conn, "line")]


def places(work) -> list[dict[str, int]]:
    """The position of each record of a slice."""
    offsets = [(r.partition, offset) for r in work.ranges for offset in range(r.from_offset, r.until_offset)]
    return [{"_partition": partition, "_offset": offset, "_n": 0} for partition, offset in offsets]


@pytest.fixture
def log() -> Log:
    return Log(stable={0: 200, 1: 200})


@pytest.fixture
def ledger(ledger_url):
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def lake(ledger, log, tmp_path) -> LakeOf:
    made = LakeOf(ledger, tmp_path / "lake" / "rows", log)
    migrate(ledger.url, [made.spec])
    return made


@pytest.mark.invariant("I1", "I3")
def test_a_table_has_the_rows_of_its_sink_a_commit_a_version(lake):
    for number, run in enumerate("abc", 1):
        txid = lake.run(run)
        assert lake.rows() == appended(lake.ledger) and lake.mark().step == number
        (written,) = DeltaTable(str(lake.path)).history(1)
        said = {name: written[f"ratchet.{name}"] for name in ("pipeline", "step", "txid")}
        assert said == {"pipeline": "line", "step": number, "txid": txid}
    assert [a for a in lake.table()["a"].to_pylist() if a > 0] == []


def test_rows_are_handed_over_many_at_once(lake, monkeypatch):
    sizes, whole = [], arrow_rows

    def counted(*given):
        for batch in whole(*given):
            sizes.append(batch.num_rows)
            yield batch

    monkeypatch.setattr("ratchet.destinations.lake.arrow_rows", counted)
    lake.run("a")
    assert sizes == [len(lake.rows())] and sizes[0] > 10


@pytest.mark.invariant("I1", "I3", "I7")
def test_a_revision_takes_the_place_of_its_rows_also_with_none(lake):
    lake.run("a")
    second = lake.run("b")
    before = [row for row in lake.rows() if row[3] != second]
    lake.run("b", clear_number=1, drop=3)
    assert lake.rows() == appended(lake.ledger)
    assert [row for row in lake.rows() if row[3] != second] == before and len(lake.rows()) < 2 * len(before)
    lake.run("b", clear_number=2, drop=10_000)
    assert lake.rows() == before and lake.mark().step == 4


@pytest.mark.invariant("I1")
def test_a_step_without_rows_moves_the_mark(lake):
    lake.run("a", drop=10_000)
    assert lake.rows() == [] and lake.mark().step == 1
    lake.run("b")
    assert lake.rows() == appended(lake.ledger) != []


@pytest.mark.invariant("I1", "I2")
def test_of_several_that_send_the_same_step_one_succeeds(lake):
    spec = lake.spec
    for number, run in enumerate("abcd", 1):
        begun = start(lake.ledger, spec, lake.log, run)
        prepare(lake.ledger, spec, begun)
        with pytest.raises(SettingsError):
            commit(lake.ledger, spec, begun.claim)
        gate, said, failed = threading.Barrier(3), [], []

        def bring(gate=gate, said=said, failed=failed) -> None:
            gate.wait()
            try:
                said.extend(follow(lake.ledger, spec, lake.opens))
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=bring) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert said and not failed
        assert lake.rows() == appended(lake.ledger) and lake.mark().step == number


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.invariant("I1", "I2")
def test_who_finds_another_mark_while_it_writes_changes_nothing(lake, monkeypatch, replaces):
    lake.run("a")
    if replaces:
        lake.run("a", clear_number=1, drop=1)
    before, at = lake.rows(), lake.mark()
    write = Lake._write

    def late(self, table, *given):
        # Between the look at the mark and the change, another process has sent the same step.
        monkeypatch.setattr(Lake, "_write", write)
        with lake.open() as other:
            assert other.restart(at, Mark(at.step + 1, 77), None)
        return write(self, table, *given)

    monkeypatch.setattr(Lake, "_write", late)
    spec = lake.spec
    begun = start(lake.ledger, spec, lake.log, "a" if replaces else "b", 2 if replaces else 0)
    prepare(lake.ledger, spec, begun)
    with pytest.raises(MarkMoved, match="is no step of this ledger"):
        commit(lake.ledger, spec, begun.claim, lake.opens)
    assert lake.rows() == before and lake.mark() == Mark(at.step + 1, 77)


_KILLED = """
import os, signal, sys
from ratchet.destinations import lake
from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import follow
from tests.ledger.test_delta_lake import LakeOf
from pathlib import Path
url, path, where = sys.argv[1:]
rows, write = lake.arrow_rows, lake.write_deltalake
def half(*given):
    for batch in rows(*given):
        yield batch.slice(0, 1)
        os.kill(os.getpid(), signal.SIGKILL)
def written(*given, **named):
    write(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
if where == "before": lake.arrow_rows = half
else: lake.write_deltalake = written
with Ledger(url) as ledger:
    of = LakeOf(ledger, Path(path), None)
    follow(ledger, of.spec, of.opens)
"""


@pytest.mark.parametrize(("where", "comes"), [("before", 1), ("after", 2)])
@pytest.mark.invariant("I1", "I2")
def test_a_process_that_is_killed_while_it_sends_leaves_all_or_nothing(lake, where, comes):
    lake.run("a")
    spec = lake.spec
    begun = start(lake.ledger, spec, lake.log, "b")
    prepare(lake.ledger, spec, begun)
    with pytest.raises(SettingsError):
        commit(lake.ledger, spec, begun.claim)
    root = Path(__file__).parents[2]
    given = [sys.executable, "-c", _KILLED, lake.ledger.url, str(lake.path), where]
    done = subprocess.run(given, cwd=root, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert lake.mark().step == comes and lake.steps() == [(1, True)]
    follow(lake.ledger, spec, lake.opens)
    assert lake.rows() == appended(lake.ledger) and lake.steps() == [(2, True)]


@pytest.mark.invariant("I1")
def test_rows_that_are_missing_in_the_ledger_send_nothing(lake):
    lake.run("a")
    spec, before = lake.spec, lake.rows()
    begun = start(lake.ledger, spec, lake.log, "b")
    prepare(lake.ledger, spec, begun)
    with pytest.raises(SettingsError):
        commit(lake.ledger, spec, begun.claim)
    with lake.ledger.begin() as conn:
        conn.exec_driver_sql(
            'delete from ratchet_delta."public.rows" where _txid = 2 and (_partition, _offset) = '
            '(select _partition, _offset from ratchet_delta."public.rows" where _txid = 2 limit 1)'
        )
    with pytest.raises(StageMismatch, match="its votes say"):
        follow(lake.ledger, spec, lake.opens)
    assert lake.rows() == before and lake.mark().step == 1


@pytest.mark.invariant("I1")
def test_others_may_compact_the_table_between_two_steps(lake):
    for run in "abc":
        lake.run(run)
    table = DeltaTable(str(lake.path))
    assert table.optimize.compact()["numFilesRemoved"] == 3
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    lake.run("b", clear_number=1, drop=2)
    lake.run("d")
    assert lake.rows() == appended(lake.ledger) and lake.mark().step == 5


@pytest.mark.invariant("I1")
def test_a_column_that_is_added_is_added_there(lake):
    lake.run("a")
    lake.columns = "a bigint, b string"
    migrate(lake.ledger.url, [lake.spec])
    lake.run("b", of=lambda at: {"a": 1, "b": f"b{at['_offset']}"})
    assert lake.rows() == appended(lake.ledger)
    found = lake.table().select(["_txid", "_offset", "b"]).to_pylist()
    assert {row["b"] for row in found if row["_txid"] == 1} == {None}
    assert all(row["b"] == f"b{row['_offset']}" for row in found if row["_txid"] == 2)
    lake.run("a", clear_number=1, of=lambda at: {"a": 2, "b": "new"})
    assert lake.rows() == appended(lake.ledger)


@pytest.mark.invariant("I1")
def test_values_of_every_type_are_read_back_as_they_were(lake):
    lake.columns, lake.log.beginning, lake.log.stable = COLUMNS, {0: 0}, {0: ROWS}
    spec = lake.spec.model_copy(update={"name": "typed", "max_records": ROWS, "slice_records": ROWS})
    rows_of = Append("typed_rows", columns=COLUMNS, to=DeltaLake(str(lake.path.parent / "typed")))
    spec = spec.model_copy(update={"sinks": [rows_of]})
    migrate(lake.ledger.url, [spec])
    with psycopg.connect(lake.ledger.url) as conn:
        # What a session shows of a value is no part of it.
        for said in ("extra_float_digits = -10", "timezone = 'Pacific/Auckland'"):
            conn.execute(f"alter database {conn.info.dbname} set {said}")  # pyright: ignore[reportArgumentType]
    lake.ledger.engine.dispose()
    begun = start(lake.ledger, spec, lake.log, "a")
    work, sink, dice = a_try(lake.ledger, begun, 0, spec), sink_of(spec, "typed_rows"), random.Random(11)
    rows = [{**cells(dice), "_partition": 0, "_offset": offset, "_n": 0} for offset in range(ROWS)]
    # Parquet has them, and no JSON has.
    rows[0] |= {"f": math.nan, "d": -math.inf}
    rows[1] |= {"f": math.inf, "d": math.nan}
    given = pa.Table.from_pylist(rows, schema=arrow_schema((*sink.needed, *POSITION)))
    into = Into(lake.ledger.url, work.token, work.ranges, work.relations, work.source)
    with Writer(into, Tag(0, 0), (sink, sink_of(spec, DEAD_LETTERS))) as writer:
        writer.write(sink, given)
        done = writer.finish()
    votes = {name: SinkVote((w.writer,) if w.writer else (), w.rows, w.checksum) for name, w in done.items()}
    cast_vote(lake.ledger, spec, work.token, vote_of(spec, work, votes))
    commit(lake.ledger, spec, begun.claim, lake.opens)
    found = DeltaTable(str(lake.path.parent / "typed")).to_pyarrow_table().sort_by("_offset")
    assert found.num_rows == ROWS
    for name in given.schema.names:
        if name in ("j", "aj"):
            # A document is what PostgreSQL has made of it.
            continue
        assert found.schema.field(name).type == given.schema.field(name).type, name
        # -0.0 is told from 0.0, and NaN is like NaN.
        assert list(map(repr, found[name].to_pylist())) == list(map(repr, given[name].to_pylist())), name
    documents = {'{"a": 1, "ab": [1.50, null, "é"]}', "[]", '"null"', "100", "false", None}
    assert set(found["j"].to_pylist()) == documents


def test_what_an_array_cannot_hold_is_refused(lake):
    path = lake.path.parent / "odd"
    odd = Append("odd", columns="l array<double>", to=DeltaLake(str(path)))
    spec = lake.spec.model_copy(update={"name": "odd", "sinks": [odd]})
    migrate(lake.ledger.url, [spec])
    begun = start(lake.ledger, spec, lake.log, "a")
    for part in begun.slices:
        work = a_try(lake.ledger, begun, part.number, spec)
        made = [{"l": [1.0, math.nan], **at} for at in places(work)]
        cast_vote(lake.ledger, spec, work.token, vote_of(spec, work, write_all(lake.ledger, spec, work, {"odd": made})))
    with pytest.raises(
        DestinationRefused, match="odd: delta:.*: column l has a day outside .*, or NaN or an infinity in an array"
    ):
        commit(lake.ledger, spec, begun.claim, lake.opens)
    assert DeltaTable(str(path)).to_pyarrow_table().num_rows == 0


@pytest.mark.parametrize("cell", ["0001-12-31 BC", "10000-01-01"])
def test_a_day_that_readers_of_a_lake_do_not_know_is_refused(lake, cell):
    path = lake.path.parent / "days"
    days = Append("days", columns="d date", to=DeltaLake(str(path)))
    spec = lake.spec.model_copy(update={"name": "days", "sinks": [days]})
    migrate(lake.ledger.url, [spec])
    begun = start(lake.ledger, spec, lake.log, "a")
    for part in begun.slices:
        work = a_try(lake.ledger, begun, part.number, spec)
        made = {"days": [{"d": date(2026, 1, 1), **at} for at in places(work)]}
        cast_vote(lake.ledger, spec, work.token, vote_of(spec, work, write_all(lake.ledger, spec, work, made)))
    # Python has no such day.
    with psycopg.connect(lake.ledger.url) as conn:
        conn.execute('update ratchet_delta."public.days" set d = %s::date where _offset = 3', [cell])
    with pytest.raises(DestinationRefused, match="column d has a day outside of the years 1 to 9999"):
        commit(lake.ledger, spec, begun.claim, lake.opens)
    assert DeltaTable(str(path)).to_pyarrow_table().num_rows == 0


@pytest.mark.timeout(60)
def test_a_table_that_refuses_a_large_step_holds_up_nobody(ledger, log, tmp_path):
    lake = LakeOf(ledger, tmp_path / "rows", log, "a bigint, b string")
    DeltaTable.create(str(lake.path), pa.schema([("a", pa.int64()), ("b", pa.string())])).alter.add_constraint(
        {"negative": "a <= 0"}
    )
    migrate(ledger.url, [lake.spec])
    # Many times of what is read at once, and the first of it is refused.
    with pytest.raises(DestinationRefused, match="rows: delta:.*failed validation check"):
        lake.run("a", of=lambda at: {"a": 1, "b": "x" * 300_000})
    assert lake.table().num_rows == 0 and lake.mark().step == 0


@pytest.mark.invariant("I1")
def test_a_step_of_many_batches_arrives_wholly(ledger, log, tmp_path):
    lake = LakeOf(ledger, tmp_path / "rows", log, "a bigint, b string")
    migrate(ledger.url, [lake.spec])
    lake.run("a", of=lambda at: {"a": 1, "b": f"{at['_offset']}" * 60_000})
    assert lake.rows() == appended(ledger) != []
    assert all(row["b"] == f"{row['_offset']}" * 60_000 for row in lake.table().to_pylist())


@pytest.mark.invariant("I1")
def test_texts_are_what_they_were_wherever_they_stand(ledger, log, tmp_path):
    lake = LakeOf(ledger, tmp_path / "rows", log, "b string", {"partition_by": ()})
    migrate(ledger.url, [lake.spec])
    texts = ["\ufeffabc", "\ufeff", "", "\\.", 'a"b', "a,b", "a\r\nb", "\n", "NULL", "\\N", " ", "0"]
    lake.run("a", of=lambda at: {"b": texts[at["_offset"] % len(texts)]})
    found = lake.table().to_pylist()
    assert all(row["b"] == texts[row["_offset"] % len(texts)] for row in found) and len(found) > len(texts)


def test_a_version_that_the_table_does_not_take_is_no_matter_of_waiting(lake):
    lake.run("a")
    before = lake.rows()
    DeltaTable(str(lake.path)).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(DestinationRefused, match="its mark tells what it has taken"):
        lake.run("a", clear_number=1, drop=1)
    assert lake.rows() == before and lake.mark().step == 1


def test_a_column_that_differs_in_case_alone_is_refused(lake):
    DeltaTable.create(str(lake.path), pa.schema([("A", pa.int64())]))
    with pytest.raises(DestinationRefused, match="has a column A, and a differs from it only in case"):
        lake.run("a")
    assert DeltaTable(str(lake.path)).version() == 0


def test_a_table_that_is_divided_by_what_no_name_holds_is_refused(lake):
    kinds = [("_txid", pa.int64()), ("a", pa.int64()), ("mine", pa.decimal128(5, 2))]
    DeltaTable.create(str(lake.path), pa.schema(kinds), partition_by=["mine"])
    with pytest.raises(DestinationRefused, match="is divided by mine, a decimal"):
        lake.run("a")
    assert lake.table().num_rows == 0


@pytest.mark.invariant("I1")
def test_the_texts_by_which_a_table_is_divided_are_kept_or_refused(ledger, log, tmp_path):
    lake = LakeOf(ledger, tmp_path / "rows", log, "a int, b string, d date", {"partition_by": ("b", "d")})
    migrate(ledger.url, [lake.spec])
    texts = ["a/b", "a=b", "100%", "é\n", "..", " ", None]
    days = [date(1, 1, 1), date(9999, 12, 31), None]
    lake.run("a", of=lambda at: {"a": 1, "b": texts[at["_offset"] % 7], "d": days[at["_offset"] % 3]})
    found = lake.table().to_pylist()
    assert [(row["b"], row["d"]) for row in found] == [(texts[r["_offset"] % 7], days[r["_offset"] % 3]) for r in found]
    assert lake.rows() == appended(ledger)
    with pytest.raises(DestinationRefused, match="column b, by which the table is divided, has an empty text"):
        lake.run("b", of=lambda at: {"a": 1, "b": "", "d": None})
    assert lake.mark().step == 1


def test_a_table_that_has_rows_of_somebody_else_is_refused(lake):
    write_deltalake(str(lake.path), pa.table({"a": pa.array([1], pa.int64())}))
    with pytest.raises(DestinationRefused, match="has rows already, and none is this pipeline's"):
        lake.run("a")
    assert lake.table().num_rows == 1
    # Nor are they deleted by an attach.
    detach(lake.ledger, "line", lake.address, "for the test", "me")
    with pytest.raises(DestinationRefused, match="has rows already"):
        attach(lake.ledger, lake.spec, lake.address, How.ANEW, "for the test", "me", lake.opens)
    assert lake.table().num_rows == 1


@pytest.mark.parametrize("made", [True, False])
def test_a_table_of_another_pipeline_is_refused(lake, made):
    if made:
        DeltaTable.create(str(lake.path), pa.schema([("a", pa.int64())]))
    with lake.open("other") as other:
        other.start(Mark(0, 1))
    with pytest.raises(DestinationRefused, match="is a destination of other: rows already"):
        lake.run("a")
    assert lake.table().num_rows == 0


@pytest.mark.invariant("I1")
def test_an_empty_table_that_was_made_by_hand_is_taken_as_it_is(lake):
    kinds = [("_txid", pa.int64()), ("a", pa.int64()), ("mine", pa.string())]
    DeltaTable.create(str(lake.path), pa.schema(kinds), partition_by=["_txid"])
    lake.run("a")
    lake.run("b")
    lake.run("a", clear_number=1, drop=1)
    assert lake.rows() == appended(lake.ledger)
    assert DeltaTable(str(lake.path)).metadata().partition_columns == ["_txid"]


def test_a_column_of_another_type_is_refused(lake):
    DeltaTable.create(str(lake.path), pa.schema([("a", pa.string())]))
    with pytest.raises(DestinationRefused, match="column a is string, and is written as int64"):
        lake.run("a")
    assert lake.table().num_rows == 0


@pytest.mark.invariant("I1")
def test_a_table_that_is_gone_is_told_and_made_anew(lake):
    lake.run("a")
    lake.path.rename(lake.path.parent / "old")
    with pytest.raises(MarkMoved, match="its mark is gone"):
        lake.run("b")
    detach(lake.ledger, "line", lake.address, "for the test", "me")
    attach(lake.ledger, lake.spec, lake.address, How.ANEW, "for the test", "me", lake.opens)
    assert lake.rows() == appended(lake.ledger)
    lake.run("c")
    assert lake.rows() == appended(lake.ledger)


@pytest.mark.invariant("I1")
def test_an_attached_table_goes_on_or_leaves_what_it_has(lake):
    lake.run("a")
    detach(lake.ledger, "line", lake.address, "for the test", "me")
    lake.run("b")
    assert {row[3] for row in lake.rows()} == {1}
    attach(lake.ledger, lake.spec, lake.address, How.ON, "for the test", "me", lake.opens)
    assert lake.rows() == appended(lake.ledger)
    detach(lake.ledger, "line", lake.address, "for the test", "me")
    lake.run("c")
    attach(lake.ledger, lake.spec, lake.address, How.FROM_HERE, "for the test", "me", lake.opens)
    lake.run("d")
    assert lake.rows() == [row for row in appended(lake.ledger) if row[3] != 3]


def test_an_older_copy_in_its_place_is_told(lake, tmp_path):
    lake.run("a")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(lake.path), str(copy)], check=True)
    lake.run("b")
    lake.path.rename(tmp_path / "newer")
    copy.rename(lake.path)
    with pytest.raises(MarkMoved, match="an older copy is in its place"):
        lake.run("c")


def test_a_directory_that_cannot_be_written_is_waited_for(lake):
    lake.path.parent.write_text("a file")
    with pytest.raises(DestinationUnreachable, match=f"rows: {lake.address}: "):
        lake.run("a")
    lake.path.parent.unlink()
    follow(lake.ledger, lake.spec, lake.opens)
    assert lake.rows() == appended(lake.ledger) != []


@pytest.mark.invariant("I1")
def test_a_table_is_divided_by_columns(lake):
    lake.path, lake.more, lake.columns = lake.path.parent / "divided", {"partition_by": "day"}, "a bigint, day date"
    spec = lake.spec.model_copy(update={"name": "divided"})
    assert spec.sinks[0].destinations[0].partition_by == ("day",)
    with lake.open() as outside:
        outside.start(Mark(0, 1))
    assert DeltaTable(str(lake.path)).metadata().partition_columns == ["day"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"name": "s3://lake/orders"}, "object stores are not supported yet"),
        ({"name": "lake/orders"}, "is no absolute path of a directory"),
        ({"name": "/lake/../orders"}, "is no absolute path of a directory"),
        ({"name": "/"}, "is no absolute path of a directory"),
        ({"name": "/lake/a%20b"}, "has no '%'"),
        ({"name": "/lake/a\\b"}, "no backslash"),
    ],
)
def test_what_is_no_directory_is_refused(given, error):
    with pytest.raises(SpecError, match=error):
        DeltaLake(**given)


@pytest.mark.parametrize(
    ("columns", "by", "error"),
    [
        ("a bigint", "b", "partition_by 'b' is not one of columns: a"),
        ("a bigint, l array<int>", "l", "does not hold values of type array<int>"),
        ("a bigint, l decimal(5,2)", "l", "does not hold values of type decimal"),
        ("a bigint, l binary", "l", "does not hold values of type binary"),
        ("a bigint, l double", "l", "does not hold values of type double"),
        ("a bigint, l int", ("l", "l"), "names a column twice"),
        ("a bigint", "a", "names every column"),
    ],
)
def test_columns_that_a_lake_cannot_be_given_are_refused(columns, by, error):
    with pytest.raises(SpecError, match=error):
        Append("rows", columns=columns, to=DeltaLake("/lake/orders", partition_by=by))


def test_one_directory_has_one_address():
    assert DeltaLake("//lake//orders/").address == DeltaLake("/lake/orders").address == "delta:/lake/orders"
