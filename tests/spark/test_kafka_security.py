"""Kafka behind TLS and a login: every client gets in with the same properties, and nobody shows the password."""

import logging
import traceback
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest
from kafka import KafkaProducer
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion
from pyspark.errors import PySparkException

from ratchet.dev.stack import Stack
from ratchet.dev.stack.kafka import Security
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import OffsetRange
from ratchet.source.kafka import Kafka
from ratchet.source.properties import client_settings
from ratchet.spark.reader import read
from tests.kafka.security import PASSWORD, certificates, refused
from tests.spark.rig import SINK, Rig, content, numbered, spec_of

SHOWN = (PASSWORD, PASSWORD.replace("\\", "\\\\").replace('"', '\\"'), "s3cret")


@pytest.fixture(autouse=True)
def logged(caplog):
    """Below this kafka-python shows what it sends, a login too; `quiet_clients` keeps it out of a task's log."""
    caplog.set_level(logging.INFO)


@pytest.fixture(scope="module")
def secure(scratch: Path):
    """One broker that lets nobody in without TLS and a login."""
    made = certificates(scratch / "certificates")
    security = Security(made / "authority.pem", made / "identity.pem", {"ann": PASSWORD})
    with Stack(scratch / "secure", {"kafka"}, security=security) as stack:
        with Kafka(stack.kafka) as client:
            scram = UserScramCredentialUpsertion("ann", ScramMechanism.SCRAM_SHA_512, PASSWORD)
            assert client.admin.alter_user_scram_credentials([scram]) == {"ann": None}
        yield stack


@pytest.fixture(params=["PLAIN", "SCRAM-SHA-512"])
def properties(secure: Stack, request) -> dict[str, str]:
    if request.param == "PLAIN":
        return secure.kafka
    login = secure.kafka["sasl.jaas.config"].replace("plain.PlainLoginModule", "scram.ScramLoginModule")
    return {**secure.kafka, "sasl.mechanism": request.param, "sasl.jaas.config": login}


def make_topic(properties: dict[str, str], values: list[bytes]) -> str:
    topic = f"secure-{uuid4().hex[:12]}"
    with Kafka(properties) as client:
        wanted = {topic: {"num_partitions": 1, "replication_factor": 1}}
        client.admin.create_topics(wanted, wait_for_metadata=True)
    producer = KafkaProducer(**client_settings(properties), acks="all")
    for value in values:
        producer.send(topic, value, partition=0)
    producer.flush()
    producer.close()
    return topic


def written_below(home: Path) -> str:
    """Everything that is in files below a directory."""
    return "\n".join(file.read_text(errors="replace") for file in home.rglob("*") if file.is_file())


def test_every_call_of_the_client_gets_in(properties):
    topic = make_topic(properties, [b"a"] * 7)
    with Kafka(properties) as client:
        assert client.offsets(topic).stable == {0: 7}
        assert client.committed_records_between(OffsetRange(topic, 0, 2, 7)) == 5
        client.mirror("watched", {(topic, 0): 3})
        assert client.mirrored("watched", [topic]) == {(topic, 0): 3}


def test_a_slice_is_read_through_spark_and_no_password_is_shown(properties, session, spark_connect, ledger_url, caplog):
    topic = make_topic(properties, numbered(range(20)))
    with Kafka(properties) as client, Ledger(ledger_url) as ledger:
        rig = Rig(session, ledger, properties, client)
        spec = spec_of(topic)
        (work,) = rig.begin(spec)
        rig.check(spec, work, rig.run(spec, work))
        assert content(rig.written(work, SINK)) == Counter((0, o, o) for o in range(20))
        records = read(session, work.ranges, properties)
        said = [records._explain_string(extended=True), str(records), written_below(spark_connect.home), caplog.text]
    assert "partition AS _partition" in said[0] and "WARN" in said[2] and "Authenticated as ann" in said[3]
    for text in said:
        assert not any(secret in text for secret in SHOWN)


def offsets(properties: dict[str, str]) -> None:
    """Ask the client."""
    with Kafka(properties) as client:
        client.offsets("any")


def test_a_wrong_password_is_said_at_once(properties, caplog):
    login = properties["sasl.jaas.config"].replace("s3cret", "wrong-word")
    said = refused(offsets, {**properties, "sasl.jaas.config": login}, caplog)
    assert said.startswith(f"SettingsError: no connection to Kafka at {properties['bootstrap.servers']}: ")
    assert "ended the connection during the login" in said
    assert f"sasl.mechanism ({properties['sasl.mechanism']}) and sasl.jaas.config (user ann)" in said
    # Once: a client that tries again and again locks the account.
    assert caplog.text.count("Initializing connection") == 1


def test_a_certificate_that_is_not_trusted_is_said_at_once(secure, caplog):
    stranger = Path(secure.kafka["ssl.truststore.location"]).with_name("stranger.pem")
    said = refused(offsets, {**secure.kafka, "ssl.truststore.location": str(stranger)}, caplog)
    assert said.startswith("SettingsError") and "CERTIFICATE_VERIFY_FAILED" in said and str(stranger) in said


@pytest.mark.parametrize(("name", "why"), [("absent.pem", "No such file"), ("names", "no certificate")])
def test_a_truststore_that_cannot_be_read_is_named(secure, caplog, name, why):
    file = Path(secure.kafka["ssl.truststore.location"]).with_name(name)
    said = refused(offsets, {**secure.kafka, "ssl.truststore.location": str(file)}, caplog)
    assert said.startswith("SettingsError") and why in said and str(file) in said


def test_who_comes_without_tls_is_not_let_in(secure, caplog, monkeypatch):
    monkeypatch.setattr("ratchet.source.client.TIMEOUT_MS", 1_000)
    for protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        said = refused(offsets, {**secure.kafka, "security.protocol": protocol}, caplog)
        assert said.startswith("BrokerUnreachable") and "security properties" in said


def test_spark_that_is_not_let_in_shows_no_password(secure, session, spark_connect):
    login = secure.kafka["sasl.jaas.config"].replace("s3cret", "wrong-word")
    records = read(session, [OffsetRange("any", 0, 0, 5)], {**secure.kafka, "sasl.jaas.config": login})
    with pytest.raises(PySparkException) as raised:
        records.collect()
    shown = "".join(traceback.format_exception(raised.value))
    assert "SaslAuthenticationException" in shown + written_below(spark_connect.home / "logs")
    assert not any(secret in shown + written_below(spark_connect.home) for secret in ("s3cret", "wrong-word"))
