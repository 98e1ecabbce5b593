"""What a person sees of lines: read in one snapshot, by as many queries for one line as for many."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, select, text, update

from ratchet import Append, MaxDeadLetters
from ratchet.errors import Fenced, Refused
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort, accept_loss, void
from ratchet.operate.migrate import migrate
from ratchet.operate.replay import ask
from ratchet.operate.snapshot.lag import lags
from ratchet.operate.snapshot.status import Waits, known, status, statuses
from ratchet.operate.snapshot.timeline import timeline
from ratchet.operate.snapshot.transaction import transaction
from ratchet.operate.snapshot.words import lines_of
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.source.topics import Ends
from ratchet.spec.pipeline import DEAD_LETTERS

from .staging import SPEC, committed, do, do_slice, fail, prepare, start

LETTER = {"timestamp": datetime(2013, 1, 1, tzinfo=UTC), "key": b"k", "value": b"v", "headers": None, "error": "no"}


def counted(ledger, step) -> int:
    """How many statements a step needs."""
    seen: list[str] = []

    def note(conn, cursor, statement, *_):
        seen.append(statement)

    event.listen(ledger.engine, "before_cursor_execute", note)
    try:
        step()
    finally:
        event.remove(ledger.engine, "before_cursor_execute", note)
    return len(seen)


def test_each_unfinished_transaction_says_what_it_waits_for(ledger, log):
    log.stable = {0: 500, 1: 500}
    committed(ledger, log, "a")
    open_, second, third = (start(ledger, SPEC, log, run) for run in "bcd")
    prepare(ledger, SPEC, second)
    prepare(ledger, SPEC, third)
    do_slice(ledger, SPEC, open_, 0)
    abort(ledger, SPEC, 4, "wrong day", "me")
    of = status(ledger, "line")
    assert (of.head, of.last_txid, of.in_flight, of.topic, of.halt) == (1, 4, 3, "t", None)
    assert [(t.txid, t.waits, t.before, t.voted, t.slices) for t in of.unfinished] == [
        (2, Waits.VOTES, None, 1, 2),
        (3, Waits.TURN, 2, 2, 2),
        (4, Waits.RETRY, None, 2, 2),
    ]
    assert "waits for 2, which run b is processing; run c works on it" in "\n".join(lines_of(of))
    do_slice(ledger, SPEC, open_, 1)
    assert status(ledger, "line").unfinished[0].waits == Waits.COMMIT


def test_a_halted_line_names_the_transaction_and_what_waits_behind_it(ledger, log):
    log.stable = {0: 500, 1: 500}
    for run in "abc":
        fail(ledger, log, run)
    # Work behind a halt waits; what was prepared before stays so.
    of = status(ledger, "line")
    assert (of.halt, of.unfinished[0].waits, of.unfinished[0].failures) == (1, Waits.PERSON, 3)
    assert any("HALTED: line is halted at transaction 1 since" in line for line in lines_of(of))
    void(ledger, SPEC, 1, "given up", "me")
    assert status(ledger, "line").halt is None


def test_a_void_that_the_head_has_not_passed_is_waited_for_by_name(ledger, log):
    log.stable = {0: 500, 1: 500}
    begun = [start(ledger, SPEC, log, run) for run in "ab"]
    prepare(ledger, SPEC, begun[1])
    with ledger.begin() as conn:
        conn.execute(update(transactions).where(transactions.c.txid == 1).values(state="VOIDED"))
    assert "prepared; waits for 1, which is VOIDED; run b works on it" in lines_of(status(ledger, "line"))[-1]


def test_the_rate_is_of_what_was_committed_lately_and_says_over_which_time(ledger, log):
    log.stable = {0: 500, 1: 500}
    for run in "abc":
        committed(ledger, log, run)
    with ledger.begin() as conn:
        long_ago = transactions.c.committed_at - timedelta(hours=1)
        conn.execute(update(transactions).where(transactions.c.txid == 1).values(committed_at=long_ago))
    rate = status(ledger, "line").rate
    assert (rate.transactions, rate.records, rate.seconds) == (2, 40, 600.0)
    with ledger.snapshot() as conn:
        hours = statuses(conn, ["line"], timedelta(hours=2))["line"].rate
    assert (hours.transactions, hours.records, hours.seconds) == (3, 60, 7200.0)


def test_where_more_is_recent_than_is_counted_the_time_is_theirs(ledger, log, monkeypatch):
    log.stable = {0: 500, 1: 500}
    monkeypatch.setattr("ratchet.operate.snapshot.status.NEWEST", 2)
    for run in "abc":
        committed(ledger, log, run)
    rate = status(ledger, "line").rate
    assert rate.transactions == 2 and 0 < rate.seconds < 600


def test_many_lines_take_as_many_queries_as_one(ledger, log):
    log.stable = {0: 500, 1: 500}
    committed(ledger, log, "a")
    start(ledger, SPEC, log, "b")
    names = [f"other{number}" for number in range(5)]
    others = [SPEC.model_copy(update={"name": name, "sinks": [Append(name, columns="a bigint")]}) for name in names]
    migrate(ledger.url, others)
    for spec in others:
        start(ledger, spec, log, f"{spec.name} a")

    def look(of: list[str]):
        with ledger.snapshot() as conn:
            found = statuses(conn, of)
            ends = {"t": Ends("t", "first", log.beginning, log.stable, None, None, {})}
            return found, lags(conn, of, ends)

    alone = counted(ledger, lambda: look(["line"]))
    assert counted(ledger, lambda: look(["line", *names, "unknown"])) == alone
    found, lag = look([*names, "line", "unknown"])
    assert [*found] == [*names, "line", "unknown"] and sorted(lag) == ["line", *names]
    assert (found["line"].head, found["other3"].head, found["unknown"].last_txid) == (1, 0, 0)
    assert [t.txid for t in found["line"].unfinished] == [2] and lag["other3"].in_flight == 20
    with ledger.snapshot() as conn:
        assert known(conn) == ["line", *names]


def test_a_timeline_has_a_page_of_transactions_and_how_long_they_took(ledger, log):
    log.stable = {0: 500, 1: 500}
    for run in "abcde":
        committed(ledger, log, run)
    waiting = [start(ledger, SPEC, log, run) for run in "fg"]
    prepare(ledger, SPEC, waiting[1])
    ask(ledger, SPEC, 2, 2, "again", "me")
    seen = timeline(ledger, "line", most=3)
    assert [(b.txid, b.state, b.waits, b.before) for b in seen.bars] == [
        (7, "PREPARED", Waits.TURN, 6),
        (6, "OPEN", Waits.VOTES, None),
        (5, "COMMITTED", None, None),
    ]
    last = seen.bars[-1]
    assert last.opened_at < last.first_try_at < last.prepared_at < last.committed_at
    assert (last.offsets, last.records, last.run_id) == (20, 20, "e")
    assert last.rows == {"rows": 20, "totals": 20, "latest": 20, DEAD_LETTERS: 0}
    assert seen.bars[1].first_try_at is None and seen.earlier == 5
    older = timeline(ledger, "line", before=seen.earlier, most=10)
    assert [b.txid for b in older.bars] == [4, 3, 2, 1] and older.earlier is None
    assert {t.phase: t.transactions for t in older.took} == {"start": 4, "process": 4, "commit": 4, "all": 4}
    assert all(0 <= t.median <= t.p95 for t in older.took)
    assert [(s.name, s.kind, s.shows) for s in seen.sinks] == [
        ("latest", "upsert", "table"),
        ("rows", "append", "view"),
        ("totals", "accumulate", "table"),
    ]
    nothing = timeline(ledger, "unknown")
    assert nothing.bars == () and nothing.earlier is None


def test_a_revision_has_a_bar_of_its_own(ledger, log):
    log.stable = {0: 500, 1: 500}
    committed(ledger, log, "a")
    begun = start(ledger, SPEC, log, "a", 1)
    assert [(b.txid, b.revision, b.state) for b in timeline(ledger, "line").bars] == [
        (1, 1, State.OPEN),
        (1, 0, State.COMMITTED),
    ]
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    whole = transaction(ledger, "line", 1)
    assert whole.applied == 1 and whole.standing is None
    revisions = [(r.revision, r.state, r.clear_number) for r in whole.revisions]
    assert revisions == [(0, "COMMITTED", 0), (1, "COMMITTED", 1)]


def test_a_transaction_is_shown_with_everything_that_the_ledger_has_of_it(ledger, log):
    log.stable = {0: 500, 1: 500}
    fail(ledger, log, "a")
    begun = start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, begun)
    abort(ledger, SPEC, 1, "wrong day", "me")
    settle(ledger, SPEC, Run("dag", "b"), succeeded=False, reason="aborted")
    again = start(ledger, SPEC, log, "c")
    prepare(ledger, SPEC, again)
    seen = transaction(ledger, "line", 1)
    assert (seen.applied, seen.standing.waits, seen.head) == (None, Waits.COMMIT, 0)
    assert [(r.topic, r.source, r.partition, r.from_offset, r.until_offset) for r in seen.ranges] == [
        ("t", 1, 0, 0, 10),
        ("t", 1, 1, 0, 10),
    ]
    assert [(s.epoch, s.slice, s.try_number, s.voted_at is not None) for s in seen.slices] == [
        (2, 0, 1, True),
        (2, 1, 1, True),
        (1, 0, 1, True),
        (1, 1, 1, True),
    ]
    assert [(v.sink, v.rows, v.writers) for v in seen.slices[0].sinks] == [
        (DEAD_LETTERS, 0, 0),
        ("latest", 10, 1),
        ("rows", 10, 1),
        ("totals", 10, 1),
    ]
    claims = [(c.number, c.run, c.ended_at is None) for c in seen.claims]
    assert claims == [(1, "a", False), (2, "b", False), (3, "c", True)]
    assert seen.claims[0].why == "failed in a"
    assert [e.move for e in seen.history][:3] == ["OPEN", "end", "claim"]
    commit(ledger, SPEC, again.claim)
    ask(ledger, SPEC, 1, 1, "once more", "me")
    seen = transaction(ledger, "line", 1)
    assert (
        seen.applied == 0 and seen.replay.reason == "once more" and asdict(seen)["revisions"][0]["rows"]["rows"] == 20
    )
    with pytest.raises(Fenced, match="there is no transaction 2"):
        transaction(ledger, "line", 2)


def test_what_gates_have_said_is_shown_with_its_numbers_also_of_an_epoch_that_they_refused(ledger, log):
    strict = SPEC.model_copy(update={"gates": [MaxDeadLetters(0.1)]})
    log.stable = {0: 500, 1: 500}
    refused = start(ledger, strict, log, "a")
    do(ledger, strict, refused, lambda *_: {DEAD_LETTERS: [LETTER]})
    with pytest.raises(Refused):
        commit(ledger, strict, refused.claim)
    settle(ledger, strict, Run("dag", "a"), succeeded=False, reason="gate")
    passed = start(ledger, strict, log, "b")
    prepare(ledger, strict, passed)
    commit(ledger, strict, passed.claim)
    gates = transaction(ledger, "line", 1).gates
    assert [(g.epoch, g.yes, g.numbers["dead_letters"], g.numbers["records"]) for g in gates] == [
        (1, False, 20, 20),
        (2, True, 0, 20),
    ]
    assert gates[0].why and gates[0].gate


def test_losses_are_shown_with_the_transaction_that_they_were_taken_out_of(ledger, log):
    log.stable = {0: 500, 1: 500}
    start(ledger, SPEC, log, "a")
    log.beginning[1] = 4
    accept_loss(ledger, SPEC, log.offsets, "retention", "me")
    (lost,) = transaction(ledger, "line", 1).losses
    assert (lost.partition, lost.from_offset, lost.until_offset, lost.reason) == (1, 0, 4, "retention")


ENDS = Ends("t", "first", {0: 0, 1: 0}, {0: 50, 1: 30}, 3_600_000, None, {})


def lag_of(ledger, ends: Ends, times=lambda asked: {}):
    with ledger.snapshot() as conn:
        return lags(conn, ["line"], {ends.topic: ends}, times)["line"]


def test_the_lag_is_what_is_not_committed_and_its_age_that_of_the_oldest_record(ledger, log):
    committed(ledger, log, "a")
    start(ledger, SPEC, log, "b")
    asked: list[dict] = []

    def times(of):
        asked.append(dict(of))
        with ledger.begin() as conn:
            now = conn.execute(select(text("clock_timestamp()"))).scalar_one()
        return {("t", 0): now - timedelta(minutes=50), ("t", 1): now - timedelta(minutes=20)}

    lag = lag_of(ledger, ENDS, times)
    assert asked == [{("t", 0): 10, ("t", 1): 10}]
    assert (lag.records, lag.waiting, lag.in_flight) == (60, 40, 20)
    assert [(p.partition, p.since, p.planned, p.stable, p.lag) for p in lag.partitions] == [
        (0, 10, 20, 50, 40),
        (1, 10, 20, 30, 20),
    ]
    assert lag.seconds == pytest.approx(3_000, abs=60)
    # An hour is kept, and the oldest record is fifty minutes old.
    assert (lag.deleted_at - lag.at).total_seconds() == pytest.approx(600, abs=60)
    assert lag_of(ledger, ENDS).seconds is None


def test_retention_by_size_is_foretold_by_the_pace_of_the_log(ledger, log):
    committed(ledger, log, "a")
    log_of = replace(ENDS, stable={0: 110, 1: 10}, retention_ms=None, retention_bytes=2_000, bytes={0: 1_100, 1: 0})

    def times(asked):
        with ledger.begin() as conn:
            now = conn.execute(select(text("clock_timestamp()"))).scalar_one()
        # A hundred bytes a second since the first record; a thousand of them are behind the line's place.
        return {place: now - timedelta(seconds=11 if at == 0 else 10) for place, at in asked.items()}

    lag = lag_of(ledger, log_of, times)
    assert lag.seconds == pytest.approx(10, abs=2)
    assert (lag.deleted_at - lag.at).total_seconds() == pytest.approx(10, abs=2)


def test_offsets_that_retention_has_taken_are_counted_as_lost_and_no_more_as_waiting(ledger, log):
    committed(ledger, log, "a")
    lag = lag_of(ledger, replace(ENDS, beginning={0: 25, 1: 0}))
    assert (lag.lost, lag.waiting, lag.records) == (15, 45, 45)


def test_a_topic_that_is_not_told_or_made_again_has_a_lag_of_what_is_in_flight(ledger, log):
    committed(ledger, log, "a")
    start(ledger, SPEC, log, "b")
    again = lag_of(ledger, replace(ENDS, topic_id="second"))
    assert (again.is_told, again.is_made_again, again.records) == (True, True, 20)
    gone = lag_of(ledger, replace(ENDS, topic="another"))
    assert (gone.is_told, gone.is_made_again, gone.records) == (False, False, 20)


def test_a_partition_that_comes_later_counts_from_its_first_offset(ledger, log):
    committed(ledger, log, "a")
    lag = lag_of(ledger, replace(ENDS, beginning={0: 0, 1: 0, 2: 3}, stable={0: 10, 1: 10, 2: 9}))
    assert [(p.partition, p.since, p.lag, p.lost) for p in lag.partitions] == [(2, 0, 6, 3)]
