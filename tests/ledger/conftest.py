"""A ledger of its own for each test, with the tables of SPEC, and the log that begin is told of."""

from datetime import UTC, datetime

import pytest

from ratchet.airflow import waiting
from ratchet.dev.stack import CHECKOUT
from ratchet.ledger.connection import Ledger
from ratchet.operate.actions import void
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.answers import answer
from tests.ledger.destinations.elsewhere import Elsewhere
from tests.ledger.moving import SPEC as MOVING
from tests.ledger.moving import Produced
from tests.ledger.releasing import OWN
from tests.ledger.releasing import SPEC as RELEASING
from tests.ledger.running import apart, here
from tests.ledger.staging import SPEC, Log, prepare, rows_of, start, vote_of, write
from tests.ledger.task import Task

WHEN = datetime(2013, 1, 1, 5, tzinfo=UTC)
LONG = {0: 200, 1: 200}
"""How far the log of a whole line reaches."""


def three_committed(url: str) -> None:
    """Fill a ledger for the tests that begin with a whole line."""
    log = Log(stable=dict(LONG))
    with Ledger(url) as ledger:
        for run in "abc":
            begun = start(ledger, SPEC, log, run)
            if run == "b":
                void(ledger, SPEC, 2, "for the test", "me")
                continue
            for part in begun.slices:
                work = take_try(ledger, SPEC, begun.claim, part.number)
                rows = rows_of(SPEC, work)
                first = rows["rows"].pop(0)
                rows["latest"].pop(0)
                rows[DEAD_LETTERS] = [
                    {
                        "_partition": first["_partition"],
                        "_offset": first["_offset"],
                        "timestamp": WHEN,
                        "key": b"k",
                        "value": None,
                        "headers": '[{"key":"a b","value":"AA=="}]',
                        "error": "no",
                    }
                ]
                sinks = {n: write(ledger, SPEC, work, n, of) for n, of in rows.items()}
                cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks, dead_letters=1))
            commit(ledger, SPEC, begun.claim)


@pytest.fixture
def migrated(request):
    """The tables of the line that a test works on, and what is in them, by the fixture that it asks for."""
    tables = {
        "whole": ([SPEC], "", three_committed),
        "ledger": ([SPEC], ""),
        "moving": ([MOVING], ""),
        "rich_ledger": ([RELEASING], OWN),
    }
    return next((made for fixture, made in tables.items() if fixture in request.fixturenames), ((), ""))


@pytest.fixture
def ledger(ledger_url):
    """A ledger with the tables of a line."""
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def moving(ledger_url, monkeypatch):
    """A ledger with the tables of a line whose keys go to other partitions."""
    monkeypatch.setattr("ratchet.operate.prune.KEPT", 1)
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def elsewhere(databases):
    """Another database, to which destinations lead."""
    with databases.made() as url:
        yield Elsewhere(url)


@pytest.fixture
def topic():
    return Produced()


@pytest.fixture
def whole(ledger, log):
    """Three committed transactions, the second voided, one dead letter each."""
    log.stable = dict(LONG)
    return ledger


@pytest.fixture
def rich_ledger(ledger_url):
    """A ledger with the tables of a line that has a sink of each kind."""
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def stages(ledger_url, monkeypatch):
    return Task(ledger_url, monkeypatch)


@pytest.fixture
def in_no_hurry(monkeypatch):
    """Whoever is told is told by a notification."""
    monkeypatch.setattr(waiting, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.05)


@pytest.fixture
def two(ledger, log) -> list[Begun]:
    """Two prepared transactions: the second has to wait."""
    begun = [start(ledger, SPEC, log, run) for run in "ab"]
    for each in begun:
        prepare(ledger, SPEC, each)
    return begun


@pytest.fixture
def ratchet(ledger_url):
    """Runs the command with the ledger in its environment: (exit status, stdout, stderr).

    It runs in this process, which takes a tenth of the time, or where it is to import from elsewhere, by a PYTHONPATH,
    in one of its own. What it prints with --json is held against its schema.
    """
    env = {"RATCHET_LEDGER_URL": ledger_url, "RATCHET_PIPELINES": "tests.ledger.pipelines"}
    env |= {"PYTHONPATH": str(CHECKOUT), "COLUMNS": "200"}

    def run(*arguments: str, **more: str) -> tuple[int, str, str]:
        status, out, err = (apart if "PYTHONPATH" in more else here)(arguments, {**env, **more})
        if "--json" in arguments and out:
            answer(arguments[0], out)
        return status, out, err

    return run
