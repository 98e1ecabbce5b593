"""A Delta Lake table has each row once, whatever is killed, repeated or late."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from ratchet.destinations.arrow_rows import arrow_rows
from ratchet.destinations.lake import Lake
from ratchet.destinations.port import Mark
from ratchet.errors import (
    DestinationRefused,
    DestinationUnreachable,
    MarkMoved,
    SettingsError,
    StageMismatch,
)
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow

from ..staging import appended, prepare, start
from .lakes import LakeOf


@pytest.mark.invariant("I1", "I3")
def test_a_table_has_the_rows_of_its_sink_a_commit_a_version(lake):
    for number, run in enumerate("abc", 1):
        txid = lake.run(run)
        assert lake.rows() == appended(lake.ledger) and lake.mark().step == number
        (written,) = lake.delta().history(1)
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


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.all), 5])
@pytest.mark.invariant("I1")
def test_a_step_is_written_once_more_behind_what_somebody_else_has_changed(lake, monkeypatch, times):
    lake.run("a")
    write, changed = Lake._write, []

    def late(self, table, *given):
        if len(changed) < times:
            changed.append(len(changed))
            lake.delta().alter.set_table_properties({f"their.{len(changed)}": "1"}, raise_if_not_exists=False)
        return write(self, table, *given)

    monkeypatch.setattr(Lake, "_write", late)
    begun = start(lake.ledger, lake.spec, lake.log, "b")
    prepare(lake.ledger, lake.spec, begun)
    if times < 5:
        commit(lake.ledger, lake.spec, begun.claim, lake.opens)
    else:
        with pytest.raises(DestinationUnreachable, match="somebody else has changed the table meanwhile"):
            commit(lake.ledger, lake.spec, begun.claim, lake.opens)
        assert lake.mark().step == 1
        commit(lake.ledger, lake.spec, begun.claim, lake.opens)
    assert len(changed) == times and lake.mark().step == 2 and lake.rows() == appended(lake.ledger)


_KILLED = """
import os, signal, sys
from ratchet.destinations import lake
from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import follow
from tests.ledger.destinations.lakes import LakeOf, Where
import json
url, name, options, where = sys.argv[1:]
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
    of = LakeOf(ledger, Where(name, json.loads(options)), None)
    follow(ledger, of.spec, of.opens)
"""


@pytest.mark.parametrize(("moment", "comes"), [("before", 1), ("after", 2)])
@pytest.mark.invariant("I1", "I2")
def test_a_process_that_is_killed_while_it_sends_leaves_all_or_nothing(lake, moment, comes):
    lake.run("a")
    spec = lake.spec
    begun = start(lake.ledger, spec, lake.log, "b")
    prepare(lake.ledger, spec, begun)
    with pytest.raises(SettingsError):
        commit(lake.ledger, spec, begun.claim)
    root = Path(__file__).parents[3]
    there = lake.where.name, json.dumps(lake.where.options)
    given = [sys.executable, "-c", _KILLED, lake.ledger.url, *there, moment]
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
    table = lake.delta()
    assert table.optimize.compact()["numFilesRemoved"] == 3
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    lake.run("b", clear_number=1, drop=2)
    lake.run("d")
    assert lake.rows() == appended(lake.ledger) and lake.mark().step == 5


@pytest.mark.timeout(60)
def test_a_table_that_refuses_a_large_step_holds_up_nobody(bare, log, where):
    lake = LakeOf(bare, where, log, "a bigint, b string")
    where.create(("a", pa.int64()), ("b", pa.string())).alter.add_constraint({"negative": "a <= 0"})
    migrate(lake.ledger.url, [lake.spec])
    # Many times of what is read at once, and the first of it is refused.
    with pytest.raises(DestinationRefused, match="rows: delta:.*failed validation check"):
        lake.run("a", of=lambda at: {"a": 1, "b": "x" * 300_000})
    assert lake.table().num_rows == 0 and lake.mark().step == 0


@pytest.mark.invariant("I1")
def test_a_step_of_many_batches_arrives_wholly(bare, log, where):
    lake = LakeOf(bare, where, log, "a bigint, b string")
    migrate(lake.ledger.url, [lake.spec])
    lake.run("a", of=lambda at: {"a": 1, "b": f"{at['_offset']}" * 60_000})
    assert lake.rows() == appended(lake.ledger) != []
    assert all(row["b"] == f"{row['_offset']}" * 60_000 for row in lake.table().to_pylist())


@pytest.mark.invariant("I1")
def test_a_table_that_is_gone_is_told_and_made_anew(lake):
    lake.run("a")
    lake.where.move_to(lake.where.beside("old"))
    with pytest.raises(MarkMoved, match="there is no such table here, .*a disk that is not mounted"):
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


def test_an_older_copy_in_its_place_is_told(lake):
    lake.run("a")
    lake.where.copy_to(lake.where.beside("copy"))
    lake.run("b")
    lake.where.move_to(lake.where.beside("newer"))
    lake.where.beside("copy").move_to(lake.where)
    with pytest.raises(MarkMoved, match="an older copy is in its place"):
        lake.run("c")


def test_a_directory_that_cannot_be_written_is_waited_for(on_disk):
    above = Path(on_disk.where.name).parent
    above.write_text("a file")
    with pytest.raises(DestinationUnreachable, match=f"rows: {on_disk.address}: "):
        on_disk.run("a")
    above.unlink()
    follow(on_disk.ledger, on_disk.spec, on_disk.opens)
    assert on_disk.rows() == appended(on_disk.ledger) != []
