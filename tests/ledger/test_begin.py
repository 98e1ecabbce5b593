"""Begin against a real PostgreSQL, without Kafka and Spark: what is planned, and what is not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text

from ratchet.errors import NotMigrated, RecordsLost, SpecError, TopicChanged
from ratchet.ledger.schema import transactions
from ratchet.ledger.work import Run
from ratchet.protocol import sources
from ratchet.protocol.another import wants_another_run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.source.interval import Ahead
from ratchet.source.offsets import KnownLogs, TopicOffsets, Undecided

from .staging import (
    PLAIN,
    SPEC,
    always_active,
    planned,
    start,
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
    first = start(ledger, PLAIN, log, "a")
    log.beginning[7], log.stable[7] = 0, 9
    second = start(ledger, PLAIN, log, "b")
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
    start(ledger, PLAIN, log, "a")
    log.stable = {0: 12, 1: 10}
    answers = []

    def meanwhile(*asked) -> TopicOffsets:
        answers.append(log.offsets(*asked))
        if len(answers) == 1:
            log.stable, log.beginning = later, dict.fromkeys(later, 0)
            start(ledger, PLAIN, log, "b")
            log.stable = {p: until + 1 for p, until in later.items()}
        return answers[-1]

    begun = begin(ledger, PLAIN, Run("dag", "c"), meanwhile, always_active)
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

    def meanwhile(before: datetime | None, known: KnownLogs) -> TopicOffsets:
        asked.append(known.lineages)
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


def test_a_target_that_no_longer_fits_is_named_before_anything_is_begun(ledger, log):
    with ledger.begin() as conn:
        conn.execute(text("alter table rows rename column a to b"))
    with pytest.raises(NotMigrated, match="sink 'rows': column .*rows.a does not exist; nothing was begun"):
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


def test_how_late_a_record_may_be_is_by_the_ledgers_clock_and_looked_for_from_where_plans_end(ledger, dated):
    spec = DATED.model_copy(update={"max_future": timedelta(hours=3)})
    dated.ahead = {0: Ahead(3, 4_070_908_800_000, 1)}
    begun = start(ledger, spec, dated, "noon", interval_end=NOON)
    assert "allocated; the record at offset 3 of t-0 is stamped 2099-01-01 00:00:00 UTC: more" in begun.message
    with ledger.begin() as conn:
        now = conn.execute(text("select clock_timestamp()")).scalar_one()
    start(ledger, spec, dated, "one", interval_end=ONE, max_records=3)
    first, second = dated.asked
    assert (first.at, first.starts, first.most) == (NOON, {}, 100)
    assert (second.at, second.starts, second.most) == (ONE, {0: 5, 1: 7}, 3)
    assert first.latest <= now + timedelta(hours=3) <= second.latest < now + timedelta(hours=3, minutes=1)


def test_where_another_run_plans_meanwhile_the_end_of_the_interval_is_looked_for_again(ledger, dated):
    """It was looked for from where plans ended, as far as one plan takes: behind that are records of it too."""

    def offsets(before=None, known=None):
        if not dated.asked:
            said = dated.offsets(before, known)
            start(ledger, DATED, dated, "another", interval_end=NOON)
            return replace(said, wanted={0: 4, 1: 7})
        return dated.offsets(before, known)

    begun = begin(ledger, DATED, Run("dag", "one"), offsets, always_active, interval_end=ONE)
    assert taken(begun) == ["t-0[5,9)"]
    assert [asked.starts for asked in dated.asked] == [{}, {}, {0: 5, 1: 7}]
