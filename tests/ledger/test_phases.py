"""In which phase a transaction was, and when: what was halted, or had no run, is no work on it."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort, retry, void
from ratchet.operate.replay import ask
from ratchet.operate.snapshot.timeline import Bar, timeline
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit

from .staging import SPEC, Log, a_try, committed, do_slice, fail, prepare, start


def bar_of(ledger: Ledger, txid: int, revision: int = 0) -> Bar:
    return next(b for b in timeline(ledger, "line").bars if (b.txid, b.revision) == (txid, revision))


def names(bar: Bar) -> list[str]:
    """The phases, which follow one another without a gap."""
    assert all(one.until == after.since for one, after in zip(bar.phases, bar.phases[1:], strict=False)), bar.phases
    assert bar.phases[0].since == bar.opened_at
    return [phase.name for phase in bar.phases]


def halted(ledger: Ledger, log: Log) -> None:
    """A transaction that has been tried, and failed as often as its spec allows."""
    log.stable = {0: 500, 1: 500}
    for run in "abc":
        begun = start(ledger, SPEC, log, run)
        a_try(ledger, begun)
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason=f"failed in {run}")


def earlier(ledger: Ledger, minutes: int) -> None:
    """All that has happened, happened so much earlier."""
    events = "update ratchet.events set at = at - :minutes * interval '1 minute'"
    rows = (
        "update ratchet.transactions set opened_at = opened_at - :minutes * interval '1 minute', "
        "prepared_at = prepared_at - :minutes * interval '1 minute', "
        "halted_at = halted_at - :minutes * interval '1 minute'"
    )
    with ledger.begin() as conn:
        conn.execute(text("alter table ratchet.events disable trigger user"))
        for moved in (events, rows):
            conn.execute(text(moved), {"minutes": minutes})
        conn.execute(text("alter table ratchet.events enable trigger user"))


def test_a_halted_transaction_was_processed_until_it_was_halted(ledger, log):
    halted(ledger, log)
    bar = bar_of(ledger, 1)
    assert names(bar) == ["start", "process", "wait", "process", "wait", "process", "halted"]
    assert bar.phases[-1].until is None and abs(bar.phases[-1].since - bar.halted_at) < timedelta(seconds=1)


def test_what_was_halted_is_no_part_of_the_phases_after_a_retry(ledger, log):
    halted(ledger, log)
    earlier(ledger, 60)
    retry(ledger, SPEC, 1, "me", "its cause is gone")
    earlier(ledger, 60)
    again = start(ledger, SPEC, log, "d")
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)
    settle(ledger, SPEC, Run("dag", "d"), succeeded=True)
    bar = bar_of(ledger, 1)
    stood = [(p.name, round((p.until - p.since).total_seconds() / 60)) for p in bar.phases]
    assert names(bar)[-5:] == ["process", "halted", "wait", "process", "commit"]
    assert stood[-4:-2] == [("halted", 60), ("wait", 60)] and sum(minutes for _, minutes in stood) == 120
    assert (bar.committed_at - bar.opened_at) > timedelta(hours=2)
    took = {of.phase: of.median for of in timeline(ledger, "line").took}
    assert took.keys() == {"start", "process", "commit", "all"} and all(0 <= of < 60 for of in took.values())


def test_a_void_ends_a_transaction_when_it_was_decided(ledger, log):
    halted(ledger, log)
    earlier(ledger, 60)
    void(ledger, SPEC, 1, "of no use", "me")
    bar = bar_of(ledger, 1)
    assert names(bar)[-3:] == ["process", "halted", "voided"]
    assert (bar.phases[-1].until - bar.opened_at) > timedelta(minutes=59)
    # A replay of it, later, is a result of its own.
    earlier(ledger, 60)
    log.stable = {0: 10, 1: 10}
    ask(ledger, SPEC, 1, 1, "it is of use", "me", voided=True)
    again = start(ledger, SPEC, log, "d")
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)
    assert bar_of(ledger, 1).state == "COMMITTED" and names(bar_of(ledger, 1))[-1] == "voided"
    assert (bar_of(ledger, 1).phases[-1].until - bar.opened_at) < timedelta(minutes=61)
    assert names(bar_of(ledger, 1, 1))[-1] == "commit"


def test_one_that_was_never_tried_is_only_begun(ledger, log):
    log.stable = {0: 500, 1: 500}
    begun = start(ledger, SPEC, log, "a")
    assert names(bar_of(ledger, 1)) == ["start"] and bar_of(ledger, 1).phases[0].until is None
    void(ledger, SPEC, begun.claim.txid, "of no use", "me")
    assert names(bar_of(ledger, 1)) == ["start", "voided"]
    for run in "bcd":
        fail(ledger, log, run)
    assert names(bar_of(ledger, 2)) == ["start", "wait", "start", "wait", "start", "halted"]


def test_what_is_prepared_waits_or_commits_and_what_is_aborted_is_shown_since_then(ledger, log):
    committed(ledger, log, "a")
    log.stable = {0: 500, 1: 500}
    first, second = (start(ledger, SPEC, log, run) for run in "bc")
    prepare(ledger, SPEC, second)
    do_slice(ledger, SPEC, first, 0)
    assert names(bar_of(ledger, 1)) == ["start", "process", "commit"]
    assert names(bar_of(ledger, 2)) == ["start", "process"] and names(bar_of(ledger, 3))[-1] == "wait"
    abort(ledger, SPEC, 2, "wrong day", "me")
    assert names(bar_of(ledger, 2)) == ["start", "process", "aborted"]
    assert bar_of(ledger, 2).phases[-1].until is None


def test_a_revision_that_another_has_superseded_is_over(ledger, log):
    committed(ledger, log, "a")
    start(ledger, SPEC, log, "a", 1)
    settle(ledger, SPEC, Run("dag", "a", 1), succeeded=False, reason="it was stopped")
    start(ledger, SPEC, log, "b")
    start(ledger, SPEC, log, "a", 2)
    revised = bar_of(ledger, 1, 1)
    assert names(revised) == ["start", "wait", "start", "aborted"] and revised.phases[-1].until is not None


def test_one_that_another_takes_along_was_not_committed_all_the_time_since_its_run_has_ended(ledger, log):
    log.stable = {0: 500, 1: 500}
    first, second = (start(ledger, SPEC, log, run) for run in "ab")
    prepare(ledger, SPEC, second)
    settle(ledger, SPEC, Run("dag", "b"), succeeded=False, reason="it was stopped")
    earlier(ledger, 60)
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    bar = bar_of(ledger, 2)
    assert bar.state == "COMMITTED" and names(bar) == ["start", "process", "commit", "wait"]
    assert bar.phases[-1].until - bar.phases[-1].since > timedelta(minutes=59)
    assert sum((of.until - of.since).total_seconds() for of in bar.phases[:-1]) < 60


def test_a_clock_that_was_set_back_takes_no_page_away(ledger, log):
    committed(ledger, log, "z")
    halted(ledger, log)
    with ledger.begin() as conn:
        conn.execute(text("alter table ratchet.events disable trigger user"))
        conn.execute(text("update ratchet.transactions set committed_at = opened_at - interval '3 s' where txid = 1"))
        conn.execute(
            text("update ratchet.events set at = at - interval '9 s' where txid = 2 and move in ('claim', 'halt')")
        )
        conn.execute(text("alter table ratchet.events enable trigger user"))
    for bar in timeline(ledger, "line").bars:
        assert bar.phases and all(of.until is None or of.until >= of.since for of in bar.phases), bar
