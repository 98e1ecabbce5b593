"""Revisions against a real PostgreSQL, held against a fold in plain Python."""

from __future__ import annotations

import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import func, select, text

from ratchet.errors import Fenced, NotRevisable, Refused
from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import stages
from ratchet.ledger.states import State
from ratchet.ledger.transactions import lock_pipeline, read_transaction
from ratchet.ledger.work import Run, SliceToken, SliceWork
from ratchet.operate.actions import void
from ratchet.operate.migrate import migrate
from ratchet.protocol import compact as compaction
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.compact import compact
from ratchet.protocol.leftovers import discard_finished
from ratchet.protocol.revise import revise
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.sinks.lookup import sinks_of
from tests.proof.reference import RICH, Fold, transform

from .staging import (
    MEASURES,
    SPEC,
    Log,
    always_active,
    appended,
    committed,
    contents,
    do,
    do_slice,
    head,
    is_whole,
    planned,
    positions_of,
    prepare,
    start,
    vote_of,
)


@pytest.fixture
def rich(ledger_url):
    migrate(ledger_url, [RICH])
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.mark.invariant("I3", "I7")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.all) for seed in (1, 2))])
def test_whatever_is_revised_in_whatever_order_the_sinks_are_the_fold_of_the_newest_deltas(rich, seed):
    """I3, I7: upsert, minima, deletions, nulls and later transactions over the same keys; with compactions between."""
    dice, log, fold = random.Random(seed), Log(stable={0: 0, 1: 0}), Fold()
    clears: dict[int, int] = {}
    compacted = 0
    for step in range(30):
        done = head(rich)
        what = dice.choice(["live", "live", "revise", "revise", "revise", "compact"]) if done else "live"
        if what == "live":
            log.stable = {p: until + dice.randrange(1, 8) for p, until in log.stable.items()}
            begun = start(rich, RICH, log, f"r{done + 1}")
        elif what == "revise" and done > compacted:
            txid = dice.randrange(compacted + 1, done + 1)
            clears[txid] = clears.get(txid, 0) + 1
            begun = start(rich, RICH, log, f"r{txid}", clears[txid])
            assert (begun.how, begun.claim.txid, begun.claim.revision) == ("revised", txid, clears[txid])
        else:
            keep = RICH.model_copy(update={"keep_deltas": timedelta(0) if dice.random() < 0.3 else timedelta(days=1)})
            if compact(rich, keep):
                compacted = done
            assert contents(rich, RICH) == fold.contents(RICH.sinks)
            continue
        make = partial(transform, step)
        do(rich, RICH, begun, make)
        fold.put(RICH, begun.claim.txid, positions_of(begun), make)
        assert isinstance(commit(rich, RICH, begun.claim), Committed)
        settle(rich, RICH, Run("dag", f"r{begun.claim.txid}", clears.get(begun.claim.txid, 0)), succeeded=True)
        assert contents(rich, RICH) == fold.contents(RICH.sinks), f"after step {step}"
    with rich.begin() as conn:
        assert history.verify(conn, RICH.name) == []
        assert [sink.unlike(conn, head(rich)) for sink in sinks_of(RICH)[1:-1]] == [0, 0, 0]
        assert conn.execute(select(stages)).all() == []


@pytest.mark.invariant("I9")
def test_a_doubled_clear_or_begin_makes_one_revision(ledger, log):
    committed(ledger, log, "a")
    together = threading.Barrier(6)

    def one(_):
        together.wait()
        return begin(ledger, SPEC, Run("dag", "a", 1), log.offsets, always_active)

    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(one, range(6)))
    assert {(b.claim.txid, b.claim.revision, b.claim.epoch, b.claim.number) for b in found} == {(1, 1, 2, 1)}


@pytest.mark.invariant("I7")
def test_the_old_result_stays_until_the_revision_commits_and_nothing_of_it_after(ledger, log):
    first = committed(ledger, log, "a")
    before = contents(ledger, SPEC)
    again = start(ledger, SPEC, log, "a", 1)
    assert again.slices == first.slices
    do(ledger, SPEC, again, lambda p, o: {"rows": [{"a": -o}]})
    assert contents(ledger, SPEC) == before
    assert commit(ledger, SPEC, again.claim).txids == (1,)
    after = contents(ledger, SPEC)
    assert after["rows"] == sorted([(-o, "t", p, o, 0, 1) for p, o, _, _ in planned(first)], key=repr)
    assert (after["totals"], after["latest"]) == ([], [])
    assert commit(ledger, SPEC, again.claim).txids == ()
    assert contents(ledger, SPEC) == after


def test_a_revision_neither_waits_for_a_turn_nor_holds_up_live_transactions(ledger, log):
    committed(ledger, log, "a")
    slow = start(ledger, SPEC, log, "b")
    again = start(ledger, SPEC, log, "a", 1)
    live = start(ledger, SPEC, log, "c")
    prepare(ledger, SPEC, slow)
    assert commit(ledger, SPEC, slow.claim).txids == (2,)
    prepare(ledger, SPEC, live)
    assert commit(ledger, SPEC, live.claim).txids == (3,)
    prepare(ledger, SPEC, again)
    assert commit(ledger, SPEC, again.claim).txids == (1,)
    assert head(ledger) == 3


def test_a_revision_that_fails_leaves_the_old_result_and_never_halts_the_line(ledger, log):
    committed(ledger, log, "a")
    before = contents(ledger, SPEC)
    again = start(ledger, SPEC, log, "a", 1)
    prepare(ledger, SPEC, again)
    with ledger.begin() as conn:
        conn.execute(text("delete from ratchet_stage.line_1_2_0 where _offset = 3"))
    with pytest.raises(Refused, match="revision 1 of transaction 1 is aborted: .*the old result stays"):
        commit(ledger, SPEC, again.claim)
    assert contents(ledger, SPEC) == before
    # It is tried again by the runs that follow, as often as the spec allows, and then given up.
    for number, run in enumerate(("a", "b", "c")):
        left = settle(ledger, SPEC, Run("dag", run, 1 if run == "a" else 0), succeeded=False, reason="it failed")
        assert ("the next run of any kind finishes it" if number < 2 else "is given up: ") in str(left)
        following = start(ledger, SPEC, log, "bcd"[number])
        assert following.how == ("adopted" if number < 2 else "allocated")
        take_try(ledger, SPEC, following.claim, 0)
    assert (following.claim.txid, contents(ledger, SPEC)) == (2, before)
    # What it has staged goes, and what the next transaction has staged stays.
    discard_finished(ledger, "line")
    with ledger.begin() as conn:
        given_up = read_transaction(conn, "line", 1, 1)
        assert (given_up.state, given_up.reason) == (State.ABORTED, "it failed")
        assert conn.execute(select(stages)).all() == []
    # A clear of the run begins another.
    assert start(ledger, SPEC, log, "a", 2).claim.revision == 2


def test_a_newer_revision_supersedes_one_that_another_run_has_adopted(ledger, log):
    committed(ledger, log, "a")
    first = start(ledger, SPEC, log, "a", 1)
    settle(ledger, SPEC, Run("dag", "a", 1), succeeded=False, reason="killed")
    adopted = start(ledger, SPEC, log, "b")
    assert (adopted.how, adopted.claim.txid, adopted.claim.revision) == ("adopted", 1, 1)
    second = start(ledger, SPEC, log, "a", 2)
    assert (second.how, second.claim.revision, second.claim.epoch) == ("revised", 2, first.claim.epoch + 1)
    with pytest.raises(Refused, match="superseded by revision 2"):
        commit(ledger, SPEC, adopted.claim)
    # Nobody goes on with what is superseded.
    settle(ledger, SPEC, Run("dag", "b"), succeeded=False, reason="superseded")
    assert start(ledger, SPEC, log, "c").how == "allocated"
    prepare(ledger, SPEC, second)
    assert commit(ledger, SPEC, second.claim).txids == (1,)


@pytest.mark.invariant("I7")
def test_an_older_revision_never_replaces_a_newer_one(ledger, log):
    committed(ledger, log, "a")
    first = start(ledger, SPEC, log, "a", 1)
    prepare(ledger, SPEC, first)
    with ledger.begin() as conn:
        # As if a newer one had been begun and committed while this one slept.
        conn.execute(
            text("""
            insert into ratchet.transactions (pipeline, txid, revision, epoch, state, claim, dag_id, run_id,
                clear_number, lease_until, code_hash, txn_time)
            select pipeline, txid, 2, 9, 'OPEN', 1, dag_id, run_id, 2, lease_until, code_hash, txn_time
            from ratchet.transactions where revision = 1""")
        )
        conn.execute(text("update ratchet.transactions set state = 'PREPARED' where revision = 2"))
        conn.execute(text("update ratchet.transactions set state = 'COMMITTED' where revision = 2"))
    before = contents(ledger, SPEC)
    with pytest.raises(NotRevisable, match="revision 2 is applied already"):
        commit(ledger, SPEC, first.claim)
    assert contents(ledger, SPEC) == before


def test_beyond_keep_deltas_a_revision_is_refused_with_the_reason(ledger, log):
    committed(ledger, log, "a")
    committed(ledger, log, "b")
    late = start(ledger, SPEC, log, "b", 1)
    prepare(ledger, SPEC, late)
    before, deltas = contents(ledger, SPEC), deltas_of(ledger)
    said = compact(ledger, SPEC.model_copy(update={"keep_deltas": timedelta(0)}))
    fewer = deltas - deltas_of(ledger)
    assert fewer > 0
    assert said == f"line: deltas of transactions 1 to 2 are merged into the base, {fewer} rows fewer"
    with pytest.raises(NotRevisable, match="older than the spec's keep_deltas"):
        start(ledger, SPEC, log, "a", 1)
    with pytest.raises(NotRevisable, match="older than the spec's keep_deltas"):
        commit(ledger, SPEC, late.claim)
    assert contents(ledger, SPEC) == before


def test_compaction_goes_by_steps_and_what_one_had_no_time_for_is_left_to_the_next(ledger, log, monkeypatch):
    begun = [committed(ledger, log, run) for run in "abcd"]
    before, keep = contents(ledger, SPEC), SPEC.model_copy(update={"keep_deltas": timedelta(0)})
    # Twenty records a transaction: two at a time.
    monkeypatch.setattr(compaction, "STEP_RECORDS", 45)
    monkeypatch.setattr(compaction, "STEPS_SECONDS", -1)
    assert re.fullmatch(
        "line: deltas of transactions 1 to 2 .* fewer; 3 to 4 are left to the next time", compact(ledger, keep)
    )
    assert contents(ledger, SPEC) == before
    is_whole(ledger, *begun)
    # One of which more is to be merged than a step takes, it takes alone.
    monkeypatch.setattr(compaction, "STEP_RECORDS", 5)
    assert "transactions 3 to 3 " in compact(ledger, keep)
    monkeypatch.setattr(compaction, "STEPS_SECONDS", 30)
    assert "transactions 4 to 4 " in compact(ledger, keep)
    assert compact(ledger, keep) is None
    assert contents(ledger, SPEC) == before
    is_whole(ledger, *begun)


def deltas_of(ledger: Ledger) -> int:
    """How many rows the tables of deltas have."""
    with ledger.begin() as conn:
        keyed = [sink.tables[1] for sink in sinks_of(SPEC) if sink.is_compacted]
        return sum(conn.execute(select(func.count()).select_from(table)).scalar_one() for table in keyed)


def test_only_some_tasks_of_a_committed_run_are_not_a_revision(ledger, log):
    committed(ledger, log, "a")
    before = contents(ledger, SPEC)
    again = start(ledger, SPEC, log, "a", 1)
    do_slice(ledger, SPEC, again, 1)
    with pytest.raises(NotRevisable, match="clear the whole run"):
        commit(ledger, SPEC, again.claim)
    settle(ledger, SPEC, Run("dag", "a", 1), succeeded=False, reason="failed: commit")
    assert start(ledger, SPEC, log, "b").how == "allocated"
    assert contents(ledger, SPEC) == before


def test_a_cleared_run_whose_transaction_another_has_committed_says_which(ledger, log):
    start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    other = start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, other)
    commit(ledger, SPEC, other.claim)
    skipped = begin(ledger, SPEC, Run("dag", "a", 1), log.offsets, always_active)
    assert skipped.reason == Skip.COMMITTED_BY_ANOTHER and "committed by run b; clear that one" in skipped.message


@pytest.mark.invariant("I6", "I7")
def test_a_late_vote_of_the_original_changes_nothing_in_its_revision(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    token = do_late(ledger, begun)
    commit(ledger, SPEC, begun.claim)
    again = start(ledger, SPEC, log, "a", 1)
    with pytest.raises(Fenced):
        token()
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)
    assert appended(ledger) == planned(begun)


def do_late(ledger: Ledger, begun):
    """A vote of the original's epoch, to be cast when its time has passed."""
    token = SliceToken("line", begun.claim.txid, begun.claim.epoch, 0, 2)
    work = SliceWork(token, begun.slices[0].ranges, {}, datetime.now(UTC), "first", 1, {})
    return lambda: cast_vote(ledger, SPEC, token, vote_of(SPEC, work, {}))


@pytest.mark.invariant("I4")
def test_a_reader_sees_the_old_result_or_the_new_and_never_a_mix(ledger, log):
    """I4 with revisions going on: each version gives all its rows one value."""
    for run in ("a", "b"):
        begun = start(ledger, SPEC, log, run)
        do(ledger, SPEC, begun, lambda p, o: _all_alike(0, p))
        commit(ledger, SPEC, begun.claim)
    stop, torn = threading.Event(), []

    def read() -> int:
        seen = 0
        engine = ledger.engine.execution_options(isolation_level="REPEATABLE READ")
        while not stop.is_set() or not seen:
            with engine.begin() as conn:
                rows = conn.execute(text("select _txid, min(a), max(a) from rows group by _txid")).all()
                least, greatest = conn.execute(text("select min(a_min), max(a_max) from totals")).one()
            if any(a != b for _, a, b in rows) or (least, greatest) != (
                min(r[1] for r in rows),
                max(r[2] for r in rows),
            ):
                torn.append((rows, least, greatest))
            seen += 1
        return seen

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        for version in range(1, 13):
            run = "ab"[version % 2]
            begun = start(ledger, SPEC, log, run, version)
            do(ledger, SPEC, begun, lambda p, o, v=version: _all_alike(v, p))
            commit(ledger, SPEC, begun.claim)
        stop.set()
        assert reader.result() > 0
    assert torn == []


def _all_alike(version: int, partition: int) -> dict[str, list[dict]]:
    return {
        "rows": [{"a": version}],
        "totals": [{"k": str(partition), **dict.fromkeys(MEASURES, version), "n": 1}],
        "latest": [{"k": str(partition), "a": version, "_deleted": False}],
    }


def test_a_revision_of_a_voided_transaction_makes_it_committed(ledger, log):
    voided = start(ledger, SPEC, log, "a")
    void(ledger, SPEC, 1, "broken records", "somebody")
    assert head(ledger) == 1 and appended(ledger) == []
    with ledger.begin() as conn:
        claim = revise(conn, SPEC, lock_pipeline(conn, SPEC.name), 1, Run("dag", "replay"))
    begun = start(ledger, SPEC, log, "replay")
    assert begun.claim == claim
    prepare(ledger, SPEC, begun)
    assert commit(ledger, SPEC, claim).txids == (1,)
    assert appended(ledger) == planned(begun)
    assert commit(ledger, SPEC, voided.claim).message.startswith("transaction 1: was committed at ")
    with ledger.begin() as conn:
        assert read_transaction(conn, SPEC.name, 1).state == State.COMMITTED
        assert history.verify(conn, SPEC.name) == []
