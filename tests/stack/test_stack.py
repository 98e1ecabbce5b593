"""The embedded servers: each comes up and answers, is restarted when it ends, and ends with its stack."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import psutil
import psycopg
import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from pyspark.sql import SparkSession

from ratchet.dev.stack import CHECKOUT, Stack, down, running
from ratchet.errors import StackError
from tests.until import until


@pytest.fixture(scope="module")
def said() -> list[str]:
    """The lines that the stack below says."""
    return []


@pytest.fixture(scope="module")
def three(scratch: Path, said: list[str]):
    """Three servers of this module's own, since its tests kill them."""
    with Stack(scratch / "three", {"postgres", "kafka", "connect"}, say=said.append) as stack:
        yield stack


def family(pids: dict[str, int]) -> list[psutil.Process]:
    """These processes and all their descendants."""
    roots = [psutil.Process(pid) for pid in pids.values()]
    return [p for root in roots for p in (root, *root.children(recursive=True))]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def answers_postgres(stack: Stack) -> bool:
    try:
        with psycopg.connect(stack.ledger_url, connect_timeout=2) as conn:
            return conn.execute("select count(*) >= 0 from kept").fetchone() == (True,)
    except psycopg.OperationalError:
        return False


def answers_kafka(stack: Stack) -> bool:
    try:
        admin = KafkaAdminClient(bootstrap_servers=stack.kafka["bootstrap.servers"], bootstrap_timeout_ms=2000)
    except Exception:
        return False
    try:
        return "kept" in admin.list_topics()
    finally:
        admin.close()


def answers_connect(stack: Stack) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(stack.spark.rpartition(":")[2])), timeout=1).close()
    except OSError:
        return False
    # A session of its own: the old server's sessions ended with it. One that is left open would try for ten
    # minutes, when this process ends, to tell a server that is no more.
    session = SparkSession.builder.remote(stack.spark).create()
    try:
        return session.range(1000).selectExpr("sum(id)").first()[0] == 499_500
    finally:
        session.stop()


def test_postgres_answers_and_keeps_what_it_says_it_has_kept(three):
    with psycopg.connect(three.ledger_url) as conn:
        conn.execute("create table kept (at int)")
        for setting, value in {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}.items():
            assert conn.execute("select current_setting(%s)", [setting]).fetchone() == (value,)
        databases = {name for (name,) in conn.execute("select datname from pg_database")}
    assert {"ratchet", "airflow"} <= databases
    assert answers_postgres(three)


def test_kafka_answers_and_makes_no_topic_that_nobody_asked_for(three):
    admin = KafkaAdminClient(bootstrap_servers=three.kafka["bootstrap.servers"])
    admin.create_topics([NewTopic("kept", 1, 1)])
    admin.close()
    until("Kafka answers", lambda: answers_kafka(three))
    settings = (three.home / "kafka" / "server.properties").read_text()
    assert "auto.create.topics.enable=false" in settings


def test_spark_connect_answers(three):
    assert answers_connect(three)


def test_every_server_listens_on_the_loopback_only(three):
    listening = [
        connection.laddr.ip
        for process in family(three.pids())
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 4
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_the_password_is_for_the_user_alone(three):
    mode = (three.home / "postgres" / "password").stat().st_mode & 0o777
    assert mode == 0o600
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(three.ledger_url.replace("@", "x@"))


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("postgres", answers_postgres),
        pytest.param("kafka", answers_kafka, marks=pytest.mark.all),
        pytest.param("connect", answers_connect, marks=pytest.mark.all),
    ],
)
def test_a_killed_server_is_restarted_with_its_data_and_it_is_said(three, said, name, answers):
    before = three.pids()[name]
    os.kill(before, signal.SIGKILL)
    until("the server is started again", lambda: three.pids()[name] != before)
    until("the servers answer", lambda: answers(three), 60)
    mine = [line for line in said if line.startswith(f"{name} ")]
    assert mine[0].startswith(f"{name} ended (exit status -9); starting it again in 1 s; its log is ")
    assert mine[1] == f"{name} was started again (process {three.pids()[name]})"
    assert mine[0] in (three.home / "supervisor.log").read_text()


def test_peak_memory_is_told_by_server(three):
    peak = until("the memory of three servers is known", lambda: len(three.peak_memory()) == 3 and three.peak_memory())
    assert peak["connect"] > 100 * 2**20 and peak["kafka"] > 100 * 2**20 and peak["postgres"] > 2**20


def test_what_is_needed_first_is_made_and_warmed_when_the_servers_for_it_are_up(scratch):
    steps = []

    def made(stack: Stack) -> None:
        with psycopg.connect(stack.ledger_url) as conn:
            conn.execute("create table kept (at int)")
        stack.guests.callback(lambda: steps.append(("left", answers_postgres(stack))))
        steps.append(("made", set(stack.pids())))

    def warmed(stack: Stack) -> None:
        steps.append(("warmed", set(stack.pids())))

    with Stack(scratch / "steps", {"postgres"}, before_airflow=made, meanwhile=warmed):
        pass
    assert steps == [("made", {"postgres"}), ("warmed", {"postgres"}), ("left", True)]


def test_the_end_of_a_stack_ends_every_process_and_the_next_has_the_same_urls_and_data(scratch):
    home = scratch / "twice"
    with Stack(home, {"postgres", "kafka"}) as stack:
        with psycopg.connect(stack.ledger_url) as conn:
            conn.execute("create table kept (at int)")
        urls, processes = (stack.ledger_url, stack.kafka), family(stack.pids())
    assert alive(processes) == []
    with Stack(home, {"postgres", "kafka"}) as stack:
        assert (stack.ledger_url, stack.kafka) == urls
        assert answers_postgres(stack)


PROGRAM = """
import json, signal, sys
from pathlib import Path
from ratchet.dev.stack import Stack
signal.signal(signal.SIGTERM, signal.default_int_handler)
with Stack(Path(sys.argv[1]), {"postgres", "kafka"}) as stack:
    print(json.dumps(stack.pids()), flush=True)
    signal.pause()
"""


@pytest.fixture
def elsewhere(scratch, request):
    """A stack in another process: (its home, that process, its servers' processes)."""
    home = scratch / request.node.name
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(home)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = json.loads(process.stdout.readline())
    yield home, process, family(pids)
    process.kill()
    process.wait()


def test_down_from_another_terminal_ends_every_process(elsewhere):
    home, process, servers = elsewhere
    assert down(home) == f"ended (process {process.pid} and all it had started)"
    assert alive(servers) == []
    assert running(home) is None and down(home) == "nothing runs"


def test_servers_do_not_outlive_a_killed_supervisor_and_the_next_start_goes_well(elsewhere):
    home, process, servers = elsewhere
    process.kill()
    process.wait()
    until("every server has ended", lambda: not alive(servers))
    with Stack(home, {"postgres"}) as stack, psycopg.connect(stack.ledger_url) as conn:
        assert conn.execute("select 1").fetchone() == (1,)


def test_a_taken_port_that_the_user_has_set_stops_the_start_in_one_line(scratch, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("RATCHET_PORT_KAFKA", str(taken.getsockname()[1]))
        with pytest.raises(StackError, match="taken by another program") as raised:
            Stack(scratch / "taken", {"kafka"}).__enter__()
    assert "\n" not in str(raised.value)
    assert running(scratch / "taken") is None


@pytest.fixture(scope="module")
def airflow(scratch: Path):
    """Airflow's four processes and the database they need; one setting is not the stack's own."""
    env = {"AIRFLOW__CORE__PARALLELISM": "3"}
    with Stack(scratch / "airflow", {"postgres", "airflow"}, env=env, say=lambda line: None, slices_at_once=5) as stack:
        yield stack


def health(stack: Stack) -> dict:
    with urlopen(f"{stack.airflow_url}/api/v2/monitor/health", timeout=5) as answer:
        return {name: (told or {}).get("status") for name, told in json.load(answer).items()}


@pytest.mark.all
def test_airflow_is_healthy_and_kept_to_this_checkout(airflow):
    assert set(health(airflow).values()) == {"healthy"}
    assert set(airflow.pids()) == {"postgres", "api-server", "scheduler", "dag-processor", "triggerer"}
    assert (airflow.home / "airflow" / "keys.json").stat().st_mode & 0o777 == 0o600
    ours = psutil.Process(airflow.pids()["scheduler"]).environ()
    assert ours["AIRFLOW__CORE__DAGS_FOLDER"] == str(CHECKOUT / "dags")
    assert ours["AIRFLOW__CORE__PARALLELISM"] == "3"


@pytest.mark.all
def test_the_pool_of_the_process_tasks_has_as_many_slots_as_slices_work_at_once(airflow):
    pool = psutil.Process(airflow.pids()["dag-processor"]).environ()["RATCHET_PROCESS_POOL"]
    with psycopg.connect(airflow.database_url("airflow")) as conn:
        slots = "select slots, include_deferred from slot_pool where pool = %s"
        assert conn.execute(slots, [pool]).fetchone() == (5, False)


@pytest.mark.all
def test_a_killed_scheduler_is_restarted_without_its_old_workers(airflow):
    before = airflow.pids()["scheduler"]
    old = until(
        "the scheduler has children", lambda: family({"scheduler": before})[1:] and family({"scheduler": before})
    )
    os.kill(before, signal.SIGKILL)
    until("the scheduler is started again", lambda: airflow.pids()["scheduler"] != before)
    assert alive(old) == []
    until("the scheduler has children again", lambda: family({"scheduler": airflow.pids()["scheduler"]})[1:], 60)
    until("Airflow is healthy", lambda: set(health(airflow).values()) == {"healthy"}, 60)
