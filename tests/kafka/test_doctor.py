"""`ratchet doctor` against real servers: each finding is seen, and what cannot be checked stops nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from uuid import uuid4

import psycopg
import pytest
from packaging.requirements import Requirement
from sqlalchemy import make_url, text
from typer.testing import CliRunner

from ratchet import Append, Arrivals, Json, Pipeline, Topic, cli, command
from ratchet.dev.stack import Stack
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.operate.attention import been_here
from ratchet.operate.doctor import database, lines, surroundings, topics
from ratchet.operate.doctor.database import judged_clock, judged_settings, judged_version
from ratchet.operate.doctor.finding import CODES, Check, Finding, Severity, examine, ok
from ratchet.operate.doctor.surroundings import Api, judged_health
from ratchet.operate.doctor.topics import judged_versions
from ratchet.operate.migrate import migrate
from ratchet.operate.pauses import pause_at
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from tests.answers import answer
from tests.databases import Databases
from tests.kafka import driven
from tests.ledger.pooler import Pooler

HOUR_MS = 3_600_000
NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def spec_of(topic: str, **more) -> Pipeline:
    given = {
        "name": "seen",
        "source": Topic(topic, value=Json("a bigint")),
        "sinks": [Append("seen", columns="a bigint")],
        "runs": Arrivals(),
    }
    return Pipeline(**given | more)


@pytest.fixture(scope="module")
def databases(scratch) -> Iterator[Databases]:
    """Those of a PostgreSQL that is set as it is for users, unlike that of the other tests: its settings are judged."""
    with Stack(scratch / "judged", {"postgres"}) as stack, closing(Databases(stack, "wal_log")) as made:
        yield made


@pytest.fixture
def ledger(ledger_url):
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def send(kafka_properties):
    def sent(topic: str, records: int, *, minutes_ago: float = 0) -> None:
        driven.send(kafka_properties, topic, records, at_ms=int((time.time() - minutes_ago * 60) * 1000))

    return sent


@pytest.fixture
def begun(ledger, client, make_topic, send):
    """A line that has one transaction of ten records, and its spec."""
    spec = spec_of(make_topic(partitions=2))
    migrate(ledger.url, [spec])
    send(spec.source.name, 10)
    begin(ledger, spec, Run("seen", "a"), partial(client.offsets, spec.source.name), lambda *_: True)
    return spec


def seen(checks, *codes: str, seconds: float = 30) -> dict[str, list[Finding]]:
    """{code: findings}, of these codes if any are named; all codes are documented."""
    found: dict[str, list[Finding]] = {}
    for each in examine(checks, seconds):
        assert each.code in CODES
        assert (each.remedy is None) == (each.severity is Severity.OK), each
        found.setdefault(each.code, []).append(each)
    return {code: of for code, of in found.items() if not codes or code in codes}


def of_kafka(kafka, ledger, spec, *codes: str) -> dict[str, Finding]:
    """The last finding of each code about a topic."""
    return {code: found[-1] for code, found in seen(topics.checks(kafka, ledger, [spec]), *codes).items()}


def test_where_all_is_well_every_finding_is_ok(ledger, begun, kafka_properties):
    with ledger.begin() as conn:
        been_here(conn, ["seen"])
    checks = [*database.checks(ledger), *lines.checks(ledger, [begun])]
    checks += [*topics.checks(kafka_properties, ledger, [begun]), *surroundings.checks([])]
    found = seen(checks)
    assert {each.severity for of in found.values() for each in of} == {Severity.OK}, found
    assert set(found) == set(CODES) - {"airflow", "airflow-version", "dag", "destination", "imports", "pool", "spark"}
    assert found["retention"][0].what == "Kafka keeps records without a limit"


def test_a_ledger_that_does_not_answer_stops_what_needs_it_and_nothing_else(begun, kafka_properties):
    with Ledger("postgresql://nobody:canary@127.0.0.1:1/none", waits=False) as ledger:
        found = seen([*database.checks(ledger), *lines.checks(ledger, [begun]), *surroundings.checks([])])
        ours = of_kafka(kafka_properties, ledger, begun)
    assert found["ledger"][0].severity is Severity.FAULT and found["ledger"][0].error == "RAT-201"
    assert "canary" not in found["ledger"][0].what
    assert {of[0].what for code, of in found.items() if code not in ("ledger", "packages", "spec")} == {
        "not checked, since ledger has a fault"
    }
    assert found["packages"][0].severity is ours["topic"].severity is Severity.OK


def test_a_ledger_that_is_not_migrated_and_tables_that_do_not_fit(ledger, begun):
    source = Topic(begun.source.name, value=Json("a bigint, b string"))
    wider = spec_of("t", source=source, sinks=[Append("seen", columns="a bigint, b string")])
    found = seen(lines.checks(ledger, [wider]), "tables")["tables"][0]
    assert (found.severity, found.error) == (Severity.FAULT, "RAT-204") and "seen.b does not exist" in found.what
    assert "ratchet migrate seen" in str(found.remedy) and found.pipeline == "seen"
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.alembic_version set version_num = 'older'"))
    found = seen([*database.checks(ledger), *lines.checks(ledger, [wider])])
    assert found["ledger-schema"][0].error == "RAT-204"
    assert found["rights"][0].what == found["tables"][0].what == "not checked, since ledger-schema has a fault"


def test_a_halt_and_a_maintenance_that_does_not_come(ledger, begun):
    settle(ledger, begun, Run("seen", "a"), succeeded=False, reason="no such column")
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set halted_at = now()"))
        conn.execute(text("update ratchet.pipelines set created_at = now() - interval '1 hour'"))
    found = seen(lines.checks(ledger, [begun]))
    assert found["halt"][0].error == "RAT-405" and "no such column" in found["halt"][0].what
    assert found["maintenance"][0].severity is Severity.WARNING and "never here" in found["maintenance"][0].what
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.pipelines set maintained_at = now() - interval '6 minutes'"))
    assert "here last at 20" in seen(lines.checks(ledger, [begun]))["maintenance"][0].what


def test_a_line_that_is_paused_is_warned_of_and_no_fault(ledger, begun):
    assert seen(lines.checks(ledger, [begun]))["pause"][0].severity is Severity.OK
    pause_at(ledger, begun, None, "the warehouse moves", "me")
    (found,) = seen(lines.checks(ledger, [begun]))["pause"]
    assert found.severity is Severity.WARNING and "seen is paused behind transaction 1 by me since" in found.what
    assert "`ratchet resume seen --reason …`" in str(found.remedy)


@pytest.fixture
def role(ledger):
    """A login of its own, and the ledger by it."""
    name = f"doctor_{uuid4().hex[:8]}"
    with ledger.begin() as conn:
        conn.execute(text(f"create role {name} login password 'p'"))
    url = make_url(ledger.url).set(username=name, password="p").render_as_string(hide_password=False)
    with Ledger(url) as limited:
        yield name, limited
    with ledger.begin() as conn:
        conn.execute(text(f"drop owned by {name}"))
        conn.execute(text(f"drop role {name}"))


def test_rights_that_a_role_lacks_are_named_with_the_way_to_give_them(ledger, begun, role):
    name, limited = role
    found = seen(database.checks(limited))
    assert found["ledger-schema"][0].error == "RAT-102", "it may not even see it"
    migrate(ledger.url, [begun], pipeline_role=name)
    assert seen(database.checks(limited))["rights"][0].what == f"user {name} may do what runs do"
    with ledger.begin() as conn:
        conn.execute(text(f"revoke update on ratchet.runs from {name}"))
        conn.execute(text(f'revoke insert on ratchet_delta."public.seen" from {name}'))
        conn.execute(text(f"revoke create on schema ratchet_stage from {name}"))
    found = seen(database.checks(limited))["rights"][0]
    assert found.severity is Severity.FAULT
    assert "CREATE on ratchet_stage, " in found.what and "UPDATE on " in found.what and "public.seen" in found.what
    assert f"--pipeline-role {name}" in str(found.remedy)


def test_settings_of_a_role_that_lose_commits_or_hide_words(ledger, begun, role):
    name, limited = role
    migrate(ledger.url, [begun], pipeline_role=name)
    with ledger.begin() as conn:
        conn.execute(text(f"alter role {name} set synchronous_commit = off"))
    (found,) = seen(database.checks(limited))["setting"]
    assert found.severity is Severity.FAULT and found.what.startswith("synchronous_commit is off: ")
    # The embedded server has no other language.
    (found,) = judged_settings({"lc_messages": "de_DE.UTF-8"})
    assert found.severity is Severity.WARNING and found.what.startswith("lc_messages is de_DE.UTF-8: ")


def test_settings_of_a_server_and_connections_that_are_used_up(scratch):
    def alter(server) -> None:
        server.command += ["-c", "fsync=off", "-c", "autovacuum=off", "-c", "max_connections=9"]

    with Stack(scratch / "unsafe", {"postgres"}, alter=alter) as stack, Ledger(stack.ledger_url) as ledger:
        found = seen(database.checks(ledger))
        assert {(each.what.split()[0], each.severity) for each in found["setting"]} == {
            ("fsync", Severity.FAULT),
            ("autovacuum", Severity.WARNING),
        }
        assert found["connections"][0].severity is Severity.OK
        held = [psycopg.connect(stack.ledger_url) for _ in range(8)]
        found = seen(database.checks(ledger), "connections")["connections"][0]
        for each in held:
            each.close()
    assert found.severity is Severity.WARNING and found.what == "9 of 9 connections are in use"


@pytest.mark.all
def test_a_pooler_is_told_from_postgresql_itself(begun, ledger, scratch):
    with Pooler(scratch / uuid4().hex, ledger.url, sessions=2) as pooler, Ledger(pooler.url) as pooled:
        found = seen(database.checks(pooled))
    assert found["pooler"][0].severity is Severity.WARNING and "`direct`" in str(found["pooler"][0].remedy)
    assert found["rights"][0].severity is Severity.OK


@pytest.mark.parametrize(
    ("number", "severity"),
    [(180004, "ok"), (180003, "warning"), (170010, "ok"), (160013, "warning"), (190000, "warning"), (150099, "fault")],
)
def test_versions_of_postgresql(number, severity):
    assert judged_version(number).severity == severity


@pytest.mark.parametrize(
    ("there", "severity"), [(100.0, "ok"), (100.4, "ok"), (97.5, "warning"), (103.5, "warning"), (102.4, "ok")]
)
def test_a_clock_is_wrong_only_by_more_than_the_answer_took(there, severity):
    assert judged_clock(there, 100.0, 100.5).severity == severity


def test_packages_of_another_version_or_none_are_named():
    wanted = ["kafka-python==1.0", "no-such-package", "pytest", "colorama==9; sys_platform == 'win32'"]
    said = surroundings.misfits(map(Requirement, wanted))
    assert said[0].endswith("wanted is ==1.0") and said[1:] == ["no-such-package is not installed"]
    assert seen(surroundings.checks(["a.b: cannot be imported"]))["spec"][0].severity is Severity.FAULT


@pytest.mark.all
def test_brokers_that_do_not_answer(ledger, begun):
    found = of_kafka(NOBODY, ledger, begun)
    assert (found["kafka"].severity, found["kafka"].error) == (Severity.FAULT, "RAT-301")
    assert {found[code].what for code in ("topic", "topic-id", "records", "retention")} == {
        "not checked, since kafka has a fault"
    }


def test_topics_that_are_missing_compacted_or_another_one(ledger, begun, client, make_topic, kafka_properties):
    found = of_kafka(kafka_properties, ledger, spec_of(f"none-{uuid4().hex}"))
    assert found["topic"].error == "RAT-302"
    found = of_kafka(kafka_properties, ledger, spec_of(make_topic(cleanup_policy="compact"), name="other"))
    assert found["topic"].error == "RAT-303" and found["topic-id"].what == "the line has not begun"
    found = of_kafka(kafka_properties, ledger, spec_of(make_topic()))
    assert found["topic-id"].error == "RAT-304" and "the spec's topic is" in found["topic-id"].what
    client.admin.delete_topics([begun.source.name])
    client.close()
    make_topic(name=begun.source.name, partitions=2)
    found = of_kafka(kafka_properties, ledger, begun)
    assert found["topic-id"].error == "RAT-304" and "was deleted and made again" in found["topic-id"].what
    assert "ratchet accept-loss seen" in str(found["topic-id"].remedy)
    assert found["records"].severity is found["retention"].severity is Severity.WARNING


def test_records_that_are_gone(ledger, begun, client, send, kafka_properties):
    from kafka import TopicPartition

    send(begun.source.name, 10)
    assert of_kafka(kafka_properties, ledger, begun)["records"].severity is Severity.OK
    client.admin.delete_records({TopicPartition(begun.source.name, 0): 15})
    found = of_kafka(kafka_properties, ledger, begun)["records"]
    assert (found.severity, found.error) == (Severity.FAULT, "RAT-306") and "[10,15)" in found.what


@pytest.mark.parametrize(
    ("minutes_ago", "severity", "said"),
    [(5, "ok", "stays for 0 h 5"), (50, "warning", "may be deleted in 0 h 9 min"), (70, "fault", "at any moment")],
)
def test_how_soon_unread_records_are_deleted(
    ledger, client, make_topic, send, kafka_properties, minutes_ago, severity, said
):
    spec = spec_of(make_topic(retention_ms=str(HOUR_MS), partitions=2))
    migrate(ledger.url, [spec])
    assert of_kafka(kafka_properties, ledger, spec)["retention"].what == "the line has not begun"
    send(spec.source.name, 3, minutes_ago=minutes_ago)
    begin(ledger, spec, Run("seen", "a"), partial(client.offsets, spec.source.name), lambda *_: True)
    send(spec.source.name, 1)
    found = of_kafka(kafka_properties, ledger, spec)["retention"]
    assert found.severity == severity and said in found.what and "4 offsets are not committed" in found.what, found


def test_where_nothing_is_unread_nothing_is_foretold(ledger, client, make_topic, send, kafka_properties):
    spec = spec_of(make_topic(retention_ms=str(HOUR_MS)))
    migrate(ledger.url, [spec])
    send(spec.source.name, 1)
    begin(ledger, spec, Run("seen", "a"), partial(client.offsets, spec.source.name), lambda *_: True)
    void(ledger, spec, 1, "for the test", "me")
    assert of_kafka(kafka_properties, ledger, spec)["retention"].what == "no record is unread"


def test_a_check_that_hangs_or_breaks_is_told_and_the_next_one_is_made():
    never = threading.Event()

    def breaks():
        raise KeyError("a line\nof two")

    checks = [
        Check("spark", lambda: [ok("spark", str(never.wait()))]),
        Check("imports", breaks, needs=frozenset({"spark"})),
        Check("dag", breaks, pipeline="seen"),
        Check("spec", lambda: [ok("spec", "well")]),
    ]
    found = [*examine(checks, 0.2)]
    never.set()
    assert [(each.code, each.severity) for each in found] == [
        ("spark", "fault"),
        ("imports", "warning"),
        ("dag", "warning"),
        ("spec", "ok"),
    ]
    assert found[0].what == "no answer within 0.2 s" and "KeyError" in found[2].what and found[2].pipeline == "seen"


def test_brokers_that_are_too_old_are_named(kafka_properties):
    found = seen(topics.checks(kafka_properties, None, []), "kafka-version")["kafka-version"][0]
    assert found.severity is Severity.OK and found.what.startswith("of 1 brokers each speaks as Kafka 4.")
    held = {1: (4, 1), 2: (2, 7), 3: (2, 8), 4: (0, 11)}
    old = [*judged_versions(held)]
    assert {each.severity for each in old} == {Severity.FAULT}
    assert [each.what.partition(",")[0] for each in old] == [
        "broker 2 speaks as Kafka 2.7",
        "broker 4 speaks as Kafka 0.11",
    ]


def test_an_airflow_that_does_not_answer_or_is_no_address():
    for url, said in (("http://127.0.0.1:1", "does not answer"), ("file:///etc/passwd", "is no address")):
        found = seen(surroundings.airflow_checks(Api(url), [spec_of("t")]))
        assert found["airflow"][0].severity is Severity.FAULT and said in found["airflow"][0].what
        assert found["dag"][1].what == "not checked, since airflow has a fault"


def test_a_part_of_airflow_that_is_dead_is_named_and_so_is_a_triggerer_that_is_not_there():
    def judged(**parts: str | None) -> list[tuple[Severity, str]]:
        health = {"metadatabase": "healthy", "scheduler": "healthy", "triggerer": "healthy", "dag_processor": None}
        return [
            (found.severity, found.what)
            for found in judged_health("http://a", {name: {"status": said} for name, said in (health | parts).items()})
        ]

    assert judged() == [(Severity.OK, "Airflow at http://a is healthy")]
    assert judged(scheduler="unhealthy") == [(Severity.FAULT, "Airflow says that its scheduler is not healthy")]
    ((severity, said),) = judged(triggerer=None)
    assert severity is Severity.FAULT and said.startswith("Airflow has no triggerer")


def test_the_command_ends_with_3_at_a_fault_and_says_what_is_not_named(ledger, begun, kafka_properties, monkeypatch):
    migrate(ledger.url, [*command_specs(monkeypatch)])
    for name, value in {
        "RATCHET_LEDGER_URL": ledger.url,
        "RATCHET_KAFKA": json.dumps(kafka_properties),
        "RATCHET_SPARK": "",
        "RATCHET_AIRFLOW_URL": "",
    }.items():
        monkeypatch.setenv(name, value)
    command.variables.cache_clear()
    done = CliRunner().invoke(cli.app, ["doctor", "line", "--json"])
    found = {each["code"]: each for each in answer("doctor", done.stdout)}
    assert done.exit_code == (3 if any(each["severity"] == "fault" for each in found.values()) else 0)
    assert found["spark"]["what"].startswith("not checked: no Spark is named")
    assert found["airflow"]["what"].startswith("not checked: no Airflow is named")
    monkeypatch.setenv("RATCHET_KAFKA", json.dumps(NOBODY))
    done = CliRunner().invoke(cli.app, ["doctor", "line", "--seconds", "1"])
    assert done.exit_code == 3 and "ok    ledger: database test_" in done.stdout
    assert "FAULT kafka: no answer within 1 s\n      → See whether the server is overloaded" in done.stdout


def command_specs(monkeypatch):
    from tests.ledger.staging import SPEC

    monkeypatch.setenv("RATCHET_PIPELINES", "tests.ledger.pipelines")
    return [SPEC]
