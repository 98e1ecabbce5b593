"""A backup comes in place of the ledger, whoever has a connection to it, and whatever was migrated since."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy.exc import ProgrammingError

from ratchet.dev.stack import Stack
from ratchet.errors import Fenced, NotMigrated
from ratchet.ledger.connection import Ledger
from ratchet.ledger.fence import hold_try
from ratchet.operate.migrate import migrate
from ratchet.operate.verify import verify
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote
from tests.ledger.staging import SPEC, Log, a_try, appended, committed, planned, start, vote_of, write_all
from tests.ledger.test_spec_changes import WIDER, wider_rows

from .restore import LedgerRestored


@pytest.mark.all
def test_what_was_committed_since_is_gone_told_and_committed_again(scratch):
    with Stack(scratch / "restored", {"postgres"}) as stack:
        migrate(stack.ledger_url, [SPEC])
        told = []
        restore = LedgerRestored(stack, told.append)
        with Ledger(stack.ledger_url) as ledger:
            first = committed(ledger, Log(stable={0: 20, 1: 0}), "a")
            # Somebody is in the midst of a database transaction each time.
            for _ in range(2):
                with psycopg.connect(stack.ledger_url) as other:
                    other.execute("select from ratchet.heads")
                    restore.strike()
                    with pytest.raises(psycopg.OperationalError):
                        other.execute("select from ratchet.heads")
                lost = committed(ledger, Log(stable={0: 30, 1: 5}), "b")
                restore.heal()
                assert told.pop() == {("line", 0): 30, ("line", 1): 5} and not told
                assert appended(ledger) == planned(first)
            again = committed(ledger, Log(stable={0: 30, 1: 5}), "c")
            assert again.claim.txid == lost.claim.txid == 2
            assert appended(ledger) == planned(first, again)
            # With no backup there is nothing to go back to.
            restore.heal()
            assert appended(ledger) == planned(first, again)


@pytest.mark.all
def test_a_backup_from_before_a_migration_is_migrated_again_and_a_late_job_changes_nothing(scratch):
    with Stack(scratch / "migrated", {"postgres"}) as stack, Ledger(stack.ledger_url) as ledger:
        migrate(stack.ledger_url, [SPEC])
        restore = LedgerRestored(stack, lambda lost: None)
        first = committed(ledger, Log(stable={0: 10, 1: 0}), "a")
        restore.strike()
        migrate(stack.ledger_url, [WIDER])
        later = Log(stable={0: 15, 1: 0})
        late = a_try(ledger, start(ledger, WIDER, later, "b"), spec=WIDER)
        restore.heal()
        with pytest.raises(NotMigrated, match="ratchet migrate"):
            start(ledger, WIDER, later, "c")
        with pytest.raises(ProgrammingError, match="UndefinedColumn"):
            write_all(ledger, WIDER, late, wider_rows(late))
        migrate(stack.ledger_url, [WIDER])
        # The same txid is another run's, with other records.
        begun = start(ledger, WIDER, Log(stable={0: 12, 1: 3}), "c")
        with pytest.raises(Fenced), ledger.begin() as conn:
            hold_try(conn, late.token)
        # Rows of a writer that has not looked are left, and no vote can name them.
        left = write_all(ledger, WIDER, late, wider_rows(late))
        with pytest.raises(Fenced):
            cast_vote(ledger, WIDER, late.token, vote_of(WIDER, late, left))
        for part in begun.slices:
            work = a_try(ledger, begun, part.number, WIDER)
            sinks = write_all(ledger, WIDER, work, wider_rows(work))
            cast_vote(ledger, WIDER, work.token, vote_of(WIDER, work, sinks))
        assert isinstance(commit(ledger, WIDER, begun.claim), Committed)
        assert appended(ledger) == planned(first, begun)
        assert [fault for check in verify(ledger, WIDER) for fault in check.faults] == []
