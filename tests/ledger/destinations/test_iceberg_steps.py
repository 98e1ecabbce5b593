"""An Iceberg table has each row once, whatever is killed, repeated or late."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from ratchet.destinations import iceberg_files
from ratchet.errors import DestinationUnreachable, StageMismatch
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow

from ..proxy import Loss, Proxy, is_commit
from ..staging import appended
from .following import at_once
from .icebergs import IcebergOf

later = partial(pytest.param, marks=pytest.mark.all)
ROOT = Path(__file__).parents[3]
_OTHER = """
import inspect, json, os, signal, sys
from ratchet.destinations import iceberg_catalog, iceberg_files, iceberg_table
from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import follow
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.engine import Engine
from sqlalchemy import event
from tests.ledger.destinations.icebergs import IcebergOf
url, properties, name, where, how = sys.argv[1:]
def ends():
    os.kill(os.getpid(), getattr(signal, how))
def wrapped(of, name, before):
    does = getattr(of, name)
    def wrapping(*given, **named):
        if before: ends()
        done = does(*given, **named)
        if not before: ends()
        return done
    is_static = isinstance(inspect.getattr_static(of, name), staticmethod)
    setattr(of, name, staticmethod(wrapping) if is_static else wrapping)
def half(*given):
    for batch in rows(*given):
        yield batch.slice(0, 1)
        ends()
properties = json.loads(properties)
of = RestCatalog if properties["type"] == "rest" else SqlCatalog
if where == "while it reads": rows, iceberg_table.arrow_rows = iceberg_table.arrow_rows, half
if where == "when the rows are written": wrapped(iceberg_files.DataFiles, "write", False)
if where == "before the commit": wrapped(iceberg_table._Once, "once", True)
if where == "behind the check": wrapped(SqlCatalog, "_write_metadata", False)
if where == "behind the commit": wrapped(of, "commit_table", False)
if where == "within the commit":
    iceberg_catalog.IDLE_SECONDS = 1
    @event.listens_for(Engine, "after_cursor_execute")
    def after(conn, cursor, statement, *given):
        if statement.startswith("UPDATE iceberg_tables"): ends()
with Ledger(url) as ledger:
    of = IcebergOf(ledger, properties, None, name=name)
    print(follow(ledger, of.spec, of.opens))
"""


def other(iceberg: IcebergOf, where: str, how: str) -> subprocess.Popen[str]:
    """Another process that brings the table on, and ends itself so at this place."""
    given = [sys.executable, "-c", _OTHER, iceberg.ledger.url, json.dumps(iceberg.properties), iceberg.name, where, how]
    return subprocess.Popen(given, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.invariant("I1", "I3")
def test_a_table_has_the_rows_of_its_sink_a_commit_a_snapshot(iceberg):
    for number, run in enumerate("ab", 1):
        txid = iceberg.run(run)
        assert iceberg.rows() == appended(iceberg.ledger) and iceberg.mark().step == number
        table = iceberg.loaded()
        said = table.current_snapshot().summary.additional_properties
        assert {name: said[f"ratchet.{name}"] for name in ("pipeline", "sink", "step", "txid")} == {
            "pipeline": "line",
            "sink": "rows",
            "step": str(number),
            "txid": str(txid),
        }
        assert len(table.snapshots()) == number + 1
    assert [a for a in iceberg.table()["a"].to_pylist() if a > 0] == []


@pytest.mark.invariant("I1", "I3", "I7")
def test_a_revision_takes_the_place_of_its_rows_also_with_none(iceberg):
    iceberg.run("a")
    second = iceberg.run("b")
    before = [row for row in iceberg.rows() if row[3] != second]
    iceberg.run("b", clear_number=1, drop=3)
    assert iceberg.rows() == appended(iceberg.ledger)
    assert [row for row in iceberg.rows() if row[3] != second] == before and len(iceberg.rows()) < 2 * len(before)
    iceberg.run("b", clear_number=2, drop=10_000)
    assert iceberg.rows() == before and iceberg.mark().step == 4
    assert len(iceberg.loaded().snapshots()) == 5


@pytest.mark.invariant("I1")
def test_a_step_without_rows_moves_the_mark(iceberg):
    iceberg.run("a", drop=10_000)
    assert iceberg.rows() == [] and iceberg.mark().step == 1
    iceberg.run("b")
    assert iceberg.rows() == appended(iceberg.ledger) != []


@pytest.mark.invariant("I1", "I2")
def test_of_several_that_send_the_same_step_one_succeeds(iceberg):
    for number, run in enumerate("ab", 1):
        iceberg.decided(run)
        assert at_once(iceberg.ledger, iceberg.spec, iceberg.opens, 3) == []
        assert iceberg.rows() == appended(iceberg.ledger) and iceberg.mark().step == number


@pytest.mark.parametrize(
    ("step", "where"),
    [
        ("appends", "before the commit"),
        *(later(step, "before the commit") for step in ("is empty", "replaces")),
        *(later(step, "when the rows are written") for step in ("appends", "replaces")),
    ],
)
@pytest.mark.invariant("I1", "I2")
def test_a_process_that_is_stopped_before_its_commit_changes_nothing_when_it_wakes(iceberg, step, where):
    late(iceberg, step, where)


@pytest.mark.parametrize(
    ("step", "where"),
    [
        ("is empty", "behind the check"),
        later("replaces", "within the commit"),
        *(later(step, "behind the check") for step in ("appends", "replaces")),
        *(later(step, "within the commit") for step in ("appends", "is empty")),
    ],
)
@pytest.mark.invariant("I1", "I2")
def test_a_process_that_is_stopped_in_the_catalogs_database_holds_up_nobody_and_changes_nothing(
    in_postgresql, step, where
):
    late(in_postgresql, step, where)


def late(iceberg: IcebergOf, step: str, where: str) -> None:
    """A process is stopped there in a step of this kind, and wakes after others have gone on."""
    iceberg.run("a")
    if step == "replaces":
        iceberg.decided("a", 1, drop=1)
    else:
        iceberg.decided("b", drop=10_000 if step == "is empty" else 0)
    with other(iceberg, where, "SIGSTOP") as process:
        try:
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1]), process.stderr.read()
            assert iceberg.mark().step == 1
            follow(iceberg.ledger, iceberg.spec, iceberg.opens)
            # More is committed meanwhile: what it would do is long past.
            iceberg.run("c")
            before, mark, snapshots = iceberg.rows(), iceberg.mark(), len(iceberg.loaded().snapshots())
            process.send_signal(signal.SIGCONT)
            process.wait(60)
        finally:
            process.kill()
    assert iceberg.rows() == before == appended(iceberg.ledger)
    assert iceberg.mark() == mark and mark.step == 3
    assert len(iceberg.loaded().snapshots()) == snapshots
    assert iceberg.steps() == [(3, True)]


@pytest.mark.parametrize(
    ("where", "comes"),
    [
        later("behind the commit", 2),
        *(later(where, 1) for where in ("while it reads", "when the rows are written")),
    ],
)
@pytest.mark.invariant("I1", "I2")
def test_a_process_that_is_killed_while_it_sends_leaves_all_or_nothing(iceberg, where, comes):
    iceberg.run("a")
    iceberg.decided("b")
    with other(iceberg, where, "SIGKILL") as killed:
        assert killed.wait(60) == -signal.SIGKILL, killed.stderr.read()
    assert iceberg.mark().step == comes and iceberg.steps() == [(1, True)]
    follow(iceberg.ledger, iceberg.spec, iceberg.opens)
    assert iceberg.rows() == appended(iceberg.ledger) and iceberg.steps() == [(2, True)]


@pytest.mark.parametrize(("how", "comes"), [(Loss.UNANSWERED, 2), later(Loss.BEFORE, 1)])
@pytest.mark.invariant("I1", "I2")
def test_an_answer_of_the_catalog_that_is_lost_is_told_by_the_mark(in_postgresql, how, comes):
    in_postgresql.run("a")
    in_postgresql.decided("b")
    straight = in_postgresql.properties["uri"]
    with Proxy(straight.replace("+psycopg", "")) as proxy:
        in_postgresql.properties["uri"] = proxy.url
        sent = []
        proxy.lose(how, lambda _, text: bool(sent) and is_commit(text) or bool(b"UPDATE" in text and sent.append(1)))
        with pytest.raises(DestinationUnreachable, match="its mark tells what it has taken"):
            follow(in_postgresql.ledger, in_postgresql.spec, in_postgresql.opens)
    in_postgresql.properties["uri"] = straight
    assert in_postgresql.mark().step == comes
    follow(in_postgresql.ledger, in_postgresql.spec, in_postgresql.opens)
    assert in_postgresql.rows() == appended(in_postgresql.ledger) and in_postgresql.steps() == [(2, True)]


@pytest.mark.invariant("I1")
def test_rows_that_are_missing_in_the_ledger_send_nothing(iceberg):
    iceberg.run("a")
    before = iceberg.rows()
    iceberg.decided("b")
    with iceberg.ledger.begin() as conn:
        conn.exec_driver_sql(
            'delete from ratchet_delta."public.rows" where _txid = 2 and (_partition, _offset) = '
            '(select _partition, _offset from ratchet_delta."public.rows" where _txid = 2 limit 1)'
        )
    with pytest.raises(StageMismatch, match="its votes say"):
        follow(iceberg.ledger, iceberg.spec, iceberg.opens)
    assert iceberg.rows() == before and iceberg.mark().step == 1


@pytest.mark.all
@pytest.mark.invariant("I1")
def test_memory_does_not_grow_with_a_step(in_postgresql, monkeypatch):
    monkeypatch.setattr(iceberg_files, "BYTES", 1 << 20)
    monkeypatch.setattr(iceberg_files, "BYTES_DIVIDED", 1 << 18)
    in_postgresql.columns, in_postgresql.more = "a bigint, b string", {"partition_by": "bucket(2, a)"}
    migrate(in_postgresql.ledger.url, [in_postgresql.spec])
    begun = in_postgresql.prepared("a", of=lambda at: {"a": at["_offset"], "b": f"{at['_offset']}" * 1_000_000})
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        commit(in_postgresql.ledger, in_postgresql.spec, begun.claim, in_postgresql.opens)
    finally:
        pa.set_memory_pool(before)
    sent = sum(len(row["b"]) for row in in_postgresql.read("b"))
    assert sent == 20_000_000 and pool.max_memory() < sent / 2 and len(in_postgresql.files()) > 5
    assert in_postgresql.rows() == appended(in_postgresql.ledger)
