"""A pooler that is lost amid a commit, or that loses PostgreSQL: unknown is said of a COMMIT, and resolved by a repeat.

Needs Debian's pgbouncer.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from ratchet.errors import LedgerUnreachable, OutcomeUnknown
from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import Begun
from ratchet.protocol.commit import Committed, commit
from tests.until import until

from .pooler import Pooler
from .proxy import Loss, Plan, Proxy
from .staging import SPEC, Log, head, is_whole, moves_of, prepare, start

pytestmark = pytest.mark.all


@pytest.fixture
def behind(ledger_url: str, scratch: Path) -> Iterator[tuple[Proxy, Pooler]]:
    """A proxy between the pooler and PostgreSQL, and the pooler."""
    migrate(ledger_url, [SPEC])
    with Proxy(ledger_url) as proxy, Pooler(scratch / uuid4().hex, proxy.url, sessions=2) as pooler:
        yield proxy, pooler


LOSSES = (Loss.BEFORE, Loss.UNANSWERED, Loss.HELD)
"""How the pooler, which lives on, loses PostgreSQL."""


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("how", [Loss.SILENT_BEFORE, Loss.SILENT_AFTER, *LOSSES])
def test_whatever_a_pooler_loses_of_a_commit_its_outcome_is_unknown_and_the_same_call_resolves_it(behind, log, how):
    """Killed before PostgreSQL has the COMMIT or before its answer; or PostgreSQL is lost behind it."""
    proxy, pooler = behind
    log.stable = {0: 1000, 1: 1000}
    with Ledger(pooler.url) as ledger:
        done = [prepared(ledger, log, "r0")]
        plan = proxy.lose(Loss.BEFORE, lambda *_: False)
        commit(ledger, SPEC, done[0].claim)
        assert plan.commits
        for number in range(1, plan.commits + 1):
            begun = prepared(ledger, log, f"r{number}")
            error = lost(ledger, begun, proxy.lose_commit(number, how), None if how in LOSSES else pooler)
            assert isinstance(error, OutcomeUnknown), error
            assert isinstance(commit(ledger, SPEC, begun.claim), Committed)
            done.append(begun)
        is_whole(ledger, *done)
        assert [txid for txid, _, move in moves_of(ledger) if move == "COMMITTED"] == [b.claim.txid for b in done]


def test_a_pooler_that_is_killed_amid_a_commit_has_changed_nothing(behind, log):
    proxy, pooler = behind
    with Ledger(pooler.url) as ledger:
        begun = prepared(ledger, log, "a")
        plan = proxy.lose(Loss.SILENT_AFTER, lambda _, said: b"UPDATE ratchet.heads" in said)
        error = lost(ledger, begun, plan, pooler)
        assert type(error) is LedgerUnreachable and "this step has changed nothing" in str(error)
        assert head(ledger) == 0
        assert isinstance(commit(ledger, SPEC, begun.claim), Committed)
        is_whole(ledger, begun)


def prepared(ledger: Ledger, log: Log, run: str) -> Begun:
    begun = start(ledger, SPEC, log, run)
    prepare(ledger, SPEC, begun)
    return begun


def lost(ledger: Ledger, begun: Begun, plan: Plan, killed: Pooler | None) -> BaseException | None:
    """Commit, and lose it by plan; the pooler is killed there, and started again, if it is given. What the caller has
    got.
    """
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(commit, ledger, SPEC, begun.claim)
        until("it has come so far", lambda: plan.reached.is_set() or calling.done())
        if killed:
            killed.kill()
        error = calling.exception(60)
        assert plan.reached.is_set()
        plan.go_on.set()
        if killed:
            killed.start()
        return error
