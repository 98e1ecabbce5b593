"""Airflow's own backfill, of a pipeline whose runs take the records of their intervals."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.until import until

from .line import Line

pytestmark = pytest.mark.timeout(400)


def month(number: int) -> datetime:
    return datetime(2025, number, 1, tzinfo=UTC)


@pytest.fixture
def quiet(monthly: Line) -> Line:
    """The line after the one run that Airflow makes of the latest month when it meets the DAG."""
    until("the scheduled run has ended", lambda: monthly.runs("scheduled") and not monthly.active(), 120)
    return monthly


def publish(line: Line, months: range) -> None:
    """Ten records a month, the number of the month more in each."""
    for number in months:
        line.publish(10 + number, at=month(number) + timedelta(days=9))


@pytest.mark.all
@pytest.mark.invariant("I7")
def test_a_backfill_plans_each_run_to_its_intervals_end_and_once_more_revises_them(quiet: Line):
    publish(quiet, range(1, 4))
    first = quiet.head() + 1
    quiet.backfill(month(1), month(3))
    runs = quiet.runs("backfill")
    assert [quiet.transaction(run).txid for run in runs] == list(range(first, first + 3))
    sizes = [until_ - from_ for from_, until_ in (quiet.range(first + n) for n in range(3))]
    assert sizes == [11, 12, 13]
    before = [quiet.rows(first + n) for n in range(3)]
    quiet.is_whole()
    # The same dates once more, with another transform: these runs become revisions.
    quiet.multiply(2)
    quiet.backfill(month(1), month(3), reprocess="completed")
    assert quiet.runs("backfill") == runs
    # One at a time; those that had to wait are done by runs that follow.
    revised = [["COMMITTED", "COMMITTED"]] * 3
    until("all are revised", lambda: [quiet.states_of(first + n) for n in range(3)] == revised, 180)
    for n, rows in enumerate(before):
        assert quiet.rows(first + n) == [row._replace(v=row.v * 2) for row in rows]
    assert quiet.head() == first + 2
    quiet.is_whole()


def test_a_later_interval_that_began_first_took_the_earlier_ones_and_they_name_it(quiet: Line):
    publish(quiet, range(4, 7))
    first = quiet.head() + 1
    quiet.backfill(month(4), month(6), backwards=True)
    *earlier, last = quiet.runs("backfill")[-3:]
    assert quiet.transaction(last).txid == first == quiet.head()
    assert len(quiet.rows(first)) == 14 + 15 + 16
    for run in earlier:
        assert quiet.transaction(run) is None and set(quiet.states(run).values()) == {"skipped"}
        assert f"transaction {first} took the last of them" in quiet.log(run, "begin")
    quiet.is_whole()


def test_a_run_without_an_interval_plans_nothing_and_finishes_what_is_abandoned(quiet: Line):
    publish(quiet, range(7, 8))
    run = quiet.trigger()
    assert quiet.ended(run) == "success" and quiet.transaction(run) is None
    assert "a run without a data interval plans nothing" in quiet.log(run, "begin")
    quiet.fail(True)
    quiet.backfill(month(7), month(7))
    (lost,) = quiet.runs("backfill")[-1:]
    assert quiet.transaction(lost).state == "OPEN"
    quiet.fail(False)
    other = quiet.trigger()
    assert quiet.ended(other) == "success"
    assert quiet.transaction(other).txid == quiet.transaction(lost).txid == quiet.head()
    quiet.is_whole()
