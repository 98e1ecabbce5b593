"""What PostgreSQL refuses to commit, though the connection is fine: it is recorded, counted, and halts the line."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from ratchet.errors import CommitFailed, Halted, Refused
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.operate.actions import retry
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.failures import last_error

from .staging import SPEC, always_active, contents, head, is_whole, moves_of, prepare, start, state

LIMIT, DISK_FULL = "53400", "53100"
"""`temp_file_limit` and the like; no space left."""


def refuse(ledger: Ledger, sqlstate: str | None) -> None:
    """Have PostgreSQL refuse rows of a table with this SQLSTATE, or none any more."""
    body = f"begin raise exception 'a limit is met' using errcode = '{sqlstate}'; end"
    with ledger.begin() as conn:
        conn.execute(text("drop trigger if exists refuses on totals"))
        if sqlstate:
            conn.execute(text(f"create or replace function refuses() returns trigger as $$ {body} $$ language plpgsql"))
            conn.execute(
                text("create trigger refuses before insert or update on totals for each row execute function refuses()")
            )


def refused(ledger: Ledger, log, run: str, **how) -> str:
    """A run whose commit PostgreSQL refuses, and is settled; what the commit said."""
    begun = start(ledger, SPEC, log, run, **how)
    if state(ledger, 1) == "OPEN":
        prepare(ledger, SPEC, begun)
    with pytest.raises(CommitFailed) as raised:
        commit(ledger, SPEC, begun.claim)
    with ledger.begin() as conn:
        why = last_error(conn, read_transaction(conn, SPEC.name, 1))
    settle(ledger, SPEC, Run("dag", run, how.get("clear_number", 0)), succeeded=False, reason=f"failed: commit: {why}")
    return str(raised.value)


@pytest.mark.parametrize("sqlstate", [LIMIT, "57014", "40P01"])
def test_a_commit_that_postgresql_refuses_again_and_again_halts_the_line_with_its_words(ledger, log, sqlstate):
    refuse(ledger, sqlstate)
    said = refused(ledger, log, "a")
    assert said.startswith("line: transaction 1: PostgreSQL cannot commit it: a limit is met; nothing was changed; ")
    assert said.endswith("the next run tries it again")
    assert state(ledger, 1) == "PREPARED"
    for run in "bc":
        refused(ledger, log, run)
    assert moves_of(ledger).count((1, 0, "commit failed")) == SPEC.max_failures == 3
    with pytest.raises(Halted, match="halted at transaction 1 .* after 3 failures: failed: commit: a limit is met"):
        start(ledger, SPEC, log, "d")
    refuse(ledger, None)
    retry(ledger, SPEC, None, "somebody")
    again = start(ledger, SPEC, log, "e")
    assert (again.how, again.claim.txid, again.claim.epoch) == ("adopted", 1, 1)
    commit(ledger, SPEC, again.claim)
    is_whole(ledger, again)


def test_what_the_server_lacks_for_a_while_halts_nothing(ledger, log):
    refuse(ledger, DISK_FULL)
    for run in "abcd":
        refused(ledger, log, run)
    refuse(ledger, None)
    begun = start(ledger, SPEC, log, "e")
    commit(ledger, SPEC, begun.claim)
    with ledger.begin() as conn:
        assert read_transaction(conn, SPEC.name, 1).failures == 0
    is_whole(ledger, begun)


def test_a_clear_of_the_run_tries_a_halted_commit_again(ledger, log):
    refuse(ledger, LIMIT)
    for run in "abc":
        refused(ledger, log, run)
    begun = begin(ledger, SPEC, Run("dag", "c", 1), log.offsets, always_active)
    refuse(ledger, None)
    commit(ledger, SPEC, begun.claim)
    assert head(ledger) == 1


def test_a_revision_that_postgresql_refuses_is_given_up_and_the_old_result_stays(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    before = contents(ledger, SPEC)
    refuse(ledger, LIMIT)
    for number in (1, 2, 3):
        again = start(ledger, SPEC, log, "a", clear_number=1) if number == 1 else start(ledger, SPEC, log, f"x{number}")
        if number == 1:
            prepare(ledger, SPEC, again)
        assert again.claim.revision == 1
        with pytest.raises(CommitFailed):
            commit(ledger, SPEC, again.claim)
        run = Run("dag", "a", 1) if number == 1 else Run("dag", f"x{number}")
        settle(ledger, SPEC, run, succeeded=False, reason="failed: commit: a limit is met")
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, 1, 1)
    why = "failed: commit: a limit is met (RAT-505; ratchet explain RAT-505)"
    assert (row.state, row.failures, row.reason) == ("ABORTED", 3, why)
    with pytest.raises(Refused):
        commit(ledger, SPEC, again.claim)
    assert contents(ledger, SPEC) == before


def test_limits_of_the_role_are_not_for_the_ledgers_own_transactions(ledger, log):
    with ledger.begin() as conn:
        database = conn.execute(text("select current_database()")).scalar_one()
        for limit in ("statement_timeout", "lock_timeout", "transaction_timeout"):
            conn.execute(text(f'alter database "{database}" set {limit} = 200'))
    with Ledger(ledger.url) as limited:
        with limited.begin() as conn:
            conn.execute(text("select pg_sleep(0.4)"))
            assert conn.execute(text("show lock_timeout")).scalar_one() == "0"
            assert conn.execute(text("show idle_in_transaction_session_timeout")).scalar_one() == "1min"
        begun = start(limited, SPEC, log, "a")
        prepare(limited, SPEC, begun)
        commit(limited, SPEC, begun.claim)
