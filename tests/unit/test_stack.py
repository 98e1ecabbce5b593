"""What the embedded stack does without its servers: checks of the machine, ports, and supervision of any process."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ratchet.dev.stack import Stack, down, postgres, prerequisites, running
from ratchet.dev.stack.airflow import Airflow
from ratchet.dev.stack.kafka import KafkaBroker
from ratchet.dev.stack.ports import HOST, Ports
from ratchet.dev.stack.server import Server, environment
from ratchet.dev.stack.supervisor import Supervisor
from ratchet.errors import StackError
from tests.until import until


def fake_java(directory: Path, version: str) -> Path:
    """A JAVA_HOME whose java says that it is of this version."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    said = f"    java.home = {directory}\n    java.specification.version = {version}\n"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\nProperty settings:\n{said}END\n")
    java.chmod(0o755)
    return directory


def server(tmp_path: Path, script: str, **more) -> Server:
    """A server that is a shell script, and ready when it has written `up`."""
    log = tmp_path / "server.log"
    return Server("script", ["sh", "-c", script], log, lambda: log.exists() and "up" in log.read_text(), **more)


@pytest.fixture
def lines():
    return []


@pytest.fixture
def supervisor(tmp_path, lines):
    made = Supervisor(tmp_path / "processes.json", lines.append)
    yield made
    made.stop()


# The machine


@pytest.mark.parametrize("version", ["17", "21"])
def test_java_17_and_21_are_taken(tmp_path, monkeypatch, version):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    assert prerequisites.java() == tmp_path / "jdk" / "bin" / "java"


@pytest.mark.parametrize(("version", "named"), [("1.8", "Java 8"), ("11", "Java 11"), ("25", "Java 25")])
def test_another_java_is_one_line_that_says_what_to_install(tmp_path, monkeypatch, version, named):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    with pytest.raises(StackError, match=f"is {named};.*install a Java 17 or 21") as raised:
        prerequisites.java()
    assert "\n" not in str(raised.value)


def test_no_java_at_all_is_one_line_that_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match="PATH has none; install a Java 17 or 21"):
        prerequisites.java()


def test_java_is_found_behind_a_version_managers_script(tmp_path, monkeypatch):
    real = fake_java(tmp_path / "jdk", "17")
    script = tmp_path / "shims" / "java"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {real}/bin/java "$@"\n')
    script.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    assert prerequisites.java() == real / "bin" / "java"


def test_a_full_disk_is_one_line_that_says_how_much_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(prerequisites, "NEEDED_GIB", 10**9)
    with pytest.raises(StackError, match=r"has [\d.]+ GiB left; the servers need 1000000000; make room"):
        Stack(tmp_path, set()).__enter__()


def test_missing_jars_say_how_to_fetch_them(tmp_path):
    with pytest.raises(StackError, match="make install"):
        prerequisites.jars(tmp_path, "broker")


def test_settings_for_the_users_own_servers_do_not_reach_ours(monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("SPARK_CONF_DIR", "/nowhere")
    monkeypatch.setenv("LANG", "C")
    seen = environment({"SPARK_HOME": "ours"})
    assert (seen["LANG"], seen["SPARK_HOME"]) == ("C", "ours")
    assert not {"AIRFLOW__CORE__EXECUTOR", "PGPORT", "SPARK_CONF_DIR"} & seen.keys()


# Ports


def test_a_port_is_chosen_once_and_remembered(tmp_path, lines):
    first = Ports(tmp_path / "ports.json", lines.append)
    chosen = first.get("kafka"), first.get("postgres")
    again = Ports(tmp_path / "ports.json", lines.append)
    assert chosen == (again.get("kafka"), again.get("postgres"))
    assert len(set(chosen)) == 2 and lines == []


def test_a_remembered_port_that_is_taken_is_replaced_and_said(tmp_path, lines):
    port = Ports(tmp_path / "ports.json", lines.append).get("kafka")
    with socket.create_server((HOST, port)):
        other = Ports(tmp_path / "ports.json", lines.append).get("kafka")
    assert other != port
    assert lines == [f"port {port} of kafka is taken by another program now; choosing another"]


def test_a_port_that_the_user_has_set_is_never_replaced(tmp_path, lines, monkeypatch):
    with socket.create_server((HOST, 0)) as taken:
        monkeypatch.setenv("RATCHET_PORT_AIRFLOW", str(taken.getsockname()[1]))
        with pytest.raises(StackError, match="taken by another program; end that, or set RATCHET_PORT_AIRFLOW"):
            Ports(tmp_path / "ports.json", lines.append).get("airflow")
    monkeypatch.setenv("RATCHET_PORT_AIRFLOW", "eighty")
    with pytest.raises(StackError, match="RATCHET_PORT_AIRFLOW=eighty is no port"):
        Ports(tmp_path / "ports.json", lines.append).get("airflow")


# Supervision


def test_a_server_that_ends_at_once_shows_the_end_of_its_log(tmp_path, supervisor):
    with pytest.raises(StackError, match=r"script ended while it was starting \(exit status 3\)(.|\n)*no such luck"):
        supervisor.start([server(tmp_path, "echo no such luck; exit 3")])


def test_a_server_that_is_not_ready_in_time_shows_the_end_of_its_log(tmp_path, supervisor):
    with pytest.raises(StackError, match=r"script is not ready after 1 s(.|\n)*still thinking"):
        supervisor.start([server(tmp_path, "echo still thinking; exec sleep 60", seconds_to_start=1)])


def test_a_server_that_cannot_be_executed_is_said(tmp_path, supervisor):
    broken = Server("broken", [str(tmp_path / "nothing")], tmp_path / "log", lambda: False)
    with pytest.raises(StackError, match="broken cannot be started.*No such file"):
        supervisor.start([broken])


def test_a_server_that_keeps_ending_is_restarted_with_growing_pauses(tmp_path, supervisor, lines, monkeypatch):
    monkeypatch.setattr("ratchet.dev.stack.supervisor.PAUSES", (0.1, 0.2, 0.4))
    supervisor.start([server(tmp_path, f"echo up; test -e {tmp_path}/bad || exec sleep 60; exit 7")])
    (tmp_path / "bad").touch()
    os.kill(supervisor.pids()["script"], signal.SIGKILL)
    until("the script is to be started again", lambda: any("again in 0.4 s" in line for line in lines))
    said = [line.partition(";")[0] + line[line.index(" in ") :].partition(";")[0] for line in lines if " in " in line]
    assert said == [
        "script ended (exit status -9) in 0.1 s",
        "script ended (exit status 7) in 0.2 s",
        "script ended (exit status 7) in 0.4 s",
    ]
    (tmp_path / "bad").unlink()
    pid = until(
        "the script sleeps",
        lambda: (p := supervisor.pids()["script"]) and psutil.pid_exists(p) and "sleep" in name(p) and p,
    )
    # The line is told after the process is there, so it may come a little later.
    until("the script is started again", lambda: lines[-1] == f"script was started again (process {pid})")


def test_what_a_killed_server_has_left_ends_before_it_is_restarted(tmp_path, supervisor, lines):
    supervisor.start([server(tmp_path, f"sleep 60 & echo $! > {tmp_path}/child; echo up; wait")])
    child = psutil.Process(int((tmp_path / "child").read_text()))
    os.kill(supervisor.pids()["script"], signal.SIGKILL)
    until("the script is started again", lambda: any("started again" in line for line in lines))
    assert not alive(child)


def test_stop_ends_grandchildren_and_those_that_ignore_sigterm(tmp_path, supervisor):
    stubborn = "trap '' TERM; (trap '' TERM; sleep 60) & echo up; wait; sleep 60"
    supervisor.start([server(tmp_path, stubborn, stop_signal=signal.SIGHUP)])
    root = psutil.Process(supervisor.pids()["script"])
    processes = [root, *until("the script has children", lambda: root.children(recursive=True))]
    supervisor.stop()
    assert not [p for p in processes if alive(p)]


def test_stop_ends_what_is_started_while_it_ends_others(tmp_path, supervisor):
    # Like a worker whose task is ended, and that takes up the next one, in a session of its own.
    started = "setsid sleep 60 & echo $! >"
    again = f"(trap : TERM; {started} {tmp_path}/first; wait; {started} {tmp_path}/next; wait)"
    supervisor.start([server(tmp_path, f"{again} & echo up; wait", stop_signal=signal.SIGHUP)])
    until("the first is there", (tmp_path / "first").exists)
    supervisor.stop()
    pids = [int((tmp_path / file).read_text()) for file in ("first", "next")]
    assert not [pid for pid in pids if psutil.pid_exists(pid) and alive(psutil.Process(pid))]


def test_peak_memory_counts_the_whole_family(tmp_path, supervisor, monkeypatch):
    monkeypatch.setattr("ratchet.dev.stack.supervisor.MEASURE_EVERY", 0)
    eat = f"{sys.executable} -c 'import time; held = bytearray(50_000_000); print(\"up\", flush=True); time.sleep(60)'"
    supervisor.start([server(tmp_path, f"{eat} & wait")])
    until("the script's memory is known", lambda: supervisor.peak_memory().get("script", 0) > 50_000_000)


def test_orphans_of_a_killed_supervisor_are_ended_by_the_next_start(tmp_path, supervisor, lines):
    # The supervisor that is killed: its server dies with it, its server's child does not.
    script = f"sleep 60 & echo $! > {tmp_path}/child; echo up; wait"
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from ratchet.dev.stack.supervisor import Supervisor
from tests.unit.test_stack import server
made = Supervisor(Path({str(tmp_path / "processes.json")!r}), print)
made.start([server(Path({str(tmp_path)!r}), {script!r})])
print("started", flush=True)
time.sleep(60)
"""
    killed = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert killed.stdout and killed.stdout.readline() == "started\n"
    [[_, leader, _]] = json.loads((tmp_path / "processes.json").read_text())
    root, child = psutil.Process(leader), psutil.Process(int((tmp_path / "child").read_text()))
    killed.kill()
    killed.wait()
    until("the script has ended", lambda: not alive(root))
    assert alive(child)
    supervisor.end_leftovers()
    assert not alive(child)
    assert lines == [f"ending what an earlier run has left of script (process {child.pid})"]


def test_a_stranger_that_has_a_recorded_number_is_left_alone(tmp_path, supervisor, lines):
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    started = psutil.Process(stranger.pid).create_time()
    (tmp_path / "processes.json").write_text(json.dumps([["script", stranger.pid, started - 100]]))
    (tmp_path / "supervisor.pid").write_text(json.dumps([stranger.pid, started - 100]))
    supervisor.end_leftovers()
    assert running(tmp_path) is None and down(tmp_path) == "nothing runs"
    assert stranger.poll() is None and lines == []
    stranger.kill()
    stranger.wait()


def test_a_second_stack_in_the_same_home_is_refused_and_the_first_goes_on(tmp_path):
    with Stack(tmp_path, set()):
        with pytest.raises(StackError, match=f"run already \\(process {os.getpid()}\\)"):
            Stack(tmp_path, set()).__enter__()
        assert running(tmp_path) is not None
    assert running(tmp_path) is None


def test_root_falls_back_to_another_user_where_no_namespace_is_allowed(tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("only for root")
    refused = tmp_path / "bin" / "unshare"
    refused.parent.mkdir()
    refused.write_text("#!/bin/sh\nexit 1\n")
    refused.chmod(0o755)
    monkeypatch.setenv("PATH", f"{refused.parent}:{os.environ['PATH']}")
    home = tmp_path / "closed"
    home.mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    with pytest.raises(StackError, match="refuses to run as root.*run as an ordinary user"):
        postgres._as_somebody(home)


def test_the_servers_are_told_another_port_where_something_stands_between(tmp_path):
    broker = KafkaBroker(tmp_path, 1, [(15001, 15002)], Path("java"), [Path("a.jar")], advertised=16001)
    said = broker._settings()
    assert (said["listeners"], said["advertised.listeners"]) == (
        "PLAINTEXT://127.0.0.1:15001,CONTROLLER://127.0.0.1:15002",
        "PLAINTEXT://127.0.0.1:16001,CONTROLLER://127.0.0.1:15002",
    )
    assert broker.properties == {"bootstrap.servers": "127.0.0.1:16001"}
    database = postgres.Postgres(tmp_path, 15003, advertised=16003)
    database.home.mkdir()
    database.password_file.write_text("secret")
    airflow = Airflow(tmp_path, tmp_path, 15004, {}, [], advertised=16004)
    airflow.home.mkdir()
    settings = airflow._settings(database)
    assert settings["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].endswith("@127.0.0.1:16003/airflow")
    assert settings["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:16004/execution/"
    # Whoever has started the stack comes by the door.
    assert database.url().endswith("@127.0.0.1:15003/ratchet") and airflow.url == "http://127.0.0.1:15004"


def test_a_server_can_be_altered_before_it_is_started(tmp_path):
    def alter(server: Server) -> None:
        server.command, server.env = ["env", *server.command], {"SAID": "up"}

    with Stack(tmp_path / "home", set(), alter=alter) as stack:
        script = 'echo "$SAID"; exec sleep 60'
        stack._start([server(tmp_path, script)])
        assert psutil.pid_exists(stack.pids()["script"])


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return ""
