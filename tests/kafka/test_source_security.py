"""The columnar source behind TLS and a login: it gets in like every client, and shows no password."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from ratchet.dev.stack import Stack
from ratchet.dev.stack.kafka import Security
from ratchet.ledger.work import OffsetRange
from ratchet.source import columnar
from ratchet.source.columnar import ColumnarSource
from ratchet.source.configured import configured
from ratchet.source.kafka import Kafka
from tests.kafka.security import PASSWORD, certificates, refused
from tests.source.conformance import checked
from tests.source.topics import make_topic, stable_ranges, witnessed, write_everything

MECHANISMS = {
    "PLAIN": None,
    "SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512,
}


@pytest.fixture(autouse=True)
def logged(caplog):
    caplog.set_level(logging.DEBUG)


@pytest.fixture(scope="module")
def secure(scratch: Path):
    """One broker that lets nobody in without TLS and a login."""
    made = certificates(scratch / "certificates-of-source")
    security = Security(made / "authority.pem", made / "identity.pem", {"ann": PASSWORD})
    with Stack(scratch / "secure-source", {"kafka"}, security=security) as stack:
        with Kafka(stack.kafka) as client:
            for scram in filter(None, MECHANISMS.values()):
                upsertion = UserScramCredentialUpsertion("ann", scram, PASSWORD)
                assert client.admin.alter_user_scram_credentials([upsertion]) == {"ann": None}
        yield stack


@pytest.fixture(scope="module")
def written(secure):
    """Ranges of a topic with everything, and its records as librdkafka reads them."""
    topic = make_topic(secure.kafka, 2)
    write_everything(secure.kafka, topic, 2, rounds=4)
    ranges = stable_ranges(secure.kafka, topic)
    return ranges, Counter(witnessed(secure.kafka, ranges))


def by(mechanism: str, properties: dict[str, str]) -> dict[str, str]:
    """The properties of a login by this mechanism."""
    if mechanism == "PLAIN":
        return properties
    login = properties["sasl.jaas.config"].replace("plain.PlainLoginModule", "scram.ScramLoginModule")
    return {**properties, "sasl.mechanism": mechanism, "sasl.jaas.config": login}


@pytest.fixture(params=["PLAIN", "SCRAM-SHA-512"])
def properties(secure, request) -> dict[str, str]:
    return by(request.param, secure.kafka)


def test_it_reads_everything_over_tls(properties, written, caplog):
    ranges, expected = written
    assert Counter(checked(ColumnarSource(properties), ranges)) == expected
    assert "s3cret" not in caplog.text


def test_a_login_by_librdkafkas_names_reads_the_same(properties, written):
    ranges, expected = written
    given = configured(
        {
            "bootstrap.servers": properties["bootstrap.servers"],
            "group.id": "mine",
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": properties["sasl.mechanism"],
            "sasl.username": "ann",
            "sasl.password": PASSWORD,
            "ssl.ca.location": properties["ssl.truststore.location"],
        }
    )
    assert given.ignored == ("group.id",)
    assert Counter(checked(ColumnarSource(given.properties), ranges)) == expected
    with Kafka(given.properties) as client:
        assert client.offsets(ranges[0].topic).stable


def test_answers_larger_than_a_tls_record_and_the_socket(secure, written):
    ranges, expected = written
    assert Counter(checked(ColumnarSource(secure.kafka, fetch_bytes=2**26), ranges)) == expected


def records(properties: dict[str, str]) -> None:
    """Ask the source."""
    list(ColumnarSource(properties).read([OffsetRange("any", 0, 0, 1)]))


def test_a_wrong_password_is_said_at_once_and_in_the_brokers_words(properties, caplog):
    login = properties["sasl.jaas.config"].replace("s3cret", "wrong-word")
    said = refused(records, {**properties, "sasl.jaas.config": login}, caplog)
    assert said.startswith(f"SettingsError: no connection to Kafka at {properties['bootstrap.servers']}: ")
    assert "Authentication failed" in said
    assert f"sasl.mechanism ({properties['sasl.mechanism']}) and sasl.jaas.config (user ann)" in said


def test_a_mechanism_that_the_broker_does_not_know(secure, caplog):
    said = refused(records, by("SCRAM-SHA-256", secure.kafka), caplog)
    assert said.startswith("SettingsError") and "the broker knows other mechanisms: " in said and "PLAIN" in said


def test_a_certificate_that_is_not_trusted_is_said_at_once(secure, caplog):
    stranger = Path(secure.kafka["ssl.truststore.location"]).with_name("stranger.pem")
    said = refused(records, {**secure.kafka, "ssl.truststore.location": str(stranger)}, caplog)
    assert said.startswith("SettingsError") and "CERTIFICATE_VERIFY_FAILED" in said and str(stranger) in said


def test_a_name_that_the_certificate_does_not_have(secure, caplog):
    port = secure.kafka["bootstrap.servers"].rpartition(":")[2]
    said = refused(records, {**secure.kafka, "bootstrap.servers": f"localhost:{port}"}, caplog)
    assert said.startswith("SettingsError") and "Hostname mismatch" in said


@pytest.mark.parametrize(("name", "why"), [("absent.pem", "No such file"), ("names", "no certificate")])
def test_a_truststore_that_cannot_be_read_is_named(secure, caplog, name, why):
    file = Path(secure.kafka["ssl.truststore.location"]).with_name(name)
    said = refused(records, {**secure.kafka, "ssl.truststore.location": str(file)}, caplog)
    assert said.startswith("SettingsError") and why in said and str(file) in said


def test_who_comes_without_tls_is_not_let_in(secure, caplog, monkeypatch):
    monkeypatch.setattr(columnar, "BOOTSTRAP_SECONDS", 0.5)
    for protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        said = refused(records, {**secure.kafka, "security.protocol": protocol}, caplog)
        assert said.startswith("BrokerUnreachable") and "security properties" in said


def test_a_broker_that_goes_away_during_the_handshake_may_come_back(secure, caplog, monkeypatch):
    """A connection that ends is no refusal: the broker may just be starting."""
    monkeypatch.setattr(columnar, "BOOTSTRAP_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=hang_up, daemon=True).start()
        said = refused(records, {**secure.kafka, "bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"}, caplog)
        server.shutdown(socket.SHUT_RDWR)
    assert said.startswith("BrokerUnreachable")
