"""A client of the broker, and topics of a test's own."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from ratchet.dev.stack import Stack
from ratchet.dev.stack.kafka import Security
from ratchet.ledger.connection import Ledger
from ratchet.source.kafka import Kafka

from .driven import send
from .exported import Line
from .security import PASSWORD, certificates
from .sent import Sent, sending, spec_of


@pytest.fixture
def client(kafka_properties):
    with Kafka(kafka_properties) as client:
        yield client


@pytest.fixture
def make_topic(client):
    """Make a topic with a new name, these partitions and configs; returns its name."""

    def make(partitions: int = 1, name: str | None = None, **configs: str) -> str:
        name = name or f"topic-{uuid4().hex[:12]}"
        # Some records have times of years ago, and Kafka would delete them while the test runs.
        named = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": named}
        client.admin.create_topics({name: wanted}, wait_for_metadata=True)
        return name

    return make


@pytest.fixture
def sent(ledger_url, kafka_properties, make_topic) -> Iterator[Sent]:
    """A pipeline whose rows go to a topic of three partitions."""
    with Ledger(ledger_url) as ledger:
        yield sending(ledger, kafka_properties, spec_of(make_topic(3)))


@pytest.fixture
def line(ledger_url, client, make_topic, kafka_properties, tmp_path) -> Iterator[Line]:
    """A line that is exported, with a hundred records."""
    made = Line(ledger_url, client, make_topic(2), tmp_path / "lake")
    send(kafka_properties, made.spec.source.name, 100, partitions=2)
    yield made
    made.ledger.close()


@pytest.fixture(scope="module")
def security(scratch: Path) -> Security:
    made = certificates(scratch / f"certificates-{uuid4().hex[:8]}")
    return Security(made / "authority.pem", made / "identity.pem", {"ann": PASSWORD, "bob": "word"})


@pytest.fixture(scope="module")
def guarded(scratch: Path, security: Security):
    """One broker on which ann may do everything, and bob what is granted to him."""
    with Stack(scratch / f"guarded-{uuid4().hex[:8]}", {"kafka"}, security=security) as stack:
        yield stack


@pytest.fixture
def bobs(guarded, security) -> dict[str, str]:
    """The connection of bob, who may nothing yet."""
    return {**guarded.kafka, **security.properties("bob")}
