"""Watching topics in a triggerer's loop: which records are a reason for a run, on real servers; Airflow is not here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from uuid import uuid4

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from ratchet import Append, Arrivals, Json, Pipeline, Topic
from ratchet.airflow import watching
from ratchet.airflow.arrivals import arrivals_of
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.operate.pauses import pause_at, resume
from ratchet.protocol.arrivals import FIRST_SECONDS
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skipped
from ratchet.source.kafka import Kafka
from tests.kafka.driven import Driven, send
from tests.ledger.staging import always_active

SECONDS = 20


class Rig(Driven):
    """Pipelines, their topics, and what Airflow would be told of them."""

    def __init__(self, ledger: Ledger, client: Kafka, properties: dict[str, str]):
        super().__init__(ledger, client, properties)
        self.coming: dict[str, int] = {}
        self.fired: dict[str, list[str]] = {}
        self.kafka: Callable[[], dict[str, str]] = lambda: properties
        self.url: Callable[[], str] = lambda: ledger.url

    def pipeline(self, name: str, *, made: bool = True, begin: str = "earliest", **given) -> Pipeline:
        given = {"runs": Arrivals()} | given
        source = Topic(f"{name}-{uuid4().hex[:8]}", value=Json("a bigint"), begin=begin)
        spec = Pipeline(name=name, source=source, sinks=[Append(f"rows_{name}", columns="a bigint")], **given)
        if made:
            self.make(spec)
        migrate(self.ledger.url, [spec])
        return spec

    def make(self, spec: Pipeline) -> None:
        new = {spec.source.name: {"num_partitions": 2, "replication_factor": 1}}
        self.client.admin.create_topics(new, wait_for_metadata=True)

    def send(self, spec: Pipeline, records: int) -> None:
        send(self.properties, spec.source.name, records, partitions=2)

    async def watched(self, *specs: Pipeline) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._watch(spec)) for spec in specs]

    async def _watch(self, spec: Pipeline) -> None:
        assert spec.runs is not None
        (watcher,) = arrivals_of(spec, spec.runs).watchers
        _, arguments = watcher.trigger.serialize()
        async for event in type(watcher.trigger)(**arguments).run():
            self.fired.setdefault(spec.name, []).append(event.payload["why"])

    async def until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.fired}"
            await asyncio.sleep(0.05)

    async def looks(self, times: int = 3) -> None:
        """Wait until so many looks have been taken from here on."""
        before = self.looked
        await self.until("it looks", lambda: self.looked >= before + times)

    looked = 0


@pytest.fixture
def rig(ledger_url, kafka_properties, monkeypatch) -> Iterator[Rig]:
    with Kafka(kafka_properties) as client, Ledger(ledger_url) as ledger:
        made = Rig(ledger, client, kafka_properties)
        monkeypatch.setattr(watching.connections, "ledger_url", lambda _: made.url())
        monkeypatch.setattr(watching.connections, "kafka_properties", lambda _: made.kafka())
        monkeypatch.setattr(watching, "begins_to_come", lambda name: made.coming.get(name, 0))
        monkeypatch.setattr(watching, "LOOK_SECONDS", 0.1)
        look = watching._Look.look

        def counted(self, watches):
            found = look(self, watches)
            made.looked += 1
            return found

        monkeypatch.setattr(watching._Look, "look", counted)
        yield made


@contextmanager
def ended(tasks: list[asyncio.Task[None]]) -> Iterator[None]:
    """The watches end with the block; one that has ended by itself fails it."""
    try:
        yield
        for task in tasks:
            assert not task.done(), task.exception()
    finally:
        for task in tasks:
            task.cancel()


def test_each_pipeline_is_told_of_its_own_records_once_and_of_no_others(rig: Rig):
    at_once, many = rig.pipeline("at_once"), rig.pipeline("many", runs=Arrivals(min_records=10))
    idle, later = rig.pipeline("idle"), rig.pipeline("later", made=False)

    async def scenario() -> None:
        tasks = await rig.watched(at_once, many, idle, later)
        with ended(tasks):
            await rig.looks()
            assert len(watching._OF) == 1 and rig.fired == {}
            rig.send(at_once, 3)
            rig.send(many, 9)
            await rig.until("it is told", lambda: "at_once" in rig.fired)
            rig.make(later)
            rig.send(later, 2)
            rig.send(many, 1)
            await rig.until("both are told", lambda: {"later", "many"} <= rig.fired.keys())
            await rig.looks(5)
            told = {"at_once": ["3 records wait"], "many": ["10 records wait"], "later": ["2 records wait"]}
            assert rig.fired == told
        await asyncio.gather(*tasks, return_exceptions=True)
        await rig.until("nobody watches", lambda: not watching._OF)

    with capture_logs() as lines:
        asyncio.run(scenario())
    said = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert len(said) == 1 and f"topic {later.source.name!r} is not there" in said[0]


def test_a_line_that_begins_at_the_ends_is_begun_before_its_first_records_come(rig: Rig):
    """They would be no part of it, if the first run began only because of them."""
    spec = rig.pipeline("late", begin="latest", runs=Arrivals(min_records=5))
    rig.send(spec, 3)

    async def scenario() -> None:
        tasks = await rig.watched(spec)
        with ended(tasks):
            await rig.until("it is told", lambda: "late" in rig.fired)
            await rig.looks(3)
            assert rig.fired == {"late": ["the line begins with this run, at the last stable offsets"]}
            offsets = partial(rig.client.offsets, spec.source.name)
            assert isinstance(begin(rig.ledger, spec, Run("late", "a"), offsets, always_active), Skipped)
            rig.send(spec, 4)
            await rig.looks(3)
            assert len(rig.fired["late"]) == 1
            rig.send(spec, 1)
            await rig.until("its records are told", lambda: len(rig.fired["late"]) == 2)
            assert rig.fired["late"][1] == "5 records wait"
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


def test_no_run_is_asked_for_that_would_find_nothing(rig: Rig):
    spec = rig.pipeline("busy", max_records=4, slice_records=4, max_in_flight=2)
    rig.send(spec, 10)

    async def scenario() -> None:
        rig.coming = {"busy": 1}
        tasks = await rig.watched(spec)
        with ended(tasks):
            await rig.looks()
            assert rig.fired == {}, "a run is about to begin"
            rig.coming = {}
            await rig.until("it is told", lambda: len(rig.fired.get("busy", [])) == 1)
            first = rig.begin(spec, "first")
            await rig.until("six are left", lambda: rig.fired["busy"][1:] == ["6 records wait"])
            second = rig.begin(spec, "second")
            await rig.looks()
            assert len(rig.fired["busy"]) == 2, "so many are in flight as may be"
            rig.finish(spec, first, "first")
            await rig.until("two are left", lambda: rig.fired["busy"][2:] == ["2 records wait"])
            third = rig.begin(spec, "third")
            rig.finish(spec, second, "second")
            rig.finish(spec, third, "third")
            await rig.looks(5)
            assert len(rig.fired["busy"]) == 3, "all is taken"
            # Where the next one is halted, none is asked for, and after the retry one is.
            rig.send(spec, 4)
            await rig.until("it is told", lambda: len(rig.fired["busy"]) == 4)
            rig.begin(spec, "halted")
            with rig.ledger.begin() as conn:
                conn.execute(text("update ratchet.transactions set halted_at = now() where txid = 4"))
            rig.send(spec, 1)
            await rig.looks(5)
            assert len(rig.fired["busy"]) == 4
            with rig.ledger.begin() as conn:
                conn.execute(text("update ratchet.transactions set halted_at = null where txid = 4"))
            await rig.until("it is told", lambda: rig.fired["busy"][4:] == ["1 record waits"])
            # Where a person has paused it, none is asked for, and one that was asked for and skipped is, at once after.
            pause_at(rig.ledger, spec, None, "why", "me")
            await rig.looks(5)
            assert len(rig.fired["busy"]) == 5
            resumed = time.monotonic()
            resume(rig.ledger, spec, "why", "me")
            await rig.until("it is told", lambda: rig.fired["busy"][5:] == ["1 record waits"])
            assert time.monotonic() - resumed < FIRST_SECONDS

    asyncio.run(scenario())


@pytest.mark.parametrize("lost", ["kafka", "ledger"])
def test_a_server_that_is_lost_is_said_once_and_the_watch_goes_on_when_it_is_there(rig: Rig, lost: str, monkeypatch):
    monkeypatch.setattr("ratchet.source.client.TIMEOUT_MS", 200)
    monkeypatch.setattr(watching, "MOST_SECONDS", 0.2)
    spec = rig.pipeline("shaken")
    failed = 0

    def away(*_: object):
        nonlocal failed
        failed += 1
        return {"bootstrap.servers": "127.0.0.1:1"} if lost == "kafka" else "postgresql://127.0.0.1:1/none"

    async def scenario() -> None:
        there = rig.kafka, rig.url
        if lost == "kafka":
            rig.kafka = away
        else:
            rig.url = away
        rig.send(spec, 2)
        tasks = await rig.watched(spec)
        with ended(tasks):
            await rig.until("it was tried again", lambda: failed > 2)
            rig.kafka, rig.url = there
            await rig.until("it is told", lambda: "shaken" in rig.fired)
            assert rig.fired == {"shaken": ["2 records wait"]}

    with capture_logs() as lines:
        asyncio.run(scenario())
    said = [line["event"] for line in lines]
    assert sum("1 pipeline is not watched, tries again: " in line for line in said) == 1
    assert sum("the servers answer again" in line for line in said) == 1
