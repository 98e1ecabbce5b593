"""Begin and claims against a real PostgreSQL, without Kafka and Spark: what is planned and adopted, and by whom."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, text, update

from ratchet import Pipeline
from ratchet.errors import Fenced, NotMigrated, OtherCode, RecordsLost, SpecError, TopicChanged
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.protocol import sources
from ratchet.protocol.another import wants_another_run
from ratchet.protocol.begin import Skip, Skipped, begin
from ratchet.protocol.claims import end, settle
from ratchet.protocol.commit import commit
from ratchet.protocol.leases import renew
from ratchet.protocol.sources import Lineages
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.source.offsets import TopicOffsets, Undecided
from tests.until import until

from .staging import (
    SPEC,
    always_active,
    appended,
    do_slice,
    expire,
    is_waiting,
    moves_of,
    planned,
    prepare,
    rows_of,
    start,
    state,
    vote_of,
    write_all,
)


@pytest.mark.invariant("I2")
def test_twenty_concurrent_begins_give_dense_txids_and_tiled_ranges(ledger, log):
    """I2: whatever the interleaving, nothing is planned twice and nothing is left out."""
    log.stable = {0: 137, 1: 211, 2: 40}
    log.beginning = {0: 0, 1: 11, 2: 0}
    spec = SPEC.model_copy(update={"max_in_flight": 32})
    together = threading.Barrier(20)

    def one(number: int):
        together.wait()
        return begin(ledger, spec, Run("dag", f"run{number}"), log.offsets, always_active)

    with ThreadPoolExecutor(20) as pool:
        found = [b for b in pool.map(one, range(20)) if not isinstance(b, Skipped)]
    assert sorted(b.claim.txid for b in found) == list(range(1, len(found) + 1))
    taken = [(p, o) for p, o, _, _ in planned(*found)]
    assert sorted(taken) == [(p, o) for p in (0, 1, 2) for o in range(log.beginning[p], log.stable[p])]


@pytest.mark.invariant("I9")
def test_the_same_begin_twice_at_once_makes_one_transaction(ledger, log):
    together = threading.Barrier(8)

    def one(_):
        together.wait()
        return begin(ledger, SPEC, Run("dag", "same"), log.offsets, always_active)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(8)))
    assert {b.claim.txid for b in found} == {1}
    assert len({tuple(s.ranges for s in b.slices) for b in found}) == 1


def test_at_most_max_in_flight_transactions_are_unfinished(ledger, log):
    log.stable = {0: 1000, 1: 1000}
    for n in range(4):
        start(ledger, SPEC, log, f"r{n}")
    fewer = SPEC.model_copy(update={"max_in_flight": 2})
    for spec in (SPEC, fewer):
        skipped = begin(ledger, spec, Run("dag", "one more"), log.offsets, always_active)
        assert skipped.reason == Skip.MAX_IN_FLIGHT and "4 transactions are unfinished, 1 to 4" in skipped.message
    assert wants_another_run(ledger, SPEC, log.offsets, always_active) is None


@pytest.mark.invariant("I2")
def test_a_run_takes_fewer_records_where_it_is_told_to(ledger, log):
    begun = start(ledger, SPEC, log, "a", max_records=7)
    assert sum(len(r) for part in begun.slices for r in part.ranges) == 7
    assert start(ledger, SPEC, log, "b", max_records=20).claim.txid == 2
    for cap in (0, 21):
        with pytest.raises(SpecError, match=f"max_records is {cap}; this pipeline takes 1 to 20"):
            start(ledger, SPEC, log, "c", max_records=cap)


def test_no_backlog_is_a_skip_without_a_txid(ledger, log):
    log.stable = {0: 0, 1: 0}
    skipped = begin(ledger, SPEC, Run("dag", "a"), log.offsets, always_active)
    assert skipped.reason == Skip.NO_RECORDS and "no records wait" in skipped.message


def test_records_behind_an_undecided_kafka_transaction_are_said_and_of_one_that_hangs_also_by_who_plans(ledger, log):
    log.stable = {0: 5, 1: 5}
    start(ledger, SPEC, log, "a")

    def behind(wrote_at: datetime):
        held = {1: Undecided(5, 7, 0, wrote_at)}
        return lambda *asked: replace(log.offsets(*asked), end={0: 60, 1: 17}, undecided=held)

    skipped = begin(ledger, SPEC, Run("dag", "b"), behind(datetime.now(UTC)), always_active)
    assert skipped.reason == Skip.NO_RECORDS
    assert "12 offsets of t-1 from 5 on wait for a Kafka transaction of producer 7 (epoch 0)" in skipped.message
    assert "may hang" not in skipped.message
    log.stable[0] = 6
    begun = begin(ledger, SPEC, Run("dag", "b"), behind(datetime.now(UTC)), always_active)
    assert "wait for a Kafka transaction" not in begun.message
    log.stable[0] = 7
    begun = begin(ledger, SPEC, Run("dag", "c"), behind(datetime.now(UTC) - timedelta(hours=1)), always_active)
    assert "allocated; 12 offsets of t-1 from 5 on wait" in begun.message and "may hang" in begun.message


@pytest.mark.invariant("I2")
def test_a_line_begins_where_the_log_does_and_a_later_partition_at_zero(ledger, log):
    log.beginning, log.stable = {0: 3}, {0: 10}
    first = start(ledger, SPEC, log, "a")
    log.beginning[7], log.stable[7] = 0, 9
    second = start(ledger, SPEC, log, "b")
    taken = [[str(r) for part in begun.slices for r in part.ranges] for begun in (first, second)]
    assert taken == [["t-0[3,10)"], ["t-7[0,9)"]]


@pytest.mark.invariant("I2")
def test_lost_records_stop_the_plan_and_are_named(ledger, log):
    start(ledger, SPEC, log, "a")
    log.beginning = {0: 15, 1: 0}
    with pytest.raises(RecordsLost, match=r"t-0\[10,15\), 5 offsets"):
        begin(ledger, SPEC, Run("dag", "b"), log.offsets, always_active)


@pytest.mark.parametrize("later", [{0: 25, 1: 10}, {0: 12, 1: 10, 7: 9}], ids=["records", "a partition"])
def test_what_another_run_has_planned_since_kafka_was_asked_is_not_lost(ledger, log, later):
    log.stable = {0: 10, 1: 10}
    start(ledger, SPEC, log, "a")
    log.stable = {0: 12, 1: 10}
    answers = []

    def meanwhile(*asked) -> TopicOffsets:
        answers.append(log.offsets(*asked))
        if len(answers) == 1:
            log.stable, log.beginning = later, dict.fromkeys(later, 0)
            start(ledger, SPEC, log, "b")
            log.stable = {p: until + 1 for p, until in later.items()}
        return answers[-1]

    begun = begin(ledger, SPEC, Run("dag", "c"), meanwhile, always_active)
    assert (begun.claim.txid, len(answers)) == (3, 2)
    assert begun.message.startswith("transaction 3: allocated")


def test_a_log_that_was_cut_is_named(ledger, log):
    start(ledger, SPEC, log, "a")
    log.stable = {0: 4, 1: 50}
    said = "the log of t-0 was cut at offset 4, though the ledger has planned it up to 10"
    with pytest.raises(RecordsLost, match=said):
        begin(ledger, SPEC, Run("dag", "b"), log.offsets, always_active)


@pytest.mark.invariant("I2")
def test_a_log_that_was_cut_and_has_grown_again_is_named(ledger, log):
    log.lineages = {0: ((3, 0),), 1: ((0, 0),)}
    start(ledger, SPEC, log, "a")
    log.stable, log.lineages, log.kept = {0: 90, 1: 90}, {0: ((3, 0), (5, 4)), 1: ((0, 0), (2, 40))}, {0: 4, 1: 40}
    said = "t-0 was cut at offset 4 and has other records up to 90 now, though the ledger has planned it up to 10"
    with pytest.raises(RecordsLost, match=said):
        begin(ledger, SPEC, Run("dag", "b"), log.offsets, always_active)
    # A change of leaders by which nothing was lost.
    log.kept = {0: 10, 1: 40}
    assert start(ledger, SPEC, log, "b").claim.txid == 2
    with ledger.begin() as conn:
        assert sources.lineages(conn, SPEC.name, 1) == log.lineages


@pytest.mark.invariant("I2")
def test_an_answer_about_logs_is_of_use_only_where_the_same_is_known_of_them_still(ledger, log):
    log.lineages = {0: ((0, 0),), 1: ((0, 0),)}
    start(ledger, SPEC, log, "a")
    asked = []

    def meanwhile(before: datetime | None, known: Lineages) -> TopicOffsets:
        asked.append(known)
        found = log.offsets(before, known)
        if len(asked) == 1:
            # Another run finds two new leaders, of which the answer knew one.
            log.lineages = {0: ((0, 0), (1, 20), (2, 25)), 1: ((0, 0),)}
            start(ledger, SPEC, log, "b")
            return replace(found, lineages={0: ((0, 0), (1, 20)), 1: ((0, 0),)})
        return found

    assert begin(ledger, SPEC, Run("dag", "c"), meanwhile, always_active).claim.txid == 3
    assert asked == [{0: ((0, 0),), 1: ((0, 0),)}, log.lineages]
    with ledger.begin() as conn:
        assert sources.lineages(conn, SPEC.name, 1) == log.lineages


@pytest.mark.invariant("I2")
def test_a_topic_made_again_is_another_topic(ledger, log):
    start(ledger, SPEC, log, "a")
    log.topic_id = "second"
    with pytest.raises(TopicChanged, match="deleted and made again"):
        begin(ledger, SPEC, Run("dag", "b"), log.offsets, always_active)


@pytest.mark.invariant("I2")
def test_records_of_a_partition_that_was_seen_and_not_yet_planned_are_not_lost_silently(ledger, log):
    log.stable = {0: 50, 1: 0}
    start(ledger, SPEC, log, "a")
    log.stable, log.beginning = {0: 50, 1: 30}, {0: 0, 1: 12}
    with pytest.raises(RecordsLost, match=r"t-1\[0,12\)"):
        start(ledger, SPEC, log, "b")


@pytest.mark.invariant("I10")
def test_a_run_that_still_lives_is_not_adopted_though_its_lease_ran_out(ledger, log):
    start(ledger, SPEC, log, "a")
    expire(ledger)
    other = start(ledger, SPEC, log, "b")
    assert (other.how, other.claim.txid) == ("allocated", 2)
    adopted = start(ledger, SPEC, log, "c", is_active=lambda dag, run: run != "a")
    assert (adopted.how, adopted.claim.txid, adopted.claim.epoch, adopted.claim.number) == ("adopted", 1, 1, 2)


@pytest.mark.invariant("I10")
def test_a_lease_that_holds_is_not_adopted_though_airflow_lost_the_run(ledger, log):
    start(ledger, SPEC, log, "a")
    assert start(ledger, SPEC, log, "b", is_active=lambda *_: False).how == "allocated"


def test_a_run_that_is_adopted_at_the_moment_in_which_it_settles_has_one_end(ledger, log):
    """Its claim is looked for without the lock on its row, and has ended when that is taken."""
    start(ledger, SPEC, log, "a")
    expire(ledger)
    with ThreadPoolExecutor(1) as pool, ledger.begin() as conn:
        row = end(conn, SPEC, read_transaction(conn, SPEC.name, 1, lock=True), who="a", why="the run ended")
        adopting = pool.submit(begin, ledger, SPEC, Run("dag", "b"), log.offsets, lambda *_: False)
        until("the second waits for the lock", lambda: is_waiting(ledger))
        conn.commit()
        adopted = adopting.result()
    assert (row.failures, adopted.how, adopted.claim.number) == (1, "adopted", 2)
    assert [move for _, _, move in moves_of(ledger)] == ["OPEN", "end", "claim"]


@pytest.mark.invariant("I10")
def test_a_lease_given_while_the_databases_clock_was_ahead_holds_nobody_up_until_then(ledger, log):
    start(ledger, SPEC, log, "a")
    ahead = func.clock_timestamp() + timedelta(hours=1)
    with ledger.begin() as conn:
        conn.execute(update(transactions).values(lease_until=ahead))
    assert start(ledger, SPEC, log, "b").how == "allocated"
    lost = start(ledger, SPEC, log, "c", is_active=lambda dag, run: run != "a")
    assert (lost.how, lost.claim.txid) == ("adopted", 1)


@pytest.mark.invariant("I6")
def test_an_adopted_transaction_keeps_its_votes_and_fences_its_old_run(ledger, log):
    first = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, first, 0)
    late = take_try(ledger, SPEC, first.claim, 1)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    assert "abandoned" in wants_another_run(ledger, SPEC, log.offsets, always_active).message
    second = start(ledger, SPEC, log, "b")
    assert (second.how, second.slices) == ("adopted", first.slices)
    assert "it has voted" in take_try(ledger, SPEC, second.claim, 0).message
    with pytest.raises(Fenced, match="run b holds the transaction now"):
        take_try(ledger, SPEC, first.claim, 1)
    with pytest.raises(Fenced):
        renew(ledger, first.claim, 60)
    do_slice(ledger, SPEC, second, 1)
    sinks = write_all(ledger, SPEC, late, rows_of(SPEC, late))
    with pytest.raises(Fenced):
        cast_vote(ledger, SPEC, late.token, vote_of(SPEC, late, sinks))
    assert commit(ledger, SPEC, second.claim).txids == (1,)
    assert commit(ledger, SPEC, first.claim).txids == ()
    assert appended(ledger) == planned(first)


@pytest.mark.invariant("I10")
def test_an_open_transaction_with_all_votes_is_promoted_by_the_begin_that_meets_it(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed while it waited")
    second = start(ledger, SPEC, log, "b")
    assert (second.how, second.claim.epoch, state(ledger, 1)) == ("adopted", 1, State.PREPARED)
    assert commit(ledger, SPEC, second.claim).txids == (1,)


@pytest.mark.invariant("I10")
def test_a_failed_run_that_is_cleared_resumes_its_own_transaction(ledger, log):
    start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    again = start(ledger, SPEC, log, "a", clear_number=1)
    assert (again.how, again.claim.txid, again.claim.number) == ("resumed", 1, 2)
    with ledger.begin() as conn:
        assert read_transaction(conn, SPEC.name, 1).failures == 0
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)


def test_a_run_that_was_deleted_and_made_again_under_its_id_says_that_it_does_nothing(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=True)
    log.stable[0] += 100
    made_again = begin(ledger, SPEC, Run("dag", "a"), log.offsets, always_active)
    assert made_again.reason == Skip.COMMITTED_BEFORE
    assert "transaction 1 is committed, by this run or one of its id that was deleted" in made_again.message
    assert "clear run a to revise it, or trigger a run with another id" in made_again.message
    assert start(ledger, SPEC, log, "a", clear_number=1).how == "revised"
    assert start(ledger, SPEC, log, "b").claim.txid == 2


@pytest.mark.parametrize("is_voided", [False, True])
def test_a_begin_that_is_repeated_after_another_run_has_ended_its_work_says_so(ledger, log, is_voided):
    start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    other = start(ledger, SPEC, log, "b")
    if is_voided:
        void(ledger, SPEC, 1, "it is not wanted", "somebody")
    else:
        prepare(ledger, SPEC, other)
        commit(ledger, SPEC, other.claim)
    skipped = begin(ledger, SPEC, Run("dag", "a"), log.offsets, always_active)
    assert (skipped.reason, skipped.message) == (
        (Skip.VOIDED, f"{SPEC.name}: transaction 1 is voided: it is not wanted")
        if is_voided
        else (
            Skip.COMMITTED_BY_ANOTHER,
            f"{SPEC.name}: transaction 1 was adopted and committed by run b; clear that one to revise it",
        )
    )


@pytest.mark.invariant("I6")
def test_a_run_whose_work_was_adopted_does_not_take_it_back(ledger, log):
    start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    start(ledger, SPEC, log, "b")
    skipped = begin(ledger, SPEC, Run("dag", "a", 1), log.offsets, always_active)
    assert skipped.reason == Skip.ADOPTED and "adopted by run b" in skipped.message
    with pytest.raises(Fenced, match="adopted by run b"):
        begin(ledger, SPEC, Run("dag", "a"), log.offsets, always_active)


@pytest.mark.invariant("I7")
def test_changed_code_begins_a_new_epoch_and_votes_of_two_codes_do_not_mix(ledger, log, monkeypatch):
    begun = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, begun, 0)
    monkeypatch.setattr(Pipeline, "code_hash", property(lambda self: "other code"))
    with pytest.raises(OtherCode, match="the code is other code"):
        take_try(ledger, SPEC, begun.claim, 1)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="other code")
    again = start(ledger, SPEC, log, "b")
    assert again.claim.epoch == 2
    prepare(ledger, SPEC, again)
    assert commit(ledger, SPEC, again.claim).txids == (1,)
    assert appended(ledger) == planned(again)


def test_what_other_code_had_begun_is_adopted_in_a_new_epoch_at_once(ledger, log, monkeypatch):
    begun = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, begun, 0)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    monkeypatch.setattr(Pipeline, "code_hash", property(lambda self: "other code"))
    again = start(ledger, SPEC, log, "b")
    assert (again.how, again.claim.epoch, again.slices) == ("adopted", 2, begun.slices)
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)
    assert appended(ledger) == planned(again)


@pytest.mark.invariant("I9")
def test_settle_repeated_or_late_changes_nothing(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    start(ledger, SPEC, log, "b")
    assert settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed").had_ended
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, begun.claim.txid)
    assert (row.claim, row.claim_ended, row.run_id) == (2, False, "b")


def test_a_target_that_no_longer_fits_is_named_before_anything_is_begun(ledger, log):
    with ledger.begin() as conn:
        conn.execute(text("alter table rows rename column a to b"))
    with pytest.raises(NotMigrated, match="sink 'rows': column rows.a does not exist; nothing was begun"):
        start(ledger, SPEC, log, "a")
    with ledger.begin() as conn:
        assert conn.execute(select(transactions)).all() == []


NOON, ONE, TWO = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (12, 13, 14))


DATED = SPEC.model_copy(update={"plan": "interval", "schedule": "@hourly", "max_records": 100})


@pytest.fixture
def dated(log):
    log.wanted = {NOON: {0: 5, 1: 7}, ONE: {0: 9, 1: 7}, TWO: {0: 30, 1: 20}}
    return log


def taken(begun) -> list[str]:
    return [str(r) for part in begun.slices for r in part.ranges]


@pytest.mark.invariant("I2")
def test_by_interval_a_run_plans_from_the_last_plan_to_the_end_of_its_interval(ledger, dated):
    assert taken(start(ledger, DATED, dated, "noon", interval_end=NOON)) == ["t-0[0,5)", "t-1[0,1)", "t-1[1,7)"]
    assert taken(start(ledger, DATED, dated, "one", interval_end=ONE)) == ["t-0[5,9)"]
    assert wants_another_run(ledger, DATED, dated.offsets, always_active) is None


def test_a_later_interval_takes_the_records_of_those_before_which_then_skip_and_say_so(ledger, dated):
    start(ledger, DATED, dated, "two", interval_end=TWO)
    skipped = begin(ledger, DATED, Run("dag", "noon"), dated.offsets, always_active, interval_end=NOON)
    assert isinstance(skipped, Skipped)
    assert "no records from before 2026-01-01 12:00:00 UTC wait in topic t: transaction 1 took" in skipped.message


def test_a_run_that_comes_too_late_for_its_interval_is_told_who_took_its_records(ledger, dated):
    start(ledger, DATED, dated, "noon", interval_end=NOON)
    start(ledger, DATED, dated, "two", interval_end=TWO)
    for ends, txid in ((NOON, 1), (ONE, 2)):
        late = begin(ledger, DATED, Run("dag", f"late for {ends}"), dated.offsets, always_active, interval_end=ends)
        assert isinstance(late, Skipped) and f"transaction {txid} took" in late.message


def test_by_interval_a_run_without_one_finishes_what_is_abandoned_and_plans_nothing(ledger, dated):
    skipped = begin(ledger, DATED, Run("dag", "by hand"), dated.offsets, always_active)
    assert skipped.reason == Skip.NO_INTERVAL and "without a data interval plans nothing" in skipped.message
    start(ledger, DATED, dated, "noon", interval_end=NOON)
    settle(ledger, DATED, Run("dag", "noon"), succeeded=False, reason="killed")
    assert start(ledger, DATED, dated, "by hand").how == "adopted"


def test_what_an_interval_wants_is_never_beyond_the_last_stable_offset(ledger, dated):
    dated.stable = {0: 3, 1: 0}
    assert taken(start(ledger, DATED, dated, "two", interval_end=TWO)) == ["t-0[0,3)"]
