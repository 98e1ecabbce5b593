"""The embedded Airflow: api-server, scheduler, dag-processor and triggerer over one metadata database."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psycopg

from ratchet.dev.stack.connect import spark_home
from ratchet.dev.stack.ports import HOST
from ratchet.dev.stack.postgres import Postgres
from ratchet.dev.stack.server import Server, environment
from ratchet.errors import StackError

PROCESSES = {
    "api-server": "api-server",
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}
"""Each process, and its name in Airflow's health report."""
POOL = "slices"
"""The pool of process tasks, where their number is bounded."""


class Airflow:
    """Airflow with its home below `home`; everyone who reaches the loopback is its administrator."""

    def __init__(
        self,
        home: Path,
        checkout: Path,
        port: int,
        env: dict[str, str],
        more_schedulers: list[int],
        advertised: int | None = None,
        slices_at_once: int | None = None,
    ):
        """`more_schedulers` are the ports at which further schedulers, one each, say that they are up.

        The api-server listens at `port`; Airflow's other processes are told to reach it at `advertised`.
        With `slices_at_once` process tasks have a pool of so many slots.
        """
        self.home, self.checkout, self.port, self._advertised = home / "airflow", checkout, port, advertised or port
        self._env, self._more_schedulers, self._slices_at_once = env, more_schedulers, slices_at_once

    @property
    def url(self) -> str:
        """Where its UI is."""
        return f"http://{HOST}:{self.port}"

    def initialize(self, postgres: Postgres) -> None:
        """Settings, secrets, the metadata database brought up to this version of Airflow, once, and the pool in it."""
        self.home.mkdir(parents=True, exist_ok=True)
        self._env = self._settings(postgres) | self._env
        stamp = self.home / "migrated"
        if not stamp.exists() or stamp.read_text() != version("apache-airflow"):
            done = subprocess.run(
                [*_airflow(), "db", "migrate"], env=environment(self._env), capture_output=True, text=True
            )
            if done.returncode:
                raise StackError(f"airflow db migrate failed:\n{(done.stdout + done.stderr)[-2000:]}")
            stamp.write_text(version("apache-airflow"))
        if self._slices_at_once is not None:
            # Airflow's own command for it takes as long to start as a server.
            with psycopg.connect(postgres.url("airflow")) as conn:
                conn.execute(
                    "insert into slot_pool (pool, slots, description, include_deferred) values (%s, %s, %s, false) "
                    "on conflict (pool) do update set slots = excluded.slots",
                    [POOL, self._slices_at_once, "slices at work at the same time"],
                )

    def servers(self, logs: Path) -> list[Server]:
        """The four processes, and the further schedulers; the api-server is the first, as tasks wait for it."""
        # Logs of tasks are read from the disk that all four share; serving them would take fixed ports.
        quiet = {"scheduler": ["--skip-serve-logs"], "triggerer": ["--skip-serve-logs"]}
        return [
            Server(
                name,
                [*_airflow(), name, *quiet.get(name, [])],
                logs / f"{name}.log",
                lambda reported=reported: self._is_healthy(reported),
                env=self._env,
                cwd=self.home,
                seconds_to_start=120,
            )
            for name, reported in PROCESSES.items()
        ] + [self._scheduler(number, port, logs) for number, port in enumerate(self._more_schedulers, 2)]

    def _scheduler(self, number: int, port: int, logs: Path) -> Server:
        health = {
            "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "True",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": HOST,
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": str(port),
        }
        return Server(
            f"scheduler-{number}",
            [*_airflow(), "scheduler", "--skip-serve-logs"],
            logs / f"scheduler-{number}.log",
            lambda: _answers(f"http://{HOST}:{port}/health"),
            env=self._env | health,
            cwd=self.home,
            seconds_to_start=120,
        )

    def _is_healthy(self, reported: str) -> bool:
        try:
            with urlopen(f"{self.url}/api/v2/monitor/health", timeout=2) as answer:
                health = json.load(answer)
        except (URLError, OSError, ValueError):
            return False
        if reported == "api-server":
            # The part that tasks talk to is made at the first request, which takes seconds: not at a task's.
            return _answers(f"{self.url}/execution/health", patience=30)
        return (health.get(reported) or {}).get("status") == "healthy"

    def _settings(self, postgres: Postgres) -> dict[str, str]:
        metadata = postgres.url("airflow", postgres.advertised)
        keys = self._keys()
        settings = {
            "CORE__DAGS_FOLDER": self.checkout / "dags",
            "CORE__PLUGINS_FOLDER": self.checkout / "plugins",
            # Else plugins/preload.py would be loaded by each task, which is too late.
            "CORE__LAZY_LOAD_PLUGINS": False,
            "CORE__LOAD_EXAMPLES": False,
            "CORE__EXECUTOR": "ratchet.airflow.executor.LocalExecutor",
            "CORE__PARALLELISM": 8,
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
            "CORE__FERNET_KEY": keys["fernet"],
            "CORE__EXECUTION_API_SERVER_URL": f"http://{HOST}:{self._advertised}/execution/",
            "API__HOST": HOST,
            "API__PORT": self.port,
            "API__BASE_URL": self.url,
            "API__WORKERS": 1,
            "API__SECRET_KEY": keys["api"],
            "API_AUTH__JWT_SECRET": keys["jwt"],
            "DATABASE__SQL_ALCHEMY_CONN": metadata.replace("postgresql://", "postgresql+psycopg2://"),
            "DATABASE__SQL_ALCHEMY_CONN_ASYNC": metadata.replace("postgresql://", "postgresql+asyncpg://"),
            "LOGGING__BASE_LOG_FOLDER": self.home / "logs",
            # A warm run of four short tasks takes half as long with these than with the defaults.
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.25,
            "WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
            # What a killed server leaves behind is found as soon as its heartbeats are known to be over: by default
            # Airflow looks only every five minutes for the tasks of a scheduler that is gone.
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 10,
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 60,
            # The same of a task that the scheduler itself has lost; on a busy machine others wait in the queue as well.
            "SCHEDULER__TASK_QUEUED_TIMEOUT": 300,
            "SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": 30,
            "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": 15,
            # Tasks outlive the half minute in which the api-server is started again, and then notice soon.
            "WORKERS__EXECUTION_API_RETRIES": 20,
            "WORKERS__EXECUTION_API_RETRY_WAIT_MAX": 3,
            "DAG_PROCESSOR__PARSING_PROCESSES": 1,
            "DAG_PROCESSOR__REFRESH_INTERVAL": 15,
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 15,
            "USAGE_DATA_COLLECTION__ENABLED": False,
        }
        named = {f"AIRFLOW__{name}": str(value) for name, value in settings.items()}
        pool = {} if self._slices_at_once is None else {"RATCHET_PROCESS_POOL": POOL}
        return {
            **pool,
            "AIRFLOW_HOME": str(self.home),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(spark_home()),
            **named,
        }

    def _keys(self) -> dict[str, str]:
        file = self.home / "keys.json"
        if not file.exists():
            file.touch(mode=0o600)
            made = {
                "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "api": secrets.token_urlsafe(32),
                "jwt": secrets.token_urlsafe(64),
            }
            file.write_text(json.dumps(made))
        return json.loads(file.read_text())


def _answers(url: str, patience: float = 2) -> bool:
    try:
        urlopen(url, timeout=patience).close()
    except (URLError, OSError, ValueError):
        return False
    return True


def _airflow() -> list[str]:
    return [sys.executable, "-m", "airflow"]
