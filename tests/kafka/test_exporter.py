"""`ratchet exporter`'s measures and traces, of real lines: scraped as Prometheus does, taken as a collector does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from uuid import uuid4

import httpx
import psycopg
import pytest
from kafka import TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.engine import make_url

from ratchet.errors import SettingsError
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.operate.attention import been_here
from ratchet.operate.destinations import detach
from ratchet.operate.migrate import migrate
from ratchet.operate.pauses import pause_at, resume
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote
from ratchet.telemetry.commits import Commits
from ratchet.telemetry.exporter import Exporter, Eye
from ratchet.telemetry.measures import MEASURES
from ratchet.telemetry.traces import trace_id
from tests.kafka.exported import Line
from tests.kafka.receiver import receiving
from tests.ledger.staging import a_try, positions, prepare, rows_of, vote_of, write_all
from tests.until import until


@pytest.fixture
def eye(ledger_url, kafka_properties) -> Iterator[Eye]:
    with Eye(ledger_url, kafka_properties) as eye:
        yield eye


def values(eye: Eye) -> dict[str, float]:
    """{measure, and its state or server where it has one: value} of one look."""
    found = {}
    for point in eye.look().points:
        told_apart = [value for label, value in point.labels.items() if label in ("state", "server")]
        found[" ".join([point.measure, *told_apart])] = point.value
    return found


def test_each_state_of_a_line_is_measured(line: Line, eye: Eye):
    assert values(eye) == {"ratchet.up ledger": 1, "ratchet.up kafka": 1, "ratchet.read_time": pytest.approx(0, abs=60)}
    line.do("a")
    line.do("b")
    begun = line.begin("c")
    found = values(eye)
    assert (found["ratchet.head"], found["ratchet.last"]) == (2, 3)
    assert (found["ratchet.in_flight OPEN"], found["ratchet.in_flight PREPARED"]) == (1, 0)
    assert (found["ratchet.lag.records"], found["ratchet.lag.waiting"]) == (60, 40)
    assert (found["ratchet.recent.transactions"], found["ratchet.recent.records"]) == (2, 40)
    assert 0 < found["ratchet.lag.age"] < 600 and found["ratchet.oldest_unfinished"] < 600
    assert found["ratchet.halted"] == found["ratchet.failures"] == found["ratchet.lost"] == 0
    settle(line.ledger, line.spec, Run("dag", "c"), succeeded=False, reason="for the test")
    found = values(eye)
    assert (found["ratchet.halted"], found["ratchet.failures"]) == (1, 1)
    void(line.ledger, line.spec, begun.claim.txid, "for the test", "me")
    found = values(eye)
    assert (found["ratchet.halted"], found["ratchet.head"], found["ratchet.lag.records"]) == (0, 3, 40)
    line.do("d"), line.do("e")
    found = values(eye)
    assert (found["ratchet.lag.records"], found["ratchet.lag.age"], found["ratchet.in_flight OPEN"]) == (0, 0, 0)


def test_a_pause_is_measured_and_what_it_holds_is_not_stuck(line: Line, eye: Eye):
    line.do("a")
    line.begin("b")
    assert values(eye)["ratchet.paused"] == 0
    pause_at(line.ledger, line.spec, 1, "why", "me")
    found = values(eye)
    assert 0 < found["ratchet.paused"] < 600 and found["ratchet.halted"] == found["ratchet.oldest_unfinished"] == 0
    pause_at(line.ledger, line.spec, 2, "why", "me")
    assert values(eye)["ratchet.oldest_unfinished"] > 0
    resume(line.ledger, line.spec, "why", "me")
    assert values(eye)["ratchet.paused"] == 0


def test_what_a_destination_lacks_is_measured_until_it_is_detached(line: Line, eye: Eye):
    def seen() -> tuple[float, bool, bool]:
        found = values(eye)
        of = [found[f"ratchet.destination.{name}"] for name in ("lacks", "behind", "detached")]
        return of[0], of[1] > 0, of[2] > 0

    line.do("a")
    assert seen() == (0, False, False)
    begun = line.begin("b")
    prepare(line.ledger, line.spec, begun)
    with pytest.raises(SettingsError, match="no connection to it is known here"):
        commit(line.ledger, line.spec, begun.claim)
    assert seen() == (1, True, False)
    (to,) = line.spec.sinks[0].destinations
    detach(line.ledger, line.spec.name, to.address, "it is gone", "me")
    assert seen() == (1, False, True)


def test_dead_letters_are_counted_among_the_last_records(line: Line, eye: Eye):
    begun = line.begin("a")
    for part in begun.slices:
        work = a_try(line.ledger, begun, part.number, line.spec)
        letters = [
            {
                "_partition": p,
                "_offset": o,
                "timestamp": None,
                "key": None,
                "value": b"",
                "headers": "[]",
                "error": "no",
            }
            for p, o in positions(work)[:3]
        ]
        rows = rows_of(line.spec, work)["rows"][3:]
        sinks = write_all(line.ledger, line.spec, work, {"rows": rows, "dead_letters": letters})
        cast_vote(line.ledger, line.spec, work.token, vote_of(line.spec, work, sinks, dead_letters=len(letters)))
    line.commit(begun)
    found = values(eye)
    assert (found["ratchet.recent.records"], found["ratchet.recent.dead_letters"]) == (20, 6)


def test_what_retention_has_deleted_and_will_delete_is_measured(line: Line, eye: Eye, client):
    topic = line.spec.source.name
    line.do("a")
    client.admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": str(3 * 3600_000)})])
    assert until("the setting is told", lambda: values(eye).get("ratchet.retention_left"), 30) == pytest.approx(
        3 * 3600, abs=300
    )
    client.admin.delete_records({TopicPartition(topic, 0): 25})
    assert until("the deletion is told", lambda: values(eye)["ratchet.lost"], 30) == 15


def test_a_server_that_does_not_answer_is_said_and_has_no_values(line: Line, ledger_url):
    line.do("a")
    with Eye(ledger_url, {"bootstrap.servers": "127.0.0.1:1"}) as eye:
        found = values(eye)
        assert (found["ratchet.up ledger"], found["ratchet.up kafka"], found["ratchet.head"]) == (1, 0, 1)
        assert "ratchet.lag.records" not in found
    with Eye("postgresql://nobody@127.0.0.1:1/nothing", {}) as eye:
        found = values(eye)
        assert (found["ratchet.up ledger"], found["ratchet.up kafka"]) == (0, 0) and "ratchet.head" not in found
    with Eye(ledger_url, None) as eye:
        assert "ratchet.up kafka" not in values(eye)


def test_a_topic_that_is_another_one_is_said(line: Line, eye: Eye, client, make_topic):
    line.do("a")
    assert values(eye)["ratchet.topic_told"] == 1
    client.admin.delete_topics([line.spec.source.name])
    until("it is gone", lambda: values(eye)["ratchet.topic_told"] == 0, 30)
    make_topic(2, line.spec.source.name)
    found = values(eye)
    assert found["ratchet.topic_told"] == 0 and "ratchet.lag.records" not in found


class Collector:
    """Takes what is sent by OTLP; refuses the first so many requests for traces."""

    def __init__(self, refuses: int):
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.refused, self._refuses = 0, refuses

    def take(self, path: str, body: bytes) -> int:
        if path != "/v1/traces":
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))
        elif self.refused < self._refuses:
            self.refused += 1
            return 400
        else:
            self.traces.append(ExportTraceServiceRequest.FromString(body))
        return 200

    @property
    def spans(self) -> list:
        return [
            s for r in list(self.traces) for of in r.resource_spans for scope in of.scope_spans for s in scope.spans
        ]


@pytest.fixture
def collector(monkeypatch) -> Iterator[Collector]:
    made = Collector(refuses=1)
    with receiving(made.take) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield made


@pytest.fixture
def exporter(eye: Eye) -> Iterator[Exporter]:
    with Exporter(eye, 0.2, "127.0.0.1", 0) as made:
        thread = threading.Thread(target=made.run, daemon=True)
        thread.start()
        yield made
        made.stop()
        thread.join(60)


def scraped(exporter: Exporter) -> dict[str, list]:
    text = httpx.get(f"http://127.0.0.1:{exporter.port}/metrics").text
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_prometheus_is_given_every_measure_under_the_name_that_is_documented(line: Line, exporter: Exporter):
    line.do("a")
    line.begin("b")
    with line.ledger.begin() as conn:
        been_here(conn, [line.spec.name])
    found = until(
        "the line is seen", lambda: (s := scraped(exporter)).get("ratchet_since_maintenance_seconds") and s, 60
    )
    # This topic deletes nothing.
    assert {m.prometheus for m in MEASURES.values()} - found.keys() == {"ratchet_retention_left_seconds"}
    assert found["ratchet_head"][0].labels == {"pipeline": line.spec.name}
    assert {s.labels["server"]: s.value for s in found["ratchet_up"]} == {"ledger": 1, "kafka": 1}


def test_each_transaction_has_one_whole_trace_also_where_the_collector_was_away(
    line: Line, collector: Collector, exporter: Exporter
):
    until("metrics come", lambda: collector.metrics, 60)
    txids = [line.do(run).claim.txid for run in "abc"]
    ids = {trace_id(line.spec.name, txid, 0).to_bytes(16, "big"): txid for txid in txids}
    until("all traces have come", lambda: {s.trace_id for s in collector.spans} >= ids.keys(), 60)
    assert collector.refused == 1
    assert Counter(ids[s.trace_id] for s in collector.spans if not s.parent_span_id) == dict.fromkeys(txids, 1)
    for trace in ids:
        of = [s for s in collector.spans if s.trace_id == trace]
        (root,) = (s for s in of if not s.parent_span_id)
        children = [s for s in of if s.parent_span_id]
        assert {s.parent_span_id for s in children} == {root.span_id}
        assert sorted(s.name for s in children) == ["commit", "slice 0", "slice 1"]
        assert all(root.start_time_unix_nano <= s.start_time_unix_nano <= s.end_time_unix_nano for s in of)
        about = {a.key: a.value for a in root.attributes}
        assert about["ratchet.records"].int_value == 20
        assert "COMMITTED" in [e.name for e in root.events]


def test_the_command_serves_as_the_readers_role_until_it_is_told_to_end(line: Line, ledger_url, kafka_properties):
    line.do("a")
    reader = f"reader-{uuid4().hex[:8]}"
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create role {} login password 'x'").format(sql.Identifier(reader)))
    migrate(ledger_url, [line.spec], reader_role=reader)
    env = {
        **os.environ,
        "RATCHET_LEDGER_URL": make_url(ledger_url).set(username=reader, password="x").render_as_string(False),
        "RATCHET_KAFKA": json.dumps(kafka_properties),
    }
    said = [sys.executable, "-m", "ratchet", "exporter", "--listen", "127.0.0.1:0", "--every", "1"]
    with subprocess.Popen(said, env=env, stderr=subprocess.PIPE, text=True) as running:
        try:
            # Its log goes there as well, such as of a look for which a server was too slow.
            at = next(said[1] for line in running.stderr if (said := re.search(r"metrics at (\S+)", line)))
            page = httpx.get(at).text
        finally:
            running.terminate()
        assert running.wait(60) == 0
    assert f'ratchet_head{{pipeline="{line.spec.name}"}} 1.0' in page and 'ratchet_up{server="kafka"} 1.0' in page


def test_commits_are_followed_in_a_ledger_that_was_restored(line: Line):
    commits = Commits()

    def new() -> list[int]:
        found = []
        for one in commits.since(line.ledger):
            found.append(one.whole.txid)
            commits.told(one)
        return found

    line.do("a")
    assert new() == [], "what was committed before nobody follows"
    line.do("b")
    assert new() == [2] and new() == []
    with line.ledger.begin() as conn:
        # As a backup from before both has it, whose numbers are given again.
        conn.execute(text("set local session_replication_role = replica"))
        conn.execute(text("delete from ratchet.events where txid = 2"))
        conn.execute(text("update ratchet.heads set txid = 1"))
        conn.execute(text("select setval(pg_get_serial_sequence('ratchet.events', 'id'), max(id)) from ratchet.events"))
    assert new() == []
    with line.ledger.begin() as conn:
        conn.execute(text("set local session_replication_role = replica"))
        conn.execute(
            text("update ratchet.events set move = 'COMMITTED' where id = (select max(id) from ratchet.events)")
        )
    assert new() == [1]
