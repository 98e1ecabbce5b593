"""An API server of Airflow with users of every role, and a ledger with a line in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from ratchet.dev.stack import CHECKOUT, Stack
from ratchet.dev.stack.airflow import Airflow
from ratchet.dev.stack.ports import Ports
from ratchet.dev.stack.postgres import Postgres
from ratchet.dev.stack.supervisor import Supervisor
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import read_transaction
from ratchet.operate.migrate import migrate
from tests.ledger.destinations.elsewhere import SENT, lasted, without
from tests.ledger.staging import SPEC, Log, committed, fail, prepare, start
from tests.page.browsing import SIZES
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium")
    assert found, "test-all needs Chromium; Debian: apt-get install chromium"
    with sync_playwright() as started:
        made = started.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-quic"])
        yield made
        made.close()


@pytest.fixture
def line(postgres) -> Iterator[Ledger]:
    """Three committed transactions, a halted fourth, and one that waits for it."""
    with made_anew(postgres) as ledger:
        log = Log(stable={0: 500, 1: 500})
        for run in "abc":
            committed(ledger, log, run)
        for run in "def":
            fail(ledger, log, run)
        with ledger.begin() as conn:
            assert read_transaction(conn, "line", 4).halted_at
        yield ledger


@pytest.fixture
def waiting(postgres) -> Iterator[Ledger]:
    """One that is open, and one behind it that is prepared."""
    with made_anew(postgres) as ledger:
        log = Log(stable={0: 500, 1: 500})
        start(ledger, SPEC, log, "a")
        prepare(ledger, SPEC, start(ledger, SPEC, log, "b"))
        yield ledger


@pytest.fixture
def behind(postgres) -> Iterator[Ledger]:
    """One that is committed, and that a destination lacks for some minutes."""
    with made_anew(postgres) as ledger:
        migrate(ledger.url, [SENT])
        without(ledger, Log(stable={0: 500, 1: 500}), "a")
        lasted(ledger, 5)
        yield ledger


@pytest.fixture
def open_(browser: Browser, airflow, tokens):
    """Opens a page as a user, `dark` or light, so wide; nothing may be wrong in its console."""
    made, wrong = [], []

    def opened(path: str, user: str = "ada", *, dark: bool = False, size: str = "wide") -> Page:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", locale="en-US"
        )
        context.add_cookies([{"name": "_token", "value": tokens[user], "url": airflow.url}])
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{airflow.url}{path}")
        made.append(context)
        return page

    yield opened
    for context in made:
        context.close()
    assert wrong == []
