"""A release in a ledger that was restored, while a job of before still runs with the same numbers."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from ratchet.errors import Fenced
from ratchet.ledger.connection import Ledger
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote

from .releasing import SPEC, good, released, second, three
from .staging import a_try, made_vote


@pytest.fixture
def backup(rich_ledger):
    """Copies the ledger's database as it is, and gives the copy as a ledger."""
    url = make_url(rich_ledger.url)
    opened: list[tuple[str, Ledger]] = []
    server = url.set(database="postgres").render_as_string(hide_password=False)

    def copy() -> Ledger:
        name = f"copy_{uuid4().hex[:8]}"
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [url.database])
            of = sql.Identifier(name), sql.Identifier(str(url.database))
            conn.execute(sql.SQL("create database {} template {}").format(*of))
        ledger = Ledger(url.set(database=name).render_as_string(hide_password=False))
        opened.append((name, ledger))
        return ledger

    yield copy
    for name, ledger in opened:
        ledger.close()
        with psycopg.connect(server, autocommit=True) as conn:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def test_a_job_of_before_is_no_part_of_a_release_that_has_its_numbers_now(rich_ledger, log, backup):
    line = three(rich_ledger, log)
    line.ask(1, 2)
    restored = backup()
    before = line.begin()
    assert isinstance(before, Begun) and before.how == "replayed"
    late = [a_try(line.ledger, before, part.number, SPEC) for part in before.slices]
    # The backup does not know that the release was begun: the same run begins it once more.
    line.ledger = restored
    line._runs -= 1
    now = line.begin()
    assert isinstance(now, Begun) and now.claim == before.claim
    works = [a_try(restored, now, part.number, SPEC) for part in now.slices]
    assert [w.token.numbers[:-1] for w in works] == [w.token.numbers[:-1] for w in late]
    for work in late:
        with pytest.raises(Fenced) as told:
            cast_vote(restored, SPEC, work.token, made_vote(restored, SPEC, work, lambda p, o: good("late", p, o)))
        assert "the ledger was restored to an earlier state" in str(told.value)
    for work in works:
        cast_vote(restored, SPEC, work.token, made_vote(restored, SPEC, work, second))
    commit(restored, SPEC, now.claim)
    settle(restored, SPEC, line.run, succeeded=True)
    line.shows(1, released)
    line.is_whole()
    line.one(second)
    line.shows(2, released)
    line.is_whole()
