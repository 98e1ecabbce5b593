"""A directory of files has each row once, whatever is killed, repeated or late."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ratchet.destinations import file_log
from ratchet.destinations.content import Change
from ratchet.destinations.file_tree import Tree
from ratchet.destinations.port import Mark, Undecided
from ratchet.errors import DestinationRefused, DestinationUnreachable, MarkMoved, SettingsError, StageMismatch
from ratchet.ledger.connection import driver_of
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow

from ..staging import appended, prepare, start
from .following import Late, at_once
from .lakes import Where
from .trees import FilesOf


@pytest.fixture(params=["parquet", "csv", "json"])
def form(request) -> str:
    return request.param


@pytest.fixture
def files(bare, log, tmp_path) -> FilesOf:
    made = FilesOf(bare, Where(str(tmp_path / "files" / "rows")), log)
    migrate(bare.url, [made.spec])
    return made


def decided(files: FilesOf, run: str, clear_number: int = 0) -> None:
    """A transaction that is committed while nothing is sent."""
    begun = start(files.ledger, files.spec, files.log, run, clear_number)
    prepare(files.ledger, files.spec, begun)
    with pytest.raises(SettingsError):
        commit(files.ledger, files.spec, begun.claim)


@pytest.mark.invariant("I1", "I3")
def test_files_have_the_rows_of_their_sink_a_commit_a_directory(bare, log, tmp_path, form):
    files = FilesOf(bare, Where(str(tmp_path / "rows")), log, more={"format": form})
    migrate(bare.url, [files.spec])
    for number, run in enumerate("abc", 1):
        txid = files.run(run)
        assert files.rows() == appended(files.ledger) and files.mark().step == number
        assert files.seen()[-1] == f"ratchet_version={number}/ratchet_txid={txid}/part-00000.{form}"
        record = files.record(number)
        size = (files.data / files.seen()[-1]).stat().st_size
        (written,) = record.files
        assert (record.pipeline, record.sink, record.txid, written.bytes) == ("line", "rows", txid, size)
        assert written.rows == sum(row[3] == txid for row in files.rows())
    assert files.hidden("incoming") == files.hidden("removed") == []
    if form != "json":
        # JSON's reader takes what it finds.
        assert files.table().column_names[-2:] == ["ratchet_version", "ratchet_txid"]


@pytest.mark.invariant("I1", "I3", "I7")
def test_a_revision_takes_the_place_of_its_rows_also_with_none(files):
    files.run("a")
    second = files.run("b")
    before = [row for row in files.rows() if row[3] != second]
    files.run("b", clear_number=1, drop=3)
    assert files.rows() == appended(files.ledger)
    assert [row for row in files.rows() if row[3] != second] == before and len(files.rows()) < 2 * len(before)
    files.run("b", clear_number=2, drop=10_000)
    assert files.rows() == before and files.mark().step == 4
    # Nothing is left of what has gone.
    assert [path.name for path in files.data.iterdir()] == ["ratchet_version=1"]
    assert files.hidden("incoming") == files.hidden("removed") == []


@pytest.mark.invariant("I1")
def test_a_step_without_rows_moves_the_mark(files):
    files.run("a", drop=10_000)
    assert files.rows() == [] and files.mark().step == 1
    files.run("b")
    assert files.rows() == appended(files.ledger) != []


@pytest.mark.invariant("I1", "I2")
def test_of_several_that_send_the_same_step_one_succeeds(files):
    for number, run in enumerate("abcd", 1):
        decided(files, run)
        assert at_once(files.ledger, files.spec, files.opens) == []
        assert files.rows() == appended(files.ledger) and files.mark().step == number
        assert files.hidden("incoming") == files.hidden("removed") == []


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.invariant("I1", "I2")
def test_who_finds_another_mark_when_it_has_written_changes_nothing(files, monkeypatch, replaces):
    files.run("a")
    if replaces:
        files.run("a", clear_number=1, drop=1)
    before, at = files.rows(), files.mark()
    add = file_log.FileLog.add

    def late(self, version):
        # Between the look at the mark and the change, another process has sent the same step.
        monkeypatch.setattr(file_log.FileLog, "add", add)
        with files.open() as other:
            assert other.restart(at, Mark(at.step + 1, 77), None)
        return add(self, version)

    monkeypatch.setattr(file_log.FileLog, "add", late)
    begun = start(files.ledger, files.spec, files.log, "a" if replaces else "b", 2 if replaces else 0)
    prepare(files.ledger, files.spec, begun)
    with pytest.raises(MarkMoved, match="is no step of this ledger"):
        commit(files.ledger, files.spec, begun.claim, files.opens)
    assert files.rows() == before and files.mark() == Mark(at.step + 1, 77)
    assert files.hidden("incoming") == []


@pytest.mark.parametrize("then", ["again", "revised"])
@pytest.mark.invariant("I1", "I2")
def test_a_follower_that_was_stopped_changes_nothing_when_others_have_gone_on(files, then):
    decided(files, "a")
    late = Late(files.ledger, files.spec, files.opens)
    follow(files.ledger, files.spec, files.opens)
    if then == "revised":
        files.run("a", clear_number=1, drop=2)
    files.run("b")
    late.end()
    assert late.said == [False]
    assert files.rows() == appended(files.ledger)


@pytest.mark.parametrize("stops", ["before the first", "after the first"])
@pytest.mark.invariant("I1", "I2", "I7")
def test_who_was_stopped_while_it_shows_a_version_shows_nothing_of_later_ones(files, monkeypatch, stops):
    files.run("a")
    files.run("b")
    decided(files, "a", clear_number=1)
    there, go_on, unshown = threading.Event(), threading.Event(), Tree._unshown

    def stopped(self, version):
        for number, place in enumerate(unshown(self, version)):
            is_it = version.step == 3 and number == int(stops == "after the first")
            if is_it and threading.current_thread() is thread:
                there.set()
                assert go_on.wait(60)
            yield place

    thread = threading.Thread(target=follow, args=(files.ledger, files.spec, files.opens))
    monkeypatch.setattr(Tree, "_unshown", stopped)
    thread.start()
    assert there.wait(60)
    with files.open() as other, pytest.raises(Undecided):
        other.look()
    files.run("a", clear_number=2, drop=1)
    files.run("c")
    assert files.rows() == appended(files.ledger)
    go_on.set()
    thread.join(60)
    assert files.rows() == appended(files.ledger) and files.mark().step == 5
    assert files.hidden("incoming") == files.hidden("removed") == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from ratchet.destinations import file_log, file_rows, file_tree
from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import follow
from tests.ledger.destinations.lakes import Where
from tests.ledger.destinations.trees import FilesOf
url, path, where, number = sys.argv[1:]
left = [int(number)]
def killed(at):
    if at == where:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
def around(of, name, at):
    does = getattr(of, name)
    def done(*given, **named):
        killed(f"before {at}")
        made = does(*given, **named)
        killed(f"after {at}")
        return made
    setattr(of, name, done)
around(file_tree.Writers, "write", "rows")
around(os, "link", "link")
around(Path, "rename", "renaming")
around(file_tree.Tree, "_tidy", "tidying")
with Ledger(url) as ledger:
    of = FilesOf(ledger, Where(path), None)
    follow(ledger, of.spec, of.opens)
"""


@pytest.mark.parametrize(
    ("where", "number", "comes", "seen"),
    [
        pytest.param("before rows", 0, 2, {1, 2}, marks=pytest.mark.all),
        pytest.param("after rows", 0, 2, {1, 2}, marks=pytest.mark.all),
        pytest.param("before link", 0, 2, {1, 2}, marks=pytest.mark.all),
        ("after link", 0, None, {1, 2}),
        ("before renaming", 1, None, {2}),
        pytest.param("after renaming", 1, 3, {1, 2}, marks=pytest.mark.all),
        pytest.param("before tidying", 0, 3, {1, 2}, marks=pytest.mark.all),
    ],
)
@pytest.mark.invariant("I1", "I2")
def test_a_process_that_is_killed_leaves_all_or_nothing(files, where, number, comes, seen):
    files.run("a")
    files.run("b")
    decided(files, "a", clear_number=1)
    root = Path(__file__).parents[3]
    given = [sys.executable, "-c", _KILLED, files.ledger.url, str(files.path), where, str(number)]
    done = subprocess.run(given, cwd=root, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    # Readers see no row twice; while it is changed, they may see none of a transaction.
    found = files.rows()
    assert len(set(found)) == len(found) and {row[3] for row in found} == seen
    with files.open() as outside:
        if comes is None:
            with pytest.raises(Undecided):
                outside.look()
        else:
            assert outside.look().step == comes
    follow(files.ledger, files.spec, files.opens)
    assert files.rows() == appended(files.ledger) and files.steps() == [(3, True)]
    files.run("c")
    assert files.rows() == appended(files.ledger)
    assert files.hidden("incoming") == files.hidden("removed") == []


@pytest.mark.invariant("I1")
def test_rows_that_are_missing_in_the_ledger_send_nothing(files):
    files.run("a")
    before = files.rows()
    decided(files, "b")
    with files.ledger.begin() as conn:
        conn.exec_driver_sql(
            'delete from ratchet_delta."public.rows" where _txid = 2 and (_partition, _offset) = '
            '(select _partition, _offset from ratchet_delta."public.rows" where _txid = 2 limit 1)'
        )
    with pytest.raises(StageMismatch, match="its votes say"):
        follow(files.ledger, files.spec, files.opens)
    assert files.rows() == before and files.mark().step == 1 and files.hidden("incoming") == []


@pytest.mark.invariant("I1")
def test_a_directory_that_is_gone_is_told_and_made_anew(files):
    files.run("a")
    files.path.rename(files.path.parent / "old")
    with pytest.raises(MarkMoved, match="there is no such directory here, .*a disk that is not mounted"):
        files.run("b")
    detach(files.ledger, "line", files.address, "for the test", "me")
    attach(files.ledger, files.spec, files.address, How.ANEW, "for the test", "me", files.opens)
    assert files.rows() == appended(files.ledger)
    files.run("c")
    # Of what was written all at once, a transaction is revised as any other.
    files.run("a", clear_number=1, drop=1)
    assert files.rows() == appended(files.ledger)


@pytest.mark.invariant("I1")
def test_one_whose_log_is_gone_is_made_anew_in_its_place(files):
    files.run("a")
    files.run("b")
    shutil.rmtree(files.path / "_ratchet")
    detach(files.ledger, "line", files.address, "for the test", "me")
    attach(files.ledger, files.spec, files.address, How.ANEW, "for the test", "me", files.opens)
    assert files.rows() == appended(files.ledger)
    assert {seen.partition("/")[0] for seen in files.seen()} == {"ratchet_version=3"}


@pytest.mark.invariant("I1")
def test_an_attached_directory_goes_on_or_leaves_what_it_has(files):
    files.run("a")
    detach(files.ledger, "line", files.address, "for the test", "me")
    files.run("b")
    assert {row[3] for row in files.rows()} == {1}
    attach(files.ledger, files.spec, files.address, How.ON, "for the test", "me", files.opens)
    assert files.rows() == appended(files.ledger)
    detach(files.ledger, "line", files.address, "for the test", "me")
    files.run("c")
    attach(files.ledger, files.spec, files.address, How.FROM_HERE, "for the test", "me", files.opens)
    files.run("d")
    assert files.rows() == [row for row in appended(files.ledger) if row[3] != 3]


def test_an_older_copy_in_its_place_is_told(files, tmp_path):
    files.run("a")
    copy = tmp_path / "copy"
    shutil.copytree(files.path, copy)
    files.run("b")
    files.path.rename(tmp_path / "newer")
    copy.rename(files.path)
    with pytest.raises(MarkMoved, match="an older copy is in its place"):
        files.run("c")


def test_a_directory_that_cannot_be_written_is_waited_for(files):
    files.path.parent.write_text("a file")
    with pytest.raises(DestinationUnreachable, match=f"rows: {files.address}: Not a directory"):
        files.run("a")
    files.path.parent.unlink()
    follow(files.ledger, files.spec, files.opens)
    assert files.rows() == appended(files.ledger) != []


def test_a_file_system_without_links_is_refused(files, monkeypatch):
    def refuses(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    with pytest.raises(DestinationRefused, match="makes no hard links .Operation not permitted., .*on another one"):
        files.run("a")


@pytest.mark.invariant("I1")
def test_a_link_of_which_no_answer_came_is_found_to_be_ones_own(files, monkeypatch):
    link = os.link

    def twice(*given):
        link(*given)
        link(*given)

    monkeypatch.setattr(os, "link", twice)
    files.run("a")
    files.run("b")
    assert files.rows() == appended(files.ledger) and files.mark().step == 2


@pytest.mark.invariant("I1")
def test_names_of_others_in_the_hidden_places_are_left_alone(files):
    files.run("a")
    for name in ("incoming", "removed"):
        (files.path / "_ratchet" / name).mkdir(exist_ok=True)
        (files.path / "_ratchet" / name / ".nfs0001").touch()
    files.run("a", clear_number=1, drop=1)
    assert files.rows() == appended(files.ledger)
    assert files.hidden("incoming") == files.hidden("removed") == [".nfs0001"]


def test_a_record_that_is_none_is_told(files):
    files.run("a")
    files.place(1).write_text("{}")
    with pytest.raises(DestinationRefused, match="0000000001 is no record of a version; put it back"):
        files.run("b")


@pytest.mark.parametrize("does", ["apply", "restart"])
@pytest.mark.invariant("I1")
def test_whoever_changes_files_shows_first_what_another_has_left(files, monkeypatch, does):
    files.run("a")
    show = Tree._show

    def fails(self, version):
        if version.step == 2:
            raise OSError(5, "Input/output error")
        show(self, version)

    monkeypatch.setattr(Tree, "_show", fails)
    with pytest.raises(DestinationUnreachable, match="Input/output error"):
        files.run("a", clear_number=1, drop=2)
    monkeypatch.setattr(Tree, "_show", show)
    assert files.record(2).takes and len(files.hidden("incoming")) == 1
    with files.open() as outside, files.ledger.snapshot() as conn:
        of = driver_of(conn), ("ratchet_delta", "public.rows"), 2, files.spec.sinks[0].fields
        at, to = files.record(2).mark, Mark(3, 5)
        if does == "apply":
            assert outside.apply(at, to, Change(*of, 0, False, 0, ()))
        else:
            assert outside.restart(at, to, None)
    assert files.rows() == appended(files.ledger)
    assert files.mark() == to


@pytest.mark.invariant("I1", "I2")
def test_a_deploy_and_an_attach_in_another_format_leave_a_late_step_of_before_without_effect(files):
    files.run("a")
    decided(files, "b")
    of_before = Late(files.ledger, files.spec, files.opens)
    files.columns = "a bigint, c string"
    migrate(files.ledger.url, [files.spec])
    # Whoever has the new spec sends what the old one has written, and goes on.
    files.run("c", of=lambda at: {"a": 1, "c": "x"})
    files.run("a", clear_number=1, drop=2, of=lambda at: {"a": 1, "c": "y"})
    of_before.end()
    assert of_before.said == [False] and files.rows() == appended(files.ledger)
    decided(files, "d")
    of_before = Late(files.ledger, files.spec, files.opens)
    files.more = {"format": "csv"}
    detach(files.ledger, "line", files.address, "for the test", "me")
    attach(files.ledger, files.spec, files.address, How.ANEW, "for the test", "me", files.opens)
    of_before.end()
    assert of_before.said == [False] and {path[-4:] for path in files.seen()} == {".csv"}
    files.run("e", of=lambda at: {"a": 1, "c": "x"})
    assert files.rows() == appended(files.ledger)
    assert files.hidden("incoming") == files.hidden("removed") == []
