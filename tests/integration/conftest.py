"""A ledger of its own for each test, with the tables of SPEC, and the log that begin is told of; Spark's session."""

from uuid import uuid4

import pytest

from ratchet.commit import commit
from ratchet.kafka import Kafka
from ratchet.ledger import Ledger
from ratchet.migrate import migrate
from ratchet.moves import void
from ratchet.pipeline import DEAD_LETTERS
from ratchet.spark.engine import connect_session
from ratchet.votes import cast_vote, take_try

from .rig import Rig
from .staging import SPEC, Log, positions, rows_of, start, vote_of, write
from .task import Task


@pytest.fixture
def ledger(ledger_url):
    migrate(ledger_url, [SPEC])
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def whole(ledger, log):
    """Three committed transactions, the second voided, one dead letter each."""
    log.stable = {0: 200, 1: 200}
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
                    "key": b"k",
                    "value": None,
                    "headers": '[{"key":"a b","value":"AA=="}]',
                    "error": "no",
                }
            ]
            sinks = {n: write(ledger, SPEC, work, n, of) for n, of in rows.items()}
            cast_vote(ledger, SPEC, work.token, vote_of(SPEC, len(positions(work)), sinks, dead_letters=1))
        commit(ledger, SPEC, begun.claim)
    return ledger


@pytest.fixture
def stages(ledger_url, monkeypatch):
    return Task(ledger_url, monkeypatch)


@pytest.fixture(scope="module")
def session(spark_connect):
    with connect_session(spark_connect.spark, "tests", uuid4().hex) as session:
        yield session


@pytest.fixture
def rig(session, ledger_url, kafka_properties):
    with Kafka(kafka_properties) as client, Ledger(ledger_url) as ledger:
        yield Rig(session, ledger, kafka_properties, client)
