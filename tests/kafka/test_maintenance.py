"""One pass of maintenance over many pipelines: what each needs is done for it, and what fails for one is its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from uuid import uuid4

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import text
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from ratchet import Append, Arrivals, Json, Pipeline, Topic, Upsert
from ratchet.airflow import maintenance
from ratchet.airflow.maintenance import Pass, UpkeepOperator
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import lock_pipeline
from ratchet.ledger.work import Run
from ratchet.operate import attention
from ratchet.operate.migrate import migrate
from ratchet.operate.pauses import pause_at, resume
from ratchet.operate.replay import ask
from ratchet.protocol import due
from ratchet.protocol.begin import begin
from ratchet.source.kafka import Kafka
from tests.kafka.driven import Driven, send


@dataclass
class Airflow:
    """What Airflow's supervisor says of runs; the acceptance tests have a real one."""

    queued: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    """Of these a run is there whose begin is not about to decide, as one for tomorrow or of a DAG that is paused."""
    paused: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    asked: int = 0

    def get_dr_count(self, dag_id: str, states: list[str]) -> int:
        self.asked += 1
        return dag_id in self.running

    def begins_to_come(self, pipeline: str, *, soon: bool = False) -> int:
        self.asked += 1
        return pipeline in self.queued or (not soon and pipeline in self.later)

    def is_paused(self, pipeline: str) -> bool:
        return pipeline in self.paused

    def get_dagrun_state(self, dag_id: str, run_id: str) -> str:
        self.asked += 1
        return "failed"


@dataclass
class Rig(Driven):
    airflow: Airflow
    started: list[tuple[str, str]]

    def pipeline(self, name: str, records: int = 0, *, made: bool = True, **given) -> Pipeline:
        """A spec whose topic has so many records in the first of two partitions."""
        topic = f"{name}-{uuid4().hex[:8]}"
        if made:
            new = {topic: {"num_partitions": 2, "replication_factor": 1}}
            self.client.admin.create_topics(new, wait_for_metadata=True)
            send(self.properties, topic, records)
        sinks = [Append(f"rows_{name}", columns="a bigint")]
        return Pipeline(name=name, source=Topic(topic, value=Json("a bigint")), sinks=sinks, **given)

    def committed(self, spec: Pipeline, run: str = "first") -> None:
        self.finish(spec, self.begin(spec, run), run)

    def asked(self, spec: Pipeline, records: int = 4) -> None:
        """So many records come, and a person asks for them; the run is lost before it begins anything."""
        send(self.properties, spec.source.name, records)
        assert due.ask_besides(self.ledger, spec, partial(self.client.offsets, spec.source.name)) is None

    def maintain(self, *specs: Pipeline) -> tuple[dict[str, str], list[str]]:
        """One pass: {pipeline: what failed}, and {pipeline}: {line} of what was said."""
        with capture_logs([merge_contextvars]) as lines:
            done = Pass({"ti": self.airflow, "dag_run": SimpleNamespace(dag_id="m", run_id="now", clear_number=0)})
            done.run("ledger", list(specs))
        return done.failed, [f"{line.get('pipeline')}: {line['event']}" for line in lines]

    def mirrored(self, spec: Pipeline) -> dict[int, int]:
        return {p: at for (_, p), at in self.client.mirrored(f"ratchet-{spec.name}", spec.source.names).items()}


@pytest.fixture
def rig(ledger_url, kafka_properties, monkeypatch):
    airflow, started = Airflow(), []
    monkeypatch.setattr(maintenance.connections, "ledger_url", lambda _: ledger_url)
    monkeypatch.setattr(maintenance.connections, "kafka_properties", lambda _: kafka_properties)
    monkeypatch.setattr(maintenance, "start_run", lambda name, run_id, why: started.append((name, run_id)))
    monkeypatch.setattr(maintenance, "begins_to_come", airflow.begins_to_come)
    monkeypatch.setattr(maintenance, "is_paused", airflow.is_paused)
    with Kafka(kafka_properties) as client, Ledger(ledger_url) as ledger:
        yield Rig(ledger, client, kafka_properties, airflow, started)


def test_what_each_of_many_pipelines_needs_is_done_and_what_fails_for_one_holds_up_no_other(rig):
    waiting, idle, new = rig.pipeline("waiting", 3), rig.pipeline("idle", 2), rig.pipeline("new", 1)
    lost, busy, queued = rig.pipeline("lost", 2), rig.pipeline("busy", 2), rig.pipeline("queued", 2)
    nowhere, gone = rig.pipeline("nowhere", made=False), rig.pipeline("gone", 2)
    dated, arriving = rig.pipeline("dated", 2), rig.pipeline("arriving", 2, runs=Arrivals())
    specs = [waiting, idle, new, lost, busy, queued, nowhere, gone, dated, arriving]
    migrate(rig.ledger.url, specs)
    for spec in (waiting, idle, busy, queued, gone, dated, arriving):
        rig.committed(spec)
    for spec in (waiting, busy, queued, gone):
        rig.asked(spec)
    for spec in (dated, arriving):
        send(rig.properties, spec.source.name, 4)
    rig.begin(lost, "away")
    with rig.ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set lease_until = now() where pipeline = 'lost'"))
    rig.client.admin.delete_topics([gone.source.name])
    rig.airflow.running, rig.airflow.queued = {"busy"}, {"queued"}
    failed, said = rig.maintain(*specs)
    # Nobody has asked for what came to `dated` and `new`, and what came to `arriving` is the triggerer's to look for.
    assert sorted(name for name, _ in rig.started) == ["lost", "waiting"]
    assert all(run_id.startswith("maintenance_") for _, run_id in rig.started)
    assert list(failed) == ["gone"] and "there is no topic" in failed["gone"]
    for spec in (waiting, idle, busy, queued, dated, arriving):
        assert rig.mirrored(spec)[0] in (2, 3), spec.name
    assert rig.mirrored(lost) == {0: 0, 1: 0} or rig.mirrored(lost) == {}
    lines = "\n".join(said)
    assert "lost: transaction 1: run away was lost, its claim is ended" in lines
    assert "queued: no run is due, as one is about to begin: 4 records wait" in lines
    assert "nowhere: " not in lines and "idle: starts" not in lines


def test_a_run_that_is_for_tomorrow_stops_nobody_and_where_none_begins_one_is_enough(rig):
    spec = rig.pipeline("later", 2)
    migrate(rig.ledger.url, [spec])
    rig.committed(spec)
    rig.asked(spec)
    rig.airflow.later = {"later"}
    rig.airflow.paused = {"later"}
    rig.maintain(spec)
    assert rig.started == []
    rig.airflow.paused.clear()
    for _ in range(3):
        rig.maintain(spec)
    assert len(rig.started) == 3 and len(set(rig.started)) == 1, "Airflow has one run of an id"
    rig.committed(spec, "second")
    rig.asked(spec)
    rig.maintain(spec)
    assert len(set(rig.started)) == 2, "the line has moved"


def test_no_run_is_started_of_a_line_that_is_paused_and_one_is_when_it_goes_on(rig):
    waiting, lost, replayed = rig.pipeline("waiting", 3), rig.pipeline("lost", 2), rig.pipeline("replayed", 2)
    specs = [waiting, lost, replayed]
    migrate(rig.ledger.url, specs)
    for spec in specs:
        rig.committed(spec)
        rig.asked(spec)
    rig.begin(lost, "away")
    for spec in specs:
        pause_at(rig.ledger, spec, 1, "why", "me")
    with rig.ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set claim_ended = true where pipeline = 'lost'"))
    ask(rig.ledger, replayed, 1, 1, "why", "me")
    failed, _ = rig.maintain(*specs)
    # A revision is no later transaction.
    assert (failed, [name for name, _ in rig.started]) == ({}, ["replayed"])
    rig.started.clear()
    for spec in (waiting, lost):
        resume(rig.ledger, spec, "why", "me")
    rig.maintain(waiting, lost)
    assert sorted(name for name, _ in rig.started) == ["lost", "waiting"]


def test_of_pipelines_that_are_idle_airflow_is_asked_nothing_and_kafka_once(rig, monkeypatch):
    specs = [rig.pipeline(f"idle_{n}", 2) for n in range(4)]
    migrate(rig.ledger.url, specs)
    for spec in specs:
        rig.committed(spec)
    rig.maintain(*specs)
    rig.started.clear()
    rig.airflow.asked = 0
    asked: list[str] = []
    for name in ("offsets", "mirrored", "mirror", "ids"):
        inner = getattr(Kafka, name)
        monkeypatch.setattr(Kafka, name, partial(_counted, asked, name, inner))
    failed, said = rig.maintain(*specs)
    assert (failed, said, rig.started, rig.airflow.asked, asked) == ({}, [], [], 0, [])


def _counted(asked: list[str], name: str, inner: Callable, *given):
    asked.append(name)
    return inner(*given)


def test_a_compacted_topic_is_looked_at_where_no_run_begins(rig):
    topic = f"quiet-{uuid4().hex[:8]}"
    made = {"num_partitions": 1, "replication_factor": 1, "configs": {"cleanup.policy": "compact"}}
    rig.client.admin.create_topics({topic: made}, wait_for_metadata=True)
    spec = Pipeline(
        name="quiet",
        source=Topic(topic, key="k string", value=Json("a bigint"), tombstones="delete", compacted=True),
        sinks=[Upsert("quiet", key="k string", columns="a bigint")],
    )
    migrate(rig.ledger.url, [spec])
    begin(rig.ledger, spec, Run(spec.name, "first"), partial(rig.client.offsets, spec.source), lambda *_: True)
    three_hours_ago = text(
        "update ratchet.sources set looks = "
        "jsonb_set(looks, '{0,at}', to_jsonb((looks->0->>'at')::timestamptz - interval '3 hours'))"
    )

    def looks() -> list[str]:
        with rig.ledger.begin() as conn:
            return conn.execute(
                text("select jsonb_path_query_array(looks, '$[*].at') from ratchet.sources")
            ).scalar_one()

    before = looks()
    with rig.ledger.begin() as conn:
        conn.execute(three_hours_ago)
    assert rig.maintain(spec)[0] == {}
    assert len(looks()) == 1 and looks() > before


def test_a_line_that_somebody_has_locked_is_left_to_the_next_minute(rig, monkeypatch):
    monkeypatch.setattr(maintenance, "LOCK_SECONDS", 0.1)
    specs = [rig.pipeline(name, 1) for name in ("held", "free")]
    migrate(rig.ledger.url, specs)
    for spec in specs:
        rig.begin(spec, "away")
    with rig.ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set lease_until = now()"))
    with psycopg.connect(rig.ledger.url) as holder:
        holder.execute("select from ratchet.pipelines where pipeline = 'held' for update")
        failed, said = rig.maintain(*specs)
    assert (failed, [name for name, _ in rig.started]) == ({}, ["free"])
    assert "held: somebody is at work on this line and has it locked; the next minute goes on" in said
    rig.maintain(*specs)
    assert "held" in [name for name, _ in rig.started]


def test_no_line_is_locked_while_it_is_asked_what_all_need(rig, monkeypatch):
    spec = rig.pipeline("asked", 1)
    migrate(rig.ledger.url, [spec])
    rig.begin(spec, "away")
    asks, locked = attention.in_need, []

    def in_need(*given):
        with Ledger(rig.ledger.url, lock_seconds=0.1) as other, other.begin() as conn:
            locked.append(lock_pipeline(conn, "asked"))
        return asks(*given)

    monkeypatch.setattr(attention, "in_need", in_need)
    assert rig.maintain(spec)[0] == {} and len(locked) == 1


def test_a_kafka_that_does_not_answer_fails_each_and_what_needs_none_is_done(rig, monkeypatch):
    specs = [rig.pipeline(f"out_{n}", 1) for n in range(2 + maintenance.SILENT)]
    migrate(rig.ledger.url, specs)
    rig.begin(specs[0], "away")
    for spec in specs[1:]:
        rig.committed(spec)
        rig.asked(spec)
    with rig.ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set lease_until = now()"))
    monkeypatch.setattr(maintenance.connections, "kafka_properties", lambda _: {"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr("ratchet.source.client.TIMEOUT_MS", 300)
    failed, _ = rig.maintain(*specs)
    assert [name for name, _ in rig.started] == ["out_0"]
    assert {"out_1", "out_2", "out_3", "out_4"} <= failed.keys()
    assert "not asked" in failed["out_4"]


def test_the_task_fails_in_the_end_and_names_each(rig, monkeypatch):
    specs = [rig.pipeline(name, 1) for name in ("a", "b", "c", "d")]
    migrate(rig.ledger.url, specs)
    for spec in specs:
        rig.committed(spec)
        rig.asked(spec)
    monkeypatch.setattr(maintenance, "read_specs", lambda: ({s.name: s for s in specs}, ["pipelines.e: broken"]))
    waiting = maintenance.Pass._records

    def fails(self, ledger, spec, *given, **more):
        if spec.name in "ac":
            raise RuntimeError("by accident")
        waiting(self, ledger, spec, *given, **more)

    monkeypatch.setattr(maintenance.Pass, "_records", fails)
    task = UpkeepOperator(task_id="upkeep_0", part=0, parts=2)
    with pytest.raises(AirflowFailException, match="upkeep of 2 of 2 pipelines failed: a: RuntimeError: by .*; c: "):
        task.execute({"ti": rig.airflow, "dag_run": SimpleNamespace(dag_id="m", run_id="now", clear_number=0)})
    UpkeepOperator(task_id="upkeep_1", part=1, parts=2).execute(
        {"ti": rig.airflow, "dag_run": SimpleNamespace(dag_id="m", run_id="now", clear_number=0)}
    )
    assert [name for name, _ in rig.started] == ["b", "d"]
