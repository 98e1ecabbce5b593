"""Three roles: one owns and migrates the ledger, one runs the pipelines, one reads; none can do another's part."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from urllib.parse import quote, urlsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors, sql

from ratchet import Append
from ratchet.errors import SettingsError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import metadata
from ratchet.ledger.work import Run
from ratchet.operate.drop import drop
from ratchet.operate.migrate import migrate
from ratchet.operate.prune import prune
from ratchet.operate.roles import RIGHTS, Granted, grant
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.compact import compact
from ratchet.protocol.expire import expire

from .staging import SPEC, Log, prepare, start

LINE = SPEC.model_copy(update={"keep_deltas": timedelta(0)})
KEPT = LINE.model_copy(
    update={"sinks": [LINE.sinks[0].model_copy(update={"keep": timedelta(days=90)}), *LINE.sinks[1:]]}
)
ELSEWHERE = SPEC.model_copy(update={"name": "elsewhere", "sinks": [Append("archive.rows", columns="a bigint")]})


class Roles:
    """A database whose owner is no superuser, and a role for the pipelines and one for readers."""

    def __init__(self, admin: psycopg.Connection, url: str):
        self._admin, self.superuser = admin, url
        mark = uuid4().hex[:8]
        # Names that must be quoted.
        self.owner, self.pipeline, self.reader = f"Owner {mark}", f'pipe"line {mark}', f"reader-{mark} %s"
        for role in (self.owner, self.pipeline, self.reader):
            self.do("create role {} login password 'x'", role)
        self.database = urlsplit(url).path[1:]
        self.do("alter database {} owner to {}", self.database, self.owner)

    def do(self, statement: str, *names: str) -> None:
        self._admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def url(self, role: str) -> str:
        at = urlsplit(self.superuser)
        return f"postgresql://{quote(role)}:x@{at.hostname}:{at.port}/{self.database}"

    def migrate(self) -> None:
        migrate(self.url(self.owner), [LINE, ELSEWHERE])

    def grant(self, *roles: str | None) -> list[Granted]:
        with Ledger(self.url(self.owner)) as ledger, ledger.begin() as conn:
            return grant(conn, [LINE, ELSEWHERE], *roles)

    def is_refused(self, role: str, statement: str | sql.Composed) -> bool:
        """Whether PostgreSQL refuses this role the statement, for want of a right and for no other reason."""
        with psycopg.connect(self.url(role)) as conn:
            try:
                conn.execute(statement)
            except errors.InsufficientPrivilege:
                return True
            finally:
                conn.rollback()
        return False


@pytest.fixture
def roles(postgres, ledger_url):
    with psycopg.connect(postgres.ledger_url, autocommit=True) as admin:
        made = Roles(admin, ledger_url)
        yield made
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(made.database)))
        for role in (made.owner, made.pipeline, made.reader):
            made.do("drop role {}", role)
        # The fixture drops it once more.
        made.do("create database {}", made.database)


@pytest.fixture
def granted(roles):
    roles.migrate()
    said = roles.grant(roles.pipeline, roles.reader)
    assert [(each.role, each.is_reader) for each in said] == [(roles.pipeline, False), (roles.reader, True)]
    return roles


def transact(ledger: Ledger, run_id: str, clear_number: int = 0) -> int:
    begun = start(ledger, LINE, Log(), run_id, clear_number)
    prepare(ledger, LINE, begun)
    assert isinstance(commit(ledger, LINE, begun.claim), Committed)
    settle(ledger, LINE, Run("dag", run_id, clear_number), succeeded=True)
    return begun.claim.txid


def seen(url: str) -> Counter[tuple]:
    with psycopg.connect(url) as conn:
        return Counter(conn.execute("select _partition, _offset, a, _txid from rows").fetchall())


def test_the_pipelines_role_does_whole_transactions_a_revision_a_compaction_and_an_expiry(granted):
    with Ledger(granted.url(granted.pipeline)) as ledger:
        assert (transact(ledger, "one"), transact(ledger, "two")) == (1, 2)
        before = seen(granted.url(granted.reader))
        assert len(before) == 40 and set(before.values()) == {1}
        assert transact(ledger, "one", clear_number=1) == 1
        assert seen(granted.url(granted.reader)) == before
        assert "are merged into the base" in compact(ledger, LINE)
        for until in (1, 2):
            with psycopg.connect(granted.superuser) as conn:
                old = "update ratchet.transactions set committed_at = now() - interval '1 year' where txid <= %s"
                conn.execute(old, [until])
            assert f"up to {until} are older" in "".join(expire(ledger, KEPT))
    with psycopg.connect(granted.url(granted.reader)) as conn:
        assert conn.execute("select count(*) from pg_tables where schemaname = 'ratchet_stage'").fetchone() == (0,)
        assert conn.execute("select max(revision) from ratchet.transactions").fetchone() == (1,)


def test_only_the_owner_drops_a_line_also_the_stages_that_the_pipelines_role_has_made(granted):
    with Ledger(granted.url(granted.pipeline)) as ledger:
        transact(ledger, "one")
        log = Log()
        revised = start(ledger, LINE, log, "one", 1)
        prepare(ledger, LINE, revised)
        settle(ledger, LINE, Run("dag", "one", 1), succeeded=False)
        with pytest.raises(SettingsError, match=f"only the ledger's owner drops a line.*connect as {granted.owner}"):
            drop(ledger, LINE.name, "x", "somebody")
        with pytest.raises(SettingsError, match=f"only the ledger's owner prunes a line.*connect as {granted.owner}"):
            prune(ledger, LINE, "x", "somebody")
    with Ledger(granted.url(granted.owner)) as ledger:
        assert drop(ledger, LINE.name, "x", "somebody").stages == 4
    granted.migrate()
    granted.grant(granted.pipeline, granted.reader)
    with Ledger(granted.url(granted.pipeline)) as ledger:
        assert transact(ledger, "one") == 1


def test_a_checkout_that_migrates_its_own_pipelines_takes_no_right_and_gives_them_to_all(granted):
    """Each of two checkouts knows one of the pipelines."""
    with psycopg.connect(granted.superuser, autocommit=True) as conn:
        # As if only the other checkout had ever named the roles.
        for role in (granted.pipeline, granted.reader):
            for table in ("archive.rows", "public.rows", "public.totals", "public.latest"):
                revoke = sql.SQL("revoke all on {} from {}")
                conn.execute(revoke.format(sql.Identifier(*table.split(".")), sql.Identifier(role)))
    for spec in (ELSEWHERE, LINE):
        migrate(granted.url(granted.owner), [spec], granted.pipeline, granted.reader)
        with Ledger(granted.url(granted.pipeline)) as ledger:
            assert transact(ledger, spec.name) > 0
        assert seen(granted.url(granted.reader))
        with psycopg.connect(granted.url(granted.reader)) as conn:
            conn.execute("select from archive.rows")


NOT_FOR_PIPELINES = [
    "insert into ratchet.drops (pipeline) values ('line')",
    "update ratchet.prunes set last_txid = 1",
    "alter table ratchet.transactions add column more int",
    "drop table ratchet.losses",
    "drop trigger legal_move on ratchet.transactions",
    "alter table ratchet.transactions disable trigger all",
    "set session_replication_role = replica",
    "create or replace function ratchet.check_move() returns trigger language plpgsql as 'begin return new; end'",
    "insert into ratchet.legal_moves values ('COMMITTED', 'OPEN')",
    "update ratchet.events set who = 'nobody'",
    "delete from ratchet.events",
    "truncate ratchet.events",
    "alter table ratchet.events disable trigger append_only",
    "update ratchet.ranges set until_offset = 7",
    "delete from ratchet.ranges",
    "delete from ratchet.transactions",
    "delete from ratchet.pipelines",
    "delete from ratchet.runs",
    "delete from ratchet.slices",
    "update ratchet.losses set reason = ''",
    "update ratchet_delta.dead_letters set error = ''",
    "update ratchet.alembic_version set version_num = '0'",
    "create table ratchet.mine (a int)",
    "create table ratchet_delta.mine (a int)",
    "create table public.mine (a int)",
    "create schema mine",
    "drop view rows",
    'update ratchet_delta."public.rows" set a = 0',
    'truncate ratchet_delta."public.rows"',
    'drop table ratchet_delta."public.rows"',
    'alter table ratchet_delta."public.rows" drop column a',
    "alter table totals owner to current_user",
    'drop table ratchet_delta."public.totals"',
]


def test_the_pipelines_role_can_do_nothing_else(granted):
    assert [said for said in NOT_FOR_PIPELINES if not granted.is_refused(granted.pipeline, said)] == []


NOT_FOR_READERS = [
    'insert into ratchet_delta."public.rows" (a) values (1)',
    'select * from ratchet_delta."public.rows"',
    "select * from ratchet_delta.dead_letters",
    "update totals set n = 0",
    "delete from latest",
    "update ratchet.heads set txid = 0",
    "select from ratchet.transactions for update",
    "insert into ratchet.events (who) values ('me')",
    "delete from ratchet_delta.dead_letters",
    "create table ratchet_stage.mine (a int)",
    'select * from ratchet_delta."public.totals"',
    "create table public.mine (a int)",
]


def test_the_readers_role_can_do_nothing_else(granted):
    assert [said for said in NOT_FOR_READERS if not granted.is_refused(granted.reader, said)] == []


def test_the_readers_role_reads_every_sink_and_the_whole_ledger_but_no_stage(granted):
    with Ledger(granted.url(granted.pipeline)) as ledger:
        transact(ledger, "run")
        prepare(ledger, LINE, start(ledger, LINE, Log(), "run", 1))
    with psycopg.connect(granted.url(granted.reader)) as conn:
        of_ledger = [name for name in metadata.tables if not name.startswith("ratchet_delta.")]
        for name in ("rows", "totals", "latest", "archive.rows", "ratchet.dead_letters", *of_ledger):
            conn.execute(sql.SQL("select * from {}").format(sql.Identifier(*name.split("."))))
        (stage,) = conn.execute("select relation from ratchet.stages where sink = 'rows'").fetchone()
    reading = sql.SQL("select * from {}").format(sql.Identifier("ratchet_stage", stage))
    assert granted.is_refused(granted.reader, reading)


def test_every_exception_names_a_table_of_the_ledger():
    assert set(RIGHTS) - {"alembic_version"} <= {table.name for table in metadata.tables.values()}


def test_what_was_granted_too_widely_before_is_taken_back(granted):
    with psycopg.connect(granted.url(granted.owner)) as conn:
        for role in map(sql.Identifier, (granted.pipeline, granted.reader)):
            conn.execute(sql.SQL("grant all on all tables in schema ratchet to {}").format(role))
            conn.execute(sql.SQL("grant all on schema ratchet, ratchet_stage to {}").format(role))
    granted.grant(granted.pipeline, granted.reader)
    assert granted.is_refused(granted.pipeline, "delete from ratchet.events")
    assert granted.is_refused(granted.pipeline, "create table ratchet.mine (a int)")
    assert granted.is_refused(granted.reader, "create table ratchet_stage.mine (a int)")
    assert granted.is_refused(granted.reader, "update ratchet.heads set txid = 0")


def test_a_second_grant_in_the_midst_of_a_transaction_changes_nothing_for_it(granted):
    with Ledger(granted.url(granted.pipeline)) as ledger:
        begun = start(ledger, LINE, Log(), "run")
        prepare(ledger, LINE, begun)
        granted.grant(granted.pipeline, granted.reader)
        assert isinstance(commit(ledger, LINE, begun.claim), Committed)


def test_stages_from_before_there_was_a_role_are_handed_over(roles):
    roles.migrate()
    with Ledger(roles.url(roles.owner)) as ledger:
        transact(ledger, "run")
        begun = start(ledger, LINE, Log(), "run", 1)
        prepare(ledger, LINE, begun)
    with pytest.raises(SettingsError, match="GRANT that role to the ledger's owner"):
        roles.grant(roles.pipeline)
    roles.do("grant {} to {}", roles.pipeline, roles.owner)
    roles.grant(roles.pipeline)
    with Ledger(roles.url(roles.pipeline)) as ledger:
        assert isinstance(commit(ledger, LINE, begun.claim), Committed)
    with psycopg.connect(roles.url(roles.owner)) as conn:
        assert conn.execute("select count(*) from pg_tables where schemaname = 'ratchet_stage'").fetchone() == (0,)


def test_roles_that_no_grant_would_limit_are_refused(roles, postgres):
    roles.migrate()
    for role in ("nobody knows it", urlsplit(postgres.ledger_url).username, roles.owner):
        with pytest.raises(SettingsError, match="there is no role|is a superuser|is the ledger's owner"):
            roles.grant(role)
    roles.do("grant {} to {}", roles.owner, roles.pipeline)
    with pytest.raises(SettingsError, match="or a member of it"):
        roles.grant(roles.pipeline)
    with pytest.raises(SettingsError, match="use one role for each"):
        roles.grant(roles.reader, roles.reader)


@pytest.mark.parametrize("held", [[], ["select"]])
def test_a_table_that_another_role_owns_and_has_not_granted_is_named(roles, held):
    roles.migrate()
    with psycopg.connect(roles.superuser) as conn:
        conn.execute(sql.SQL("alter table archive.rows owner to {}").format(sql.Identifier(roles.reader)))
        for right in held:
            grants = sql.SQL(f"grant {right} on archive.rows to {{}}")
            conn.execute(grants.format(sql.Identifier(roles.owner)))
    with pytest.raises(SettingsError, match=r"cannot be given .* on archive\.rows, which another role owns"):
        roles.grant(roles.pipeline)


def test_a_table_of_another_line_that_cannot_be_granted_holds_up_nobody(roles):
    roles.migrate()
    with psycopg.connect(roles.superuser) as conn:
        conn.execute(sql.SQL("alter table archive.rows owner to {}").format(sql.Identifier(roles.reader)))
    done = migrate(roles.url(roles.owner), [LINE], roles.pipeline)
    (given,) = done.roles
    assert given.lacks == ("SELECT on archive.rows",) and "could not be given SELECT on archive.rows" in str(given)
    with Ledger(roles.url(roles.pipeline)) as ledger:
        assert transact(ledger, "one") == 1
