"""Of those that send to a topic one goes on, and whoever was killed, stopped or left without an answer is fenced."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import pytest
from confluent_kafka import KafkaException

from ratchet.destinations import content, kafka_marks, kafka_outside
from ratchet.destinations.content import Change
from ratchet.destinations.kafka_producer import ProducerFenced, TransactionalProducer
from ratchet.destinations.port import Undecided
from ratchet.errors import DestinationUnreachable, LedgerUnreachable, SettingsError
from ratchet.ledger.connection import Ledger
from ratchet.protocol.commit import commit
from ratchet.protocol.follow import follow
from tests.ledger.destinations.following import Late, at_once

from .killed import POINTS


@pytest.mark.parametrize("point", [POINTS[1], *(pytest.param(each, marks=pytest.mark.all) for each in POINTS[::2])])
@pytest.mark.invariant("I1", "I6")
def test_whoever_comes_after_one_that_was_killed_ends_what_it_has_begun(sent, point, monkeypatch):
    monkeypatch.setattr(kafka_marks, "DECIDED_SECONDS", 0.3)
    sent.run("a")
    sent.only_commit("b")
    given = [sent.ledger.url, json.dumps(sent.properties), sent.topic, point]
    done = subprocess.run([sys.executable, "-m", "tests.kafka.killed", *given])
    assert done.returncode == -signal.SIGKILL
    left = [record for record in sent.records("read_uncommitted") if record.place[0] == 2]
    assert len(left) == 20 and len(sent.records()) == (40 if point == "behind the commit" else 20)
    follow(sent.ledger, sent.spec, sent.opens)
    sent.is_whole()
    again = [record for record in sent.records("read_uncommitted") if record.place[0] == 2]
    assert len(again) == (20 if point == "behind the commit" else 40)
    sent.run("c")
    sent.is_whole()


@pytest.mark.parametrize(
    ("number", "is_made"),
    [(1, False), (2, True), *(pytest.param(*each, marks=pytest.mark.all) for each in [(1, True), (2, False)])],
)
@pytest.mark.invariant("I1", "I6")
def test_a_commit_whose_answer_is_lost_is_found_out_by_the_mark(sent, monkeypatch, number, is_made):
    commits, real = [], TransactionalProducer.commit

    def lost(self) -> None:
        commits.append(1)
        if len(commits) != number or is_made:
            real(self)
        if len(commits) == number:
            raise DestinationUnreachable("for the test")

    monkeypatch.setattr(TransactionalProducer, "commit", lost)
    monkeypatch.setattr(kafka_marks, "DECIDED_SECONDS", 0.3)
    begun = sent.prepare("a")
    with pytest.raises(DestinationUnreachable, match="for the test"):
        sent.commit(begun)
    sent.commit(begun)
    sent.is_whole()
    # The first commit is that of the first mark.
    assert len(commits) == (2 if is_made else 3) and sent.mark["step"] == 1
    sent.run("b")
    sent.is_whole()


@pytest.mark.parametrize("has_producer", [pytest.param(True, marks=pytest.mark.all), False])
@pytest.mark.invariant("I1", "I6")
def test_a_follower_that_was_stopped_before_it_sends_changes_nothing_when_others_have_gone_on(sent, has_producer):
    # Whoever has made the first mark keeps its producer, which is fenced; any other one learns it by the mark.
    if not has_producer:
        sent.run("a")
    sent.only_commit("b")
    late = Late(sent.ledger, sent.spec, sent.opens)
    follow(sent.ledger, sent.spec, sent.opens)
    late.end()
    assert late.said == [False]
    sent.is_whole()
    sent.run("c")
    sent.is_whole()


@pytest.mark.parametrize("held_at", ["commit", *(pytest.param(at, marks=pytest.mark.all) for at in ("rows", "mark"))])
@pytest.mark.invariant("I1", "I6")
def test_a_follower_that_was_stopped_while_it_sends_loses_its_turn_and_is_fenced(sent, monkeypatch, held_at):
    monkeypatch.setattr(kafka_outside, "_SILENT_SECONDS", 6)
    monkeypatch.setattr(kafka_marks, "DECIDED_SECONDS", 0.3)
    # Amid its rows, as where a step has more of them than are read at a time.
    monkeypatch.setattr(content, "_AT_A_TIME", 5)
    sent.run("a")
    sent.only_commit("b")
    is_there, go_on, ended = threading.Event(), threading.Event(), []

    def hold() -> None:
        if threading.current_thread() is late:
            is_there.set()
            assert go_on.wait(60)

    of, name = (
        (Change, "selected") if held_at == "rows" else (TransactionalProducer, {"mark": "put"}.get(held_at, held_at))
    )
    real = getattr(of, name)

    def rows(self, columns):
        for number, row in enumerate(real(self, columns)):
            if number == 7:
                hold()
            yield row

    monkeypatch.setattr(of, name, rows if held_at == "rows" else lambda *given: (hold(), real(*given))[1])

    def go() -> None:
        try:
            with Ledger(sent.ledger.url) as own:
                follow(own, sent.spec, sent.opens)
        except LedgerUnreachable as error:
            ended.append(error)

    late = threading.Thread(target=go)
    late.start()
    assert is_there.wait(60)
    # For that one alone: whoever goes on may take longer on a machine that is busy.
    monkeypatch.setattr(kafka_outside, "_SILENT_SECONDS", 120)
    follow(sent.ledger, sent.spec, sent.opens)
    go_on.set()
    late.join(60)
    assert len(ended) == 1
    sent.is_whole()
    sent.run("c")
    sent.is_whole()


@pytest.mark.invariant("I1")
def test_many_that_go_on_at_once_send_each_row_once_and_wait_for_each_other(sent, monkeypatch):
    sent.run("0")
    begun = [sent.prepare(run) for run in "abcd"]
    fenced = []
    with pytest.raises(SettingsError):
        commit(sent.ledger, sent.spec, begun[0].claim)
    said = TransactionalProducer._said

    def counted(self, error) -> Exception:
        found = said(self, error)
        fenced.extend([found] if isinstance(found, ProducerFenced) else [])
        return found

    monkeypatch.setattr(TransactionalProducer, "_said", counted)

    failed = at_once(sent.ledger, sent.spec, sent.opens)
    sent.is_whole()
    assert sent.mark["step"] == 5 and failed == fenced == []


@pytest.mark.invariant("I1")
def test_of_many_that_start_at_once_one_makes_the_first_mark(sent):
    sent.only_commit("a")
    failed = at_once(sent.ledger, sent.spec, sent.opens)
    # Who was slower tries again.
    assert [error for error in failed if not isinstance(error, DestinationUnreachable)] == []
    follow(sent.ledger, sent.spec, sent.opens)
    sent.is_whole()


@pytest.mark.parametrize("held_at", ["rows", "commit"])
@pytest.mark.invariant("I1", "I6")
def test_whoever_only_looks_ends_nothing_that_another_has_begun(sent, monkeypatch, held_at):
    monkeypatch.setattr(kafka_marks, "DECIDED_SECONDS", 0.3)
    # Amid its rows, as where a step has more of them than are read at a time.
    monkeypatch.setattr(content, "_AT_A_TIME", 5)
    sent.run("a")
    sent.only_commit("b")
    is_there, go_on, ended = threading.Event(), threading.Event(), []
    real = {"rows": Change.selected, "commit": TransactionalProducer.commit}[held_at]

    def held(*given):
        if threading.current_thread() is sending:
            is_there.set()
            assert go_on.wait(60)
        return real(*given)

    monkeypatch.setattr(*((Change, "selected") if held_at == "rows" else (TransactionalProducer, "commit")), held)

    def go() -> None:
        with Ledger(sent.ledger.url) as own:
            ended.extend(follow(own, sent.spec, sent.opens))

    sending = threading.Thread(target=go)
    sending.start()
    assert is_there.wait(60)
    if held_at == "rows":
        # Nothing has come to the marks yet.
        assert sent.look().step == 1
    else:
        with pytest.raises(Undecided):
            sent.look()
    go_on.set()
    sending.join(60)
    assert ended == [f"{sent.destination.address} is at step 2, 1 further"] and sent.look().step == 2
    sent.is_whole()


class Silenced:
    """A client that hears of its end as librdkafka's does now and then: without any word of why."""

    def __init__(self, client):
        self._client, self.silent = client, 0

    def flush(self, seconds: float) -> int:
        try:
            return self._client.flush(seconds)
        except (KafkaException, SystemError):
            self.silent += 1
            raise SystemError("returned NULL without setting an exception") from None

    def __getattr__(self, name: str):
        return getattr(self._client, name)


@pytest.mark.invariant("I6")
def test_a_fence_of_which_the_client_says_nothing_is_told_as_one(sent):
    earlier, later = (
        TransactionalProducer(sent.properties, f"id-{sent.topic}", "here", sent.topic, 1_000_000) for _ in range(2)
    )
    earlier._producer = client = Silenced(earlier._producer)
    earlier.begin()
    with pytest.raises(ProducerFenced):
        earlier.put(sent.topic, b"late", b"k")
    assert client.silent == 1
    later.begin()
    later.put(sent.topic, b"sent", b"k")
    later.commit()
    assert [record.value for record in sent.records()] == [b"sent"]
    # What has nothing to do with Kafka is no fence and no outage, and nothing of its transaction is seen.
    later.begin()
    later.put(sent.topic, b"unseen", b"k")
    with pytest.raises(SystemError, match="of Python"), later._told():
        raise SystemError("of Python")
    assert [record.value for record in sent.records()] == [b"sent"]
    # Now it has nothing to abort.
    with pytest.raises(SystemError, match="of Python"), later._told():
        raise SystemError("of Python")
    for each in (earlier, later):
        each.close()
