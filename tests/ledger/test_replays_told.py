"""What people are told of revisions that they have asked for: which were given up, and by which code they were done."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ratchet import MaxDeadLetters
from ratchet.ledger import history
from ratchet.ledger.work import Run
from ratchet.operate import replay
from ratchet.operate.snapshot.status import status
from ratchet.operate.snapshot.words import notices_of
from ratchet.protocol.another import wants_another_run
from ratchet.protocol.begun import Skip
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact

from .staging import always_active, prepare, start
from .test_replay import ONE, ask, attempt, finish, many, waiting


def test_what_is_merged_while_it_waits_is_given_up_and_the_next_is_taken(ledger, log):
    many(ledger, log, 2)
    ask(ledger, ONE, 1, 2)
    compact(ledger, ONE.model_copy(update={"keep_deltas": timedelta(0)}))
    log.stable = {p: until + 2 for p, until in log.stable.items()}
    finish(ledger, start(ledger, ONE, log, "r3"), "r3")
    ask(ledger, ONE, 3, 3)
    begun = start(ledger, ONE, log, "next_1", drains=True)
    assert (begun.claim.txid, waiting(ledger)) == (3, [])
    given_up = "the revision of transaction {} that amy has asked for is given up: line: transaction {} is older than"
    for txid in (1, 2):
        assert given_up.format(txid, txid) in begun.message
    assert [line.partition(" the spec's")[0] for line in notices_of(status(ledger, "line"))] == [
        given_up.format(txid, txid) for txid in (1, 2)
    ]
    assert wants_another_run(ledger, ONE, log.offsets, always_active) is None
    replay.take_back(ledger, ONE, 1, 1, "seen", "amy")
    (left,) = notices_of(status(ledger, "line"))
    assert left.endswith("; `ratchet replay line --from 2 --cancel --reason …` forgets it")
    with ledger.begin() as conn:
        said = [e.detail["why"] for e in history.read(conn, "line", 2) if e.move == "replay"]
        assert history.verify(conn, "line") == []
    assert said[0] == "the transform was corrected"
    assert said[1].startswith("given up: line: transaction 2 is older than the spec's keep_deltas")


def test_what_is_given_up_is_said_by_a_run_that_finds_nothing_else(ledger, log):
    many(ledger, log, 1)
    ask(ledger, ONE, 1, 1)
    compact(ledger, ONE.model_copy(update={"keep_deltas": timedelta(0)}))
    said = [attempt(ledger, ONE, log, run) for run in ("a", "b")]
    assert [s.reason for s in said] == [Skip.NO_RECORDS, Skip.NO_RECORDS]
    assert ["the revision of transaction 1 that amy has asked for is given up" in s.message for s in said] == [
        True,
        False,
    ]


NEWER = ONE.model_copy(update={"gates": [MaxDeadLetters(0.5)]})


@pytest.mark.parametrize("how", ["a run", "a clear", "a run that another one adopts"])
def test_which_code_has_done_a_replay_that_was_asked_for_with_another_is_said(ledger, log, how):
    """Amid a deploy a worker may have the old code still; which of two is the newer nobody can tell."""
    many(ledger, log, 3)
    asked = replay.ask(ledger, NEWER, 1, 2, "the transform was corrected", "amy")
    assert f"with code {NEWER.code_hash}" in replay.lines_of(asked)[0]
    run, clear = ("r1", 1) if how == "a clear" else ("next_1", 0)
    begun = start(ledger, ONE, log, run, clear)
    if how == "a run":
        assert f"asked for with code {NEWER.code_hash} and is done with {ONE.code_hash}" in begun.message
    elif "adopts" in how:
        settle(ledger, ONE, Run("dag", run), succeeded=False, reason="lost")
        begun = start(ledger, NEWER, log, "next_2")
        prepare(ledger, NEWER, begun)
        commit(ledger, NEWER, begun.claim)
        assert list(notices_of(status(ledger, "line"))) == []
        return
    finish(ledger, begun, run, clear)
    with ledger.begin() as conn:
        (opened,) = [e for e in history.read(conn, "line", 1) if e.revision and e.move == "OPEN"]
        assert (opened.detail["code"], opened.detail["asked with"]) == (ONE.code_hash, NEWER.code_hash)
    (said,) = notices_of(status(ledger, "line"))
    codes = f"was asked for with code {NEWER.code_hash} and done with code {ONE.code_hash}"
    assert said == f"the revision of transaction 1 {codes}; where that was the older one, ask for it again"
    # The other waits still, now with the code of whoever has asked last.
    again = replay.ask(ledger, NEWER, 1, 2, "it was the old one", "amy")
    assert (again.txids, again.before) == ((1,), (2,))
    assert ask(ledger, ONE, 2, 2).txids == (2,)
    for number in range(2):
        begun = start(ledger, NEWER, log, f"then_{number}")
        prepare(ledger, NEWER, begun)
        commit(ledger, NEWER, begun.claim)
        settle(ledger, NEWER, Run("dag", f"then_{number}"), succeeded=True)
    (said,) = notices_of(status(ledger, "line"))
    assert said.startswith("the revision of transaction 2 was asked for with code " + ONE.code_hash)
