"""A paused line beside what else is done to it: voids, halts, revisions, losses, prunes, late work."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from ratchet import Json, Topic
from ratchet.errors import Halted
from ratchet.ledger.schema import pipelines, transactions
from ratchet.ledger.transactions import lock_pipeline, read_line
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort, accept_loss, retry, void
from ratchet.operate.drop import drop
from ratchet.operate.outcome import lines_of
from ratchet.operate.prune import prune
from ratchet.operate.replay import ask
from ratchet.operate.snapshot.status import status
from ratchet.operate.snapshot.words import halt_of, pause_of
from ratchet.operate.snapshot.words import lines_of as said_of
from ratchet.operate.upkeep import upkeep
from ratchet.operate.verify import verify
from ratchet.protocol.another import AbandonedWork, AskedRevision
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Waits as WaitsForTurn
from ratchet.protocol.commit import commit, move_on

from .moving import KEYS, is_exact, say
from .moving import SPEC as MOVING
from .moving import drain as drain_moving
from .pausing import go_on, pause, skipped, wanted
from .staging import (
    SPEC,
    Log,
    always_active,
    appended,
    committed,
    do,
    expire,
    fail,
    head,
    planned,
    prepare,
    start,
    state,
)


def test_what_is_voided_beyond_the_pause_is_passed_over_when_the_line_goes_on(ledger, log, two):
    third = start(ledger, SPEC, log, "c")
    prepare(ledger, SPEC, third)
    pause(ledger, 1)
    commit(ledger, SPEC, two[0].claim)
    done = void(ledger, SPEC, 2, "bad file", "me")
    assert lines_of(done)[-1] == "the head is 1, where the line is paused" and state(ledger, 2) == "VOIDED"
    # Neither maintenance nor a late commit moves the head.
    assert not move_on(ledger, SPEC).committed and not [*upkeep(ledger, SPEC, always_active)]
    assert isinstance(commit(ledger, SPEC, third.claim), WaitsForTurn) and head(ledger) == 1
    tried, done = go_on(ledger, dry_run=True), go_on(ledger)
    assert lines_of(tried)[0] == "line would go on" and lines_of(done)[0] == "line goes on"
    assert lines_of(tried)[2:-1] == lines_of(done)[2:] and done.committed == (3,)
    assert lines_of(done)[-1] == "the head is 3; committed on the way: 3"
    assert appended(ledger) == planned(two[0], third)


def test_a_void_up_to_the_pause_moves_the_head_to_it_and_no_further(ledger, log, two):
    third = start(ledger, SPEC, log, "c")
    prepare(ledger, SPEC, third)
    pause(ledger, 2)
    assert void(ledger, SPEC, 1, "bad file", "me").committed == (2,)
    assert (head(ledger), state(ledger, 3)) == (2, "PREPARED")


def test_work_up_to_the_pause_is_adopted_and_beyond_it_only_its_own_run_goes_on(ledger, log):
    log.stable = {0: 500, 1: 500}
    for run in "abc":
        start(ledger, SPEC, log, run)
    pause(ledger, 1)
    for run in "abc":
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="killed")
    assert isinstance(wanted(ledger, log), AbandonedWork)
    adopted = start(ledger, SPEC, log, "d")
    assert (adopted.how, adopted.claim.txid) == ("adopted", 1)
    prepare(ledger, SPEC, adopted)
    assert commit(ledger, SPEC, adopted.claim).txids == (1,)
    # Nobody is started for the others, and nobody takes them.
    assert wanted(ledger, log) is None and skipped(ledger, log, "e").reason is Skip.PAUSED
    said = "\n".join(said_of(status(ledger, "line")))
    assert "its run b has ended; after `ratchet resume line` the next run of any kind adopts it" in said
    # A person clears one of them: it gets as far as its commit.
    cleared = start(ledger, SPEC, log, "b", 1)
    assert (cleared.how, cleared.claim.txid) == ("resumed", 2) and "line is paused behind" in cleared.message
    prepare(ledger, SPEC, cleared)
    assert isinstance(commit(ledger, SPEC, cleared.claim), WaitsForTurn)
    aborted = abort(ledger, SPEC, 2, "again", "me")
    assert "is ABORTED; after `ratchet resume line` the next run of any kind tries it" in lines_of(aborted)[0]
    settle(ledger, SPEC, Run("dag", "b", 1), succeeded=False, reason="aborted")
    go_on(ledger)
    for txid, run in ((2, "f"), (3, "g")):
        begun = start(ledger, SPEC, log, run)
        assert (begun.how, begun.claim.txid) == ("adopted", txid)


def test_a_silent_claim_beyond_the_pause_is_ended_by_maintenance_and_adopted_later(ledger, log):
    committed(ledger, log, "a")
    start(ledger, SPEC, log, "b")
    pause(ledger, 1)
    expire(ledger)
    assert [*upkeep(ledger, SPEC, lambda *_: False)] == ["transaction 2: run b was lost, its claim is ended"]
    assert wanted(ledger, log, is_active=lambda *_: False) is None
    go_on(ledger)
    assert isinstance(wanted(ledger, log), AbandonedWork)


def test_a_halt_up_to_the_pause_or_beyond_it_is_said_beside_it(ledger, log):
    committed(ledger, log, "a")
    pause(ledger, 1)
    go_on(ledger)
    for run in "bcd":
        fail(ledger, log, run)
    for behind in (1, 2):
        pause(ledger, behind)
        with pytest.raises(Halted, match="halted at transaction 2"):
            begin(ledger, SPEC, Run("dag", f"e{behind}"), log.offsets, always_active)
        found = status(ledger, "line")
        assert halt_of(found) and pause_of(found)
    pause(ledger, 1)
    assert "may be tried again; after `ratchet resume line` the next run" in lines_of(retry(ledger, SPEC, 2, "me"))[0]
    assert wanted(ledger, log) is None and skipped(ledger, log, "f").reason is Skip.PAUSED


def test_revisions_go_on_while_a_line_is_paused(ledger, log):
    log.stable = {0: 500, 1: 500}
    for run in "ab":
        committed(ledger, log, run)
    pause(ledger)
    cleared = start(ledger, SPEC, log, "a", 1)
    assert cleared.how == "revised" and "it waits for no turn" in cleared.message
    prepare(ledger, SPEC, cleared)
    commit(ledger, SPEC, cleared.claim)
    settle(ledger, SPEC, Run("dag", "a", 1), succeeded=True)
    ask(ledger, SPEC, 2, 2, "again", "me")
    assert isinstance(wanted(ledger, log), AskedRevision)
    replayed = start(ledger, SPEC, log, "c")
    assert replayed.how == "replayed"
    settle(ledger, SPEC, Run("dag", "c"), succeeded=False, reason="killed")
    adopted = start(ledger, SPEC, log, "d")
    assert adopted.how == "adopted"
    prepare(ledger, SPEC, adopted)
    commit(ledger, SPEC, adopted.claim)
    with ledger.begin() as conn:
        applied = select(transactions.c.txid).where(transactions.c.revision == 1, transactions.c.state == "COMMITTED")
        assert sorted(conn.execute(applied).scalars()) == [1, 2]
    assert head(ledger) == 2 and [fault for check in verify(ledger, SPEC) for fault in check.faults] == []


def test_a_loss_that_is_accepted_while_a_line_is_paused_is_passed_over_when_it_goes_on(ledger, log):
    first = committed(ledger, log, "a")
    pause(ledger)
    log.beginning, log.stable = {0: 15, 1: 10}, {0: 30, 1: 20}
    done = accept_loss(ledger, SPEC, log.offsets, "nobody needs them", "me")
    assert lines_of(done)[-1] == "the head is 1, where the line is paused"
    assert (head(ledger), state(ledger, 2), skipped(ledger, log, "b").reason) == (1, "VOIDED", Skip.PAUSED)
    assert go_on(ledger).head == 2
    third = committed(ledger, log, "c")
    assert third.claim.txid == 3 and appended(ledger) == planned(first, third)


def test_keys_go_to_other_partitions_while_a_line_is_paused(moving, topic):
    topic.produce(*KEYS)
    start(moving, MOVING, topic, "a")
    pause(moving, spec=MOVING)
    topic.add_partitions(4)
    topic.produce(*KEYS[4:], "k20")
    say(moving, topic)
    assert skipped(moving, topic, "b", MOVING).reason is Skip.PAUSED
    go_on(moving, MOVING)
    settle(moving, MOVING, Run("dag", "a"), succeeded=False)
    drain_moving(moving, topic, "c")
    is_exact(moving, topic)


def test_a_paused_line_is_pruned_and_dropped_like_any_other(ledger, log, monkeypatch):
    monkeypatch.setattr("ratchet.operate.prune.KEPT", 1)
    for run in "abcd":
        committed(ledger, log, run)
    pause(ledger)
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.pipelines set compacted = 3, merged = 3"))
    prune(ledger, SPEC, "old", "me")
    with ledger.begin() as conn:
        line = read_line(conn, "line")
    assert line.pruned and line.pause.txid == 4
    go_on(ledger)
    committed(ledger, log, "e")
    pause(ledger)
    drop(ledger, "line", "gone", "me")
    assert status(ledger, "line").pause is None


def test_the_database_moves_no_head_beyond_a_pause_and_takes_no_half_of_one(ledger, log, two):
    pause(ledger, 1)
    commit(ledger, SPEC, two[0].claim)
    with pytest.raises(IntegrityError, match="line line is paused; its head cannot move to 2"), ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set state = 'VOIDED' where txid = 2"))
        conn.execute(text("update ratchet.heads set txid = 2"))
    with pytest.raises(IntegrityError, match="a_pause_is_whole"), ledger.begin() as conn:
        conn.execute(pipelines.update().values(paused_why=None))


def test_runs_that_begin_and_commit_while_a_line_is_paused_stop_where_it_says(ledger, log):
    """Whatever comes first under the lock."""
    log.stable = {0: 900, 1: 900}
    spec = SPEC.model_copy(update={"max_in_flight": 32})
    committed(ledger, log, "first")
    together = threading.Barrier(12)

    def one(number: int):
        together.wait()
        if number == 6:
            return pause(ledger, spec=spec)
        begun = begin(ledger, spec, Run("dag", f"r{number}"), log.offsets, always_active)
        if isinstance(begun, Skipped):
            return begun
        prepare(ledger, spec, begun)
        return commit(ledger, spec, begun.claim)

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(one, range(12)))
    behind = found.pop(6).pause.txid
    with ledger.begin() as conn:
        line = lock_pipeline(conn, "line")
        assert line.last_txid == behind == line.pause.txid
    assert sum(isinstance(each, Skipped) and each.reason is Skip.PAUSED for each in found) == 12 - behind
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []


def test_another_line_is_not_paused(ledger, log):
    from ratchet import Append, Pipeline
    from ratchet.operate.migrate import migrate

    other = Pipeline(name="other", source=Topic("u", value=Json("a bigint")), sinks=[Append("o", columns="a bigint")])
    migrate(ledger.url, [other])
    committed(ledger, log, "a")
    pause(ledger)
    begun = start(ledger, other, Log(topic="u"), "b")
    do(ledger, other, begun, lambda p, o: {"o": [{"a": o}]})
    assert commit(ledger, other, begun.claim).txids == (1,)
