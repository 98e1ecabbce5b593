"""Whether there is anything to do for a line is known by a few queries over all lines, and never wrongly denied."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import event, text

from ratchet import Append, Arrivals, Json, Pipeline, Topic
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort
from ratchet.operate.attention import been_here, in_need, may_have_records, may_want_records, standings
from ratchet.operate.migrate import migrate
from ratchet.operate.replay import ask
from ratchet.operate.upkeep import clean, upkeep
from ratchet.protocol import plan
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit

from .staging import SPEC, a_try, always_active, committed, expire, fail, prepare, rows_of, start, write_all

OLD = SPEC.model_copy(update={"keep_deltas": timedelta(0)})
STRICT = SPEC.model_copy(update={"timeout_seconds": 1})


def is_needy(ledger: Ledger, spec: Pipeline = SPEC) -> bool:
    with ledger.begin() as conn:
        return in_need(conn, [spec]) == {spec.name}


def overdue(ledger: Ledger, log) -> Pipeline:
    start(ledger, STRICT, log, "a")
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set deadline = clock_timestamp() - interval '1 second'"))
    return STRICT


def silent(ledger: Ledger, log) -> Pipeline:
    start(ledger, SPEC, log, "a")
    expire(ledger)
    return SPEC


def ahead(ledger: Ledger, log) -> Pipeline:
    """A lease that was given while the clock was ahead."""
    start(ledger, SPEC, log, "a")
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set lease_until = clock_timestamp() + interval '1 day'"))
    return SPEC


def ended(ledger: Ledger, log) -> Pipeline:
    fail(ledger, log, "a")
    return SPEC


def halted(ledger: Ledger, log) -> Pipeline:
    for run in "abc":
        fail(ledger, log, run)
    return SPEC


def voided(ledger: Ledger, log) -> Pipeline:
    start(ledger, SPEC, log, "a")
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set state = 'VOIDED', claim_ended = true"))
    return SPEC


def leftovers(ledger: Ledger, log) -> Pipeline:
    """What an attempt wrote that nobody voted for, of an epoch that is over, though its run goes on."""
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    write_all(ledger, SPEC, work, rows_of(SPEC, work))
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set state = 'ABORTED'"))
        conn.execute(text("update ratchet.transactions set state = 'OPEN', epoch = 2"))
    return SPEC


def old(ledger: Ledger, log) -> Pipeline:
    committed(ledger, log, "a")
    return OLD


def revised(ledger: Ledger, log) -> Pipeline:
    """A revision that its run has left."""
    committed(ledger, log, "a")
    start(ledger, SPEC, log, "a", 1)
    settle(ledger, SPEC, Run("dag", "a", 1), succeeded=False, reason="failed")
    return SPEC


def replayed(ledger: Ledger, log) -> Pipeline:
    """A revision that somebody has asked for."""
    committed(ledger, log, "a")
    ask(ledger, SPEC, 1, 1, "why", "me")
    return SPEC


NEEDS = [overdue, silent, ahead, ended, halted, voided, leftovers, old, revised, replayed]


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.__name__)
def test_whatever_there_is_to_do_for_a_line_is_found(ledger, log, need: Callable[..., Pipeline]):
    spec = need(ledger, log)
    assert is_needy(ledger, spec)
    list(upkeep(ledger, spec, always_active))
    list(clean(ledger, spec))
    # What only a run or a person can end is there still.
    assert is_needy(ledger, spec) == (need in (silent, ahead, ended, halted, revised, replayed))


def test_a_line_that_works_or_rests_needs_nothing(ledger, log):
    assert not is_needy(ledger)
    begun = [start(ledger, SPEC, log, run) for run in "ab"]
    assert not is_needy(ledger) and not is_needy(ledger, STRICT)
    prepare(ledger, SPEC, begun[0])
    write_all(ledger, SPEC, work := a_try(ledger, begun[1]), rows_of(SPEC, work))
    assert not is_needy(ledger)
    commit(ledger, SPEC, begun[0].claim)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=True)
    assert not is_needy(ledger)
    # What is aborted is somebody's, as long as its claim holds.
    abort(ledger, SPEC, 2, "why", "me")
    assert not is_needy(ledger)


def test_where_lines_stand_is_what_each_says_by_itself(ledger, log):
    begun = [start(ledger, SPEC, log, run) for run in "abc"]
    prepare(ledger, SPEC, begun[0])
    commit(ledger, SPEC, begun[0].claim)
    with ledger.begin() as conn:
        (standing,) = standings(conn, [SPEC.name, "not yet"]).values()
        line = standing.line
        assert (line.head, line.last_txid) == (1, 3)
        assert standing.planned == plan.previous_until(conn, SPEC.name, line.source)
        assert (line.source, standing.reached) == plan.reached(conn, line)


def test_a_line_whose_first_run_begins_between_two_questions_is_left_to_the_next_minute(ledger, log, monkeypatch):
    start(ledger, SPEC, log, "a")
    monkeypatch.setattr("ratchet.operate.attention.Line.all", lambda _: [])
    with ledger.begin() as conn:
        assert standings(conn, [SPEC.name]) == {}


def test_kafka_is_asked_only_where_a_run_could_take_records(ledger, log):
    by_records = SPEC.model_copy(update={"runs": Arrivals()})
    assert not may_want_records(SPEC, None) and not may_want_records(by_records, None)
    log.stable = {0: 30, 1: 10}
    first = start(ledger, SPEC, log, "a")
    with ledger.begin() as conn:
        standing = standings(conn, [SPEC.name])[SPEC.name]
    # 40 offsets are due, the first transaction has 20 of them.
    assert may_want_records(SPEC, standing) and may_have_records(standing, log.stable)
    assert not may_want_records(by_records, standing), "the triggerer looks for them"
    assert not may_want_records(SPEC.model_copy(update={"max_in_flight": 1}), standing)
    assert not may_want_records(SPEC.model_copy(update={"plan": "interval"}), standing)
    prepare(ledger, SPEC, first)
    prepare(ledger, SPEC, start(ledger, SPEC, log, "b", drains=True))
    commit(ledger, SPEC, first.claim)
    with ledger.begin() as conn:
        standing = standings(conn, [SPEC.name])[SPEC.name]
    assert not may_want_records(SPEC, standing)
    # What came since is not due; nor is a partition that nobody has planned.
    for more in (log.stable, {0: 31, 1: 10}, {0: 30, 1: 10, 2: 1}):
        assert not may_have_records(standing, more)


def test_many_lines_cost_as_many_statements_as_one(ledger, log):
    several = [
        Pipeline(
            name=f"other_{n}",
            source=Topic("t", value=Json("a bigint")),
            sinks=[Append(f"others_{n}", columns="a bigint")],
            max_in_flight=n + 1,
        )
        for n in range(5)
    ]
    migrate(ledger.url, [SPEC, *several])
    for spec in (SPEC, *several):
        start(ledger, spec, log, spec.name)
    said: list[str] = []
    event.listen(ledger.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    with ledger.begin() as conn:
        names = [spec.name for spec in (SPEC, *several)]
        been_here(conn, names)
        assert in_need(conn, [SPEC, *several]) == set()
        assert standings(conn, names).keys() == set(names)
    assert len([statement for statement in said if not statement.startswith("set local")]) == 4


def test_whoever_commits_is_not_waited_for(ledger, log):
    start(ledger, SPEC, log, "a")
    with psycopg.connect(ledger.url) as committing:
        committing.execute("select from ratchet.pipelines for update")
        with ledger.begin() as conn:
            been_here(conn, [SPEC.name])
            assert conn.execute(text("select maintained_at from ratchet.pipelines")).scalar_one() is None
    with ledger.begin() as conn:
        been_here(conn, [SPEC.name])
        assert conn.execute(text("select maintained_at from ratchet.pipelines")).scalar_one() is not None
