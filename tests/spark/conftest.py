"""A session of a Connect server, and a rig of real servers around it."""

from uuid import uuid4

import pytest

from ratchet.ledger.connection import Ledger
from ratchet.source.kafka import Kafka
from ratchet.spark.engine import connect_session

from .rig import Rig


@pytest.fixture(scope="module")
def session(spark_connect):
    with connect_session(spark_connect.spark, "tests", uuid4().hex) as session:
        yield session


@pytest.fixture
def rig(session, ledger_url, kafka_properties):
    with Kafka(kafka_properties) as client, Ledger(ledger_url) as ledger:
        yield Rig(session, ledger, kafka_properties, client)
