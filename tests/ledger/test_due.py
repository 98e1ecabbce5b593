"""Runs that a schedule or a person starts, and those that follow: what had arrived is taken, and no more."""

from __future__ import annotations

import pytest

from ratchet import Arrivals
from ratchet.errors import Halted, RecordsLost, TopicChanged
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss, retry
from ratchet.protocol.another import waiting_records, wants_another_run
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit

from .staging import PLAIN, SPEC, Log, always_active, prepare, start


def taken(begun) -> list[str]:
    return [str(r) for part in begun.slices for r in part.ranges]


def waits(ledger, log, spec=SPEC) -> int:
    wanted = wants_another_run(ledger, spec, log.offsets, always_active)
    return wanted.records if wanted else 0


def finish(ledger, begun) -> None:
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)


@pytest.fixture
def log():
    return Log(beginning={0: 0}, stable={0: 50})


@pytest.mark.invariant("I2")
def test_runs_that_follow_take_what_was_there_when_it_was_asked_for(ledger, log):
    assert taken(start(ledger, PLAIN, log, "two o'clock")) == ["t-0[0,10)", "t-0[10,20)"]
    log.stable = {0: 75, 1: 30}
    log.beginning = {0: 0, 1: 0}
    assert waits(ledger, log, PLAIN) == 30
    assert taken(start(ledger, PLAIN, log, "next_1", drains=True)) == ["t-0[20,30)", "t-0[30,40)"]
    assert taken(start(ledger, PLAIN, log, "next_2", drains=True)) == ["t-0[40,50)"]
    assert waits(ledger, log, PLAIN) == 0, "what came later, and another partition, was not asked for"
    skipped = begin(ledger, PLAIN, Run("dag", "next_3"), log.offsets, always_active, drains=True)
    assert isinstance(skipped, Skipped) and skipped.reason is Skip.NO_RECORDS
    assert "all that a schedule or a person has asked for is taken; what has come since waits" in skipped.message
    begun = start(ledger, PLAIN, log, "the next day")
    assert sum(len(part) for part in begun.slices) == 20 and waits(ledger, log, PLAIN) == 0, "four are in flight"
    for run in ("two o'clock", "next_1"):
        settle(ledger, PLAIN, Run("dag", run), succeeded=False)
    assert "abandoned" in wants_another_run(ledger, PLAIN, log.offsets, always_active).message
    # Repeated by Airflow it is the same transaction, whatever has come.
    log.stable = {0: 99, 1: 99}
    assert taken(start(ledger, PLAIN, log, "the next day")) == taken(begun)


def test_a_run_that_is_skipped_since_others_are_in_flight_has_asked(ledger, log):
    log.stable = {0: 80}
    begun = [start(ledger, SPEC, log, run) for run in "abcd"]
    log.stable = {0: 95}
    skipped = begin(ledger, SPEC, Run("dag", "more_1"), log.offsets, always_active, drains=True)
    assert skipped.reason is Skip.MAX_IN_FLIGHT
    for each in begun:
        finish(ledger, each)
    assert waits(ledger, log) == 0
    for run in "efgh":
        start(ledger, SPEC.model_copy(update={"max_records": 1}), log, run)
    log.stable = {0: 97}
    assert begin(ledger, SPEC, Run("dag", "i"), log.offsets, always_active).reason is Skip.MAX_IN_FLIGHT
    more = SPEC.model_copy(update={"max_in_flight": 5})
    assert waits(ledger, log, more) == 13


def test_a_run_that_adopts_has_asked(ledger, log):
    log.stable = {0: 20}
    start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False)
    log.stable = {0: 35}
    assert start(ledger, SPEC, log, "next_1", drains=True).how == "adopted"
    assert waits(ledger, log) == 0
    settle(ledger, SPEC, Run("dag", "next_1"), succeeded=False)
    assert start(ledger, SPEC, log, "b").how == "adopted"
    assert waits(ledger, log) == 15


def test_where_records_start_runs_all_are_due_from_the_first_on(ledger, log):
    arrivals = SPEC.model_copy(update={"runs": Arrivals()})
    assert waiting_records(ledger, SPEC, log.offsets) is None, "nobody has asked for a run yet"
    assert waiting_records(ledger, arrivals, log.offsets).records == 50
    start(ledger, arrivals, log, "a", drains=True)
    log.stable = {0: 60}
    assert waits(ledger, log, arrivals) == 40
    assert taken(start(ledger, arrivals, log, "b", drains=True)) == ["t-0[20,30)", "t-0[30,40)"]
    assert waits(ledger, log, SPEC) == 0, "a spec that was changed begins with nothing asked for"


def test_whoever_accepts_that_a_topic_was_made_again_has_asked_for_its_records(ledger, log):
    finish(ledger, start(ledger, SPEC, log, "a"))
    made_again = Log(topic_id="second", beginning={0: 0}, stable={0: 7})
    accept_loss(ledger, SPEC, made_again.offsets, "made again", "somebody")
    assert waits(ledger, made_again) == 7
    made_again.stable = {0: 9}
    assert taken(start(ledger, SPEC, made_again, "next_1", drains=True)) == ["t-0[0,7)"]


def test_a_run_that_meets_lost_records_has_asked_once_they_are_accepted(ledger, log):
    finish(ledger, start(ledger, SPEC, log, "a"))
    log.stable, log.beginning = {0: 60}, {0: 30}
    with pytest.raises(RecordsLost):
        begin(ledger, SPEC, Run("dag", "b"), log.offsets, always_active)
    accept_loss(ledger, SPEC, log.offsets, "lost", "somebody")
    assert waits(ledger, log) == 30


def test_what_a_kafka_transaction_holds_back_is_due_once_it_is_decided(ledger, log):
    log.stable, log.end = {0: 20}, {0: 60}
    assert taken(start(ledger, SPEC, log, "a")) == ["t-0[0,10)", "t-0[10,20)"]
    assert waits(ledger, log) == 0
    log.stable, log.end = {0: 70}, {0: 70}
    assert waits(ledger, log) == 40


def test_a_run_that_meets_a_halt_has_asked(ledger, log):
    log.stable = {0: 10}
    for run in "abc":
        start(ledger, SPEC, log, run)
        settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="no")
    log.stable = {0: 25}
    with pytest.raises(Halted):
        begin(ledger, SPEC, Run("dag", "two o'clock"), log.offsets, always_active)
    retry(ledger, SPEC, None, "somebody")
    finish(ledger, start(ledger, SPEC, log, "maintenance", drains=True))
    assert waits(ledger, log) == 15


def test_a_run_whose_begin_is_killed_after_it_has_adopted_asks_when_it_is_repeated(ledger, log):
    log.stable = {0: 20}
    start(ledger, SPEC, log, "a")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False)
    log.stable = {0: 35}

    def killed(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin(ledger, SPEC, Run("dag", "b"), killed, always_active)
    assert start(ledger, SPEC, log, "b").how == "resumed"
    assert waits(ledger, log) == 15


def test_a_stale_answer_of_kafka_makes_nothing_due_in_another_log(ledger, log):
    log.stable = {0: 200}
    for run in "abcd":
        start(ledger, SPEC, log, run)
    made_again = Log(topic_id="second", beginning={0: 0}, stable={0: 3})
    answers = [log.offsets, made_again.offsets]

    def ask(*given):
        answer = answers.pop(0)(*given) if len(answers) > 1 else answers[0](*given)
        if answer.topics.ids["t"] == "first":
            accept_loss(ledger, SPEC, made_again.offsets, "made again", "somebody")
        return answer

    with pytest.raises(TopicChanged):
        begin(ledger, SPEC, Run("dag", "e"), ask, always_active)
    with ledger.begin() as conn:
        assert read_line(conn, "line").due == {"0": 3}
