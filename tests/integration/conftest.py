"""A ledger of its own for each test, with the tables of SPEC, and the log that begin is told of; Spark's session."""

from uuid import uuid4

import pytest

from ratchet.kafka import Kafka
from ratchet.ledger import Ledger
from ratchet.migrate import migrate
from ratchet.spark.engine import connect_session

from .rig import Rig
from .staging import SPEC, Log


@pytest.fixture
def ledger(ledger_url):
    migrate(ledger_url, [SPEC])
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def log():
    return Log()


@pytest.fixture(scope="module")
def session(spark_connect):
    with connect_session(spark_connect.spark, "tests", uuid4().hex) as session:
        yield session


@pytest.fixture
def rig(session, ledger_url, kafka_properties):
    with Kafka(kafka_properties) as client, Ledger(ledger_url) as ledger:
        yield Rig(session, ledger, kafka_properties, client)
