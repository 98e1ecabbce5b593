"""A backup comes in place of the ledger, whoever has a connection to it."""

from __future__ import annotations

import psycopg
import pytest

from ratchet.dev.stack import Stack
from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate
from tests.ledger.staging import SPEC, Log, appended, committed, planned

from .restore import LedgerRestored


@pytest.mark.all
def test_what_was_committed_since_is_gone_told_and_committed_again(scratch):
    with Stack(scratch, {"postgres"}) as stack:
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
