"""What commits make of votes, in a real PostgreSQL, without Kafka and Spark: rows, folds, and what a reader sees."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text

from ratchet import Upsert
from ratchet.ledger.schema import heads
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote, take_try

from .staging import MEASURES, SPEC, appended, planned, positions, prepare, rows_of, start, vote_of, write, write_all


@pytest.mark.invariant("I3", "I5")
def test_every_row_carries_its_txid_and_the_state_is_the_fold_in_order(ledger, log):
    begun = [start(ledger, SPEC, log, f"r{n}") for n in range(3)]
    for b in begun:
        prepare(ledger, SPEC, b)
    commit(ledger, SPEC, begun[0].claim)
    with ledger.begin() as conn:
        latest = conn.execute(text("select k, a, _txid from latest order by k")).all()
        totals = conn.execute(text("select k, a_sum, a_min, a_max, n from totals order by k")).all()
    assert latest == [(f"{p}-{m}", 25 + m, 3) for p in (0, 1) for m in range(5)]
    assert totals == [(str(p), sum(range(30)), 0, 29, 30) for p in (0, 1)]


def test_a_null_measure_does_not_count_in_a_fold(ledger, log):
    """Delta over state: null and number in either order, and nulls alone."""
    log.beginning, log.stable = {0: 0}, {0: 40}
    given = {1: {"x": 5, "y": None, "z": None}, 2: {"x": None, "y": -7, "z": None}}
    for run in ("a", "b"):
        begun = start(ledger, SPEC, log, run)
        for part in begun.slices:
            work = take_try(ledger, SPEC, begun.claim, part.number)
            rows = rows_of(SPEC, work)
            rows["totals"] = [
                {"k": k, **dict.fromkeys(MEASURES, value), "n": 1} for k, value in given[begun.claim.txid].items()
            ]
            sinks = write_all(ledger, SPEC, work, rows)
            cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
        commit(ledger, SPEC, begun.claim)
    with ledger.begin() as conn:
        totals = conn.execute(text("select k, a_sum, a_min, a_max, n from totals order by k")).all()
    # Each transaction has two slices, so every value is there twice.
    assert totals == [("x", 10, 5, 5, 4), ("y", -14, -7, -7, 4), ("z", None, None, None, 4)]


def test_an_upsert_with_an_order_keeps_the_greatest_across_transactions(ledger, ledger_url, log):
    spec = SPEC.model_copy(
        update={"name": "ordered", "sinks": [Upsert("newest", key="k string", columns="at bigint", order="at")]}
    )
    migrate(ledger_url, [spec])
    log.beginning, log.stable = {0: 0}, {0: 40}
    given = {1: {"up": 1, "down": 9, "same": 4, "none": None}, 2: {"up": 2, "down": 3, "same": 4, "none": 0}}
    for run in ("a", "b"):
        begun = start(ledger, spec, log, run)
        for part in begun.slices:
            work = take_try(ledger, spec, begun.claim, part.number)
            offset = positions(work)[0][1]
            rows = [
                {"k": k, "at": at, "_deleted": False, "_partition": 0, "_offset": offset + n, "_n": 0}
                for n, (k, at) in enumerate(given[begun.claim.txid].items())
            ]
            voted = vote_of(spec, work, {"newest": write(ledger, spec, work, "newest", rows)})
            cast_vote(ledger, spec, work.token, voted)
        commit(ledger, spec, begun.claim)
    with ledger.begin() as conn:
        newest = conn.execute(text("select k, at, _txid from newest order by k")).all()
    assert newest == [("down", 9, 1), ("none", 0, 2), ("same", 4, 2), ("up", 2, 2)]


def test_a_deletion_takes_the_row_away_and_a_later_record_brings_it_back(ledger, log):
    seen = []
    for run, deleted in (("a", False), ("b", True), ("c", False)):
        begun = start(ledger, SPEC, log, run)
        for part in begun.slices:
            work = take_try(ledger, SPEC, begun.claim, part.number)
            rows = rows_of(SPEC, work)
            for row in rows["latest"]:
                row["_deleted"] = deleted
            sinks = write_all(ledger, SPEC, work, rows)
            cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
        commit(ledger, SPEC, begun.claim)
        with ledger.begin() as conn:
            seen.append(conn.execute(text("select count(distinct k) from latest")).scalar_one())
    assert seen == [10, 0, 10]


@pytest.mark.invariant("I1")
def test_only_the_attempts_that_the_votes_name_are_applied(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    for part in begun.slices:
        work = take_try(ledger, SPEC, begun.claim, part.number)
        sinks = {}
        for name, rows in rows_of(SPEC, work).items():
            write(ledger, SPEC, work, name, rows, attempt=8)
            sinks[name] = write(ledger, SPEC, work, name, rows, attempt=9)
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
    commit(ledger, SPEC, begun.claim)
    assert appended(ledger) == planned(begun)


@pytest.mark.invariant("I4")
def test_a_reader_with_one_snapshot_sees_whole_transactions_in_every_sink(ledger, log):
    """I4, with commits going on beside the reader."""
    log.stable = {0: 300, 1: 300}
    begun = []
    stop = threading.Event()
    torn: list = []

    def read():
        seen = 0
        engine = ledger.engine.execution_options(isolation_level="REPEATABLE READ")
        while not stop.is_set() or seen == 0:
            with engine.begin() as conn:
                rows = conn.execute(text("select count(*), coalesce(sum(a), 0), coalesce(max(_txid), 0) from rows"))
                count, total, last = rows.one()
                sums = conn.execute(text("select coalesce(sum(n), 0), coalesce(sum(a_sum), 0) from totals")).one()
                newest = conn.execute(text("select coalesce(max(_txid), 0) from latest")).scalar_one()
                at = conn.execute(select(heads.c.txid)).scalar_one_or_none() or 0
            if (count, total) != tuple(sums) or not last == newest == at:
                torn.append((count, total, sums, last, newest, at))
            seen += 1

    with ThreadPoolExecutor(2) as pool:
        reader = pool.submit(read)
        for n in range(20):
            b = start(ledger, SPEC, log, f"r{n}")
            prepare(ledger, SPEC, b)
            commit(ledger, SPEC, b.claim)
            begun.append(b)
        stop.set()
        reader.result()
    assert torn == []
    assert appended(ledger) == planned(*begun)
