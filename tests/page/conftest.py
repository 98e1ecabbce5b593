"""An API server of Airflow with users of every role, and a ledger with a line in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest

from ratchet.dev.stack import CHECKOUT, Stack
from ratchet.dev.stack.airflow import Airflow
from ratchet.dev.stack.ports import Ports
from ratchet.dev.stack.postgres import Postgres
from ratchet.dev.stack.supervisor import Supervisor
from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate
from tests.ledger.staging import SPEC, Log
from tests.page.pipelines import MORE
from tests.page.pipelines.secret import PIPELINE as SECRET
from tests.page.rights import LIMITED, Rights

ROLES = {"vera": "viewer", "ulf": "user", "olga": "op", "ada": "admin", "nemo": "", **dict.fromkeys(LIMITED, "user")}
HEADERS = {"X-Ratchet": "1"}


@pytest.fixture(scope="package")
def airflow(scratch: Path, postgres: Stack, kafka: Stack) -> Iterator[Airflow]:
    """The API server alone; its plugins and its connections are those of any Airflow here."""
    # Where other packages' tests come between, it is started once more.
    home = scratch / f"page-{uuid4().hex[:8]}"
    (home / "more").mkdir(parents=True)
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({name: f"{name}'s password" for name in ROLES}))
    ledger = psycopg.conninfo.conninfo_to_dict(postgres.ledger_url)
    env = {
        "AIRFLOW__CORE__AUTH_MANAGER": f"{Rights.__module__}.{Rights.__name__}",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in ROLES.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW_CONN_RATCHET_LEDGER": json.dumps(
            {
                "conn_type": "postgres",
                "host": ledger["host"],
                "port": int(ledger["port"]),
                "login": ledger["user"],
                "password": ledger["password"],
                "schema": "page",
            }
        ),
        "AIRFLOW_CONN_RATCHET_KAFKA": json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}}),
        "AIRFLOW_CONN_CROWD_KAFKA": json.dumps({"conn_type": "kafka", "extra": kafka.kafka}),
        "RATCHET_PIPELINES": "tests.page.pipelines",
        MORE: str(home / "more"),
        "PYTHONPATH": str(CHECKOUT),
    }
    port = Ports(home / "ports.json", print).get("airflow")
    made = Airflow(home, CHECKOUT, port, env, [])
    made.initialize(Postgres(postgres.home, int(str(ledger["port"]))))
    supervisor = Supervisor(home / "pids.json", print)
    servers = made.servers(home / "logs")[:1]
    supervisor.launch(servers)
    try:
        supervisor.wait(servers)
        yield made
    finally:
        supervisor.stop()


@contextmanager
def made_anew(postgres: Stack) -> Iterator[Ledger]:
    """The ledger that the server's connection names."""
    with psycopg.connect(postgres.ledger_url, autocommit=True) as conn:
        conn.execute("drop database if exists page with (force)")
        conn.execute("create database page")
    url = postgres.database_url("page")
    migrate(url, [SPEC, SECRET])
    with Ledger(url) as opened:
        yield opened


@pytest.fixture
def ledger(postgres: Stack) -> Iterator[Ledger]:
    """It with no line in it."""
    with made_anew(postgres) as opened:
        yield opened


@pytest.fixture
def log() -> Log:
    return Log(stable={0: 500, 1: 500})


@pytest.fixture
def more(airflow: Airflow) -> Iterator[Path]:
    """A folder for modules of more specs, which the server reads while they are there."""
    folder = airflow.home.with_name("more")
    yield folder
    for module in folder.glob("*.py"):
        module.unlink()


As = Callable[..., httpx.Client]


@pytest.fixture(scope="package")
def tokens(airflow: Airflow) -> dict[str, str]:
    """{user: token}, as each has logged in."""
    known = {name: {"username": name, "password": f"{name}'s password"} for name in ROLES}
    said = {name: httpx.post(f"{airflow.url}/auth/token", json=body, timeout=60) for name, body in known.items()}
    return {name: answer.json()["access_token"] for name, answer in said.items()}


@pytest.fixture
def as_(airflow: Airflow, tokens: dict[str, str]) -> Iterator[As]:
    """A client of a user, by name, that sends what the page sends; of nobody where no name is given."""
    made: list[httpx.Client] = []

    def client(name: str | None = None, *, cookie: bool = False, **headers: str) -> httpx.Client:
        said = {**HEADERS, **headers}
        one = httpx.Client(base_url=f"{airflow.url}/ratchet/api", timeout=60, headers=said)
        made.append(one)
        if name is not None:
            if cookie:
                one.cookies.set("_token", tokens[name])
            else:
                one.headers["Authorization"] = f"Bearer {tokens[name]}"
        return one

    yield client
    for one in made:
        one.close()
