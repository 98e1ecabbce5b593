"""Who may see and do what on the page: every route, for nobody, for who has no right, and for another site."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import psycopg
import pytest

from ratchet.ledger import history
from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate
from ratchet.page.app import make
from ratchet.page.shown import BUILT, FILES
from tests.ledger.destinations.elsewhere import SENT
from tests.ledger.staging import Log, fail

from .conftest import As, made_anew

pytestmark = pytest.mark.all

READS = {
    "/pipelines": {},
    "/lag": {},
    "/openapi.json": {},
    "/pipelines/line": {},
    "/pipelines/line/transactions/1": {},
    "/pipelines/line/runs": {"run_id": "a"},
    "/pipelines/line/letters/counts": {},
    "/pipelines/line/letters": {},
    "/pipelines/line/letters/download": {},
    "/pipelines/line/where": {"partition": 0, "offset": 3},
    "/pipelines/line/origin": {"sink": "rows", "key": "a=3"},
}
ABOVE = {"/pipelines", "/lag", "/openapi.json"}
"""Of no pipeline: a list has what the user may read."""
MOVES = {
    "retry": {},
    "abort": {"txid": 1},
    "void": {"txid": 1},
    "accept-loss": {},
    "replay": {"first": 1, "last": 1},
    "cancel-replay": {"first": 1, "last": 1},
    "release": {"first": 1, "last": 1},
    "pause-at": {},
    "resume": {},
    "detach": {"destination": "warehouse:copied"},
}
MOVED = [f"/pipelines/line/moves/{move}" for move in MOVES]


@pytest.fixture(scope="module")
def line(postgres) -> Iterator[Ledger]:
    """A halted line, in which every move but three is possible."""
    with made_anew(postgres) as ledger:
        migrate(ledger.url, [SENT])
        for run in "abc":
            fail(ledger, Log(stable={0: 500, 1: 500}), run)
        yield ledger


@pytest.fixture
def unmoved(line) -> Iterator[None]:
    """Nothing has changed when a test is over."""
    before = moves(line)
    yield
    assert before and moves(line) == before


def of_move(path: str) -> dict:
    return MOVES[path.rpartition("/")[2]]


def test_every_route_is_known_here():
    """A route that is added is added to these tests, or this one fails."""
    paths = {
        (route.path.removeprefix("/api").replace("{dag_id}", "line").replace("{txid}", "1"), *route.methods)
        for route in make().routes
        if route.path not in FILES
    }
    assert {path for path, method in paths if method == "GET"} == set(READS)
    assert {path for path, method in paths if method == "POST"} == set(MOVED)
    assert {method for _, method in paths} == {"GET", "POST"}


def test_the_page_alone_is_shown_to_everybody_and_loads_nothing_from_elsewhere(as_: As):
    page = str(as_().base_url).removesuffix("/api/")
    for path, name in FILES.items():
        said = httpx.get(f"{page}{path}")
        assert said.content == (BUILT / name).read_bytes()
        assert "default-src 'self'" in said.headers["content-security-policy"]
    for other in ("/%2e%2e/app.py", "/web/package.json", "/source.sha256", "/nothing"):
        assert httpx.get(f"{page}{other}").status_code == 404


@pytest.mark.parametrize("path", READS)
def test_nobody_sees_anything(as_: As, path: str):
    said = as_().get(path, params=READS[path])
    assert (said.status_code, said.json()) == (401, {"code": None, "error": "Refused", "message": "Not authenticated"})
    forged = as_(Authorization="Bearer abc").get(path, params=READS[path])
    assert forged.status_code in (401, 403) and "pipelines" not in forged.json()


@pytest.mark.parametrize("path", MOVED)
def test_nobody_moves_anything(as_: As, unmoved, path: str):
    for dry_run in (True, False):
        said = as_().post(path, json={**of_move(path), "dry_run": dry_run})
        assert said.status_code == 401


@pytest.mark.parametrize("path", READS)
def test_who_may_read_no_dag_sees_none(as_: As, unmoved, path: str):
    said = as_("nemo").get(path, params=READS[path])
    if path not in ABOVE:
        assert (said.status_code, said.json()["message"]) == (403, "Forbidden")
    elif path != "/openapi.json":
        assert said.json() in ({"pipelines": [], "unknown": []}, {"lags": [], "unknown": []})


@pytest.mark.parametrize("path", MOVED)
@pytest.mark.parametrize("who", ["vera", "nemo"])
def test_who_may_not_change_runs_of_the_dag_makes_no_move_and_no_dry_run(as_: As, unmoved, path: str, who: str):
    for dry_run in (True, False):
        said = as_(who).post(path, json={**of_move(path), "dry_run": dry_run, "reason": "x"})
        assert (said.status_code, said.json()["message"]) == (403, "Forbidden")


def test_who_has_rights_to_one_dag_sees_and_moves_that_one(as_: As, unmoved):
    client = as_("ines")
    assert [of["pipeline"] for of in client.get("/pipelines").json()["pipelines"]] == ["line"]
    assert client.get("/lag").json()["unknown"][0]["pipelines"] == ["line"]
    assert client.post("/pipelines/line/moves/void", json={"txid": 1}).status_code == 200
    for path, params in READS.items():
        if path not in ABOVE:
            assert client.get(path.replace("/line", "/secret"), params=params).status_code == 403
    for path in MOVED:
        assert client.post(path.replace("/line", "/secret"), json=of_move(path)).status_code == 403


FOREIGN = {
    "another origin": {"Origin": "https://evil.example"},
    "an origin that is none": {"Origin": "null"},
    "another scheme": {"Origin": "https://{host}"},
    "another site, by the browser": {"Sec-Fetch-Site": "cross-site"},
    "a neighbour, by the browser": {"Sec-Fetch-Site": "same-site"},
    "no header of the page": {"X-Ratchet": None},
    "a form": {"Content-Type": "application/x-www-form-urlencoded"},
    "plain text": {"Content-Type": "text/plain"},
}


@pytest.mark.parametrize("how", FOREIGN)
@pytest.mark.parametrize("path", MOVED)
def test_a_request_of_another_site_moves_nothing_whoever_is_logged_in(as_: As, unmoved, path: str, how: str):
    client = as_("ada", cookie=True)
    headers = {"Content-Type": "application/json"}
    for name, value in FOREIGN[how].items():
        client.headers.pop(name, None)
        headers.pop(name, None)
        if value is not None:
            headers[name] = value.format(host=client.base_url.netloc.decode())
    said = client.post(path, content=httpx.Request("POST", "http://x", json=of_move(path)).content, headers=headers)
    assert said.status_code == (415 if "Content-Type" in FOREIGN[how] else 403), said.text


@pytest.mark.parametrize("path", MOVED)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD"])
def test_a_move_is_no_get(as_: As, unmoved, path: str, method: str):
    assert as_("ada").request(method, path, params=of_move(path)).status_code == 405


def test_the_page_itself_is_let_through(as_: As, unmoved):
    client = as_("ulf", cookie=True)
    own = str(client.base_url).partition("/ratchet")[0]
    headers = {"Origin": own, "Sec-Fetch-Site": "same-origin"}
    said = client.post("/pipelines/line/moves/void", json={"txid": 1}, headers=headers)
    assert said.status_code == 200 and said.json()["dry_run"], said.text


def test_other_sites_may_not_read_answers_and_nobody_keeps_them(as_: As, line):
    said = as_("vera", cookie=True, Origin="https://evil.example").get("/pipelines")
    assert "access-control-allow-origin" not in said.headers
    assert said.headers["cache-control"] == "no-store" and said.headers["x-content-type-options"] == "nosniff"


def moves(ledger) -> list[tuple]:
    """Every event, and every revision that is asked for."""
    with psycopg.connect(ledger.url) as conn:
        asked = conn.execute("select txid from ratchet.replays").fetchall()
    with ledger.snapshot() as conn:
        return [*((event.txid, event.move) for event in history.read(conn, "line")), *asked]
