"""Logins by OAUTHBEARER: every client gets in by tokens that it asks for itself, and shows no secret."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from ratchet.destinations.kafka_producer import TransactionalProducer
from ratchet.dev.stack import Stack
from ratchet.dev.stack.kafka import Security
from ratchet.dev.stack.server import Server
from ratchet.ledger.work import OffsetRange
from ratchet.source import token_provider, tokens
from ratchet.source.columnar import ColumnarSource
from ratchet.source.configured import configured
from ratchet.source.kafka import Kafka
from ratchet.source.topics import Topics
from tests.kafka.endpoint import AUDIENCE, Identity
from tests.kafka.security import PASSWORD, certificates, refused
from tests.source.conformance import checked
from tests.source.topics import make_topic, stable_ranges, witnessed, write_everything

HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
SECRET = "s3cret-of-the-client"


@pytest.fixture(scope="module")
def identity(scratch):
    with Identity(scratch / "keys.json", {"ann": SECRET, "short": SECRET}) as found:
        yield found


@pytest.fixture(scope="module")
def secure(scratch, identity):
    """One broker that takes tokens of the identity provider, which it checks by its keys."""
    made = certificates(scratch / "certificates-of-tokens")
    security = Security(made / "authority.pem", made / "identity.pem", {"ann": PASSWORD})
    listener, keys = "listener.name.sasl_ssl", identity.keys.as_uri()
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        f"{listener}.oauthbearer.sasl.jaas.config": LOGIN,
        f"{listener}.oauthbearer.sasl.server.callback.handler.class": HANDLER,
        f"{listener}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": keys,
        f"{listener}.oauthbearer.sasl.oauthbearer.expected.audience": AUDIENCE,
    }

    def by_tokens(server: Server) -> None:
        server.command.insert(1, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}")
        server.command += [word for name, value in settings.items() for word in ("--override", f"{name}={value}")]

    with Stack(scratch / "secure-tokens", {"kafka"}, security=security, alter=by_tokens) as stack:
        yield stack


@pytest.fixture
def properties(secure, identity, monkeypatch, caplog) -> dict[str, str]:
    """As Kafka 4.1 names them. Below INFO kafka-python shows what it sends; `quiet_clients` keeps it out of logs."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(token_provider, "_kept", {})
    monkeypatch.setattr(token_provider, "RETRY_SECONDS", 0.2)
    left = {name: value for name, value in secure.kafka.items() if name != "sasl.jaas.config"}
    return {
        **left,
        "sasl.mechanism": "OAUTHBEARER",
        tokens.ENDPOINT: identity.url,
        tokens.CLIENT_ID: "ann",
        tokens.CLIENT_SECRET: SECRET,
    }


def records(properties: dict[str, str]) -> None:
    """Ask the source."""
    list(ColumnarSource(properties).read([OffsetRange("any", 0, 0, 1)]))


def offsets(properties: dict[str, str]) -> None:
    with Kafka(properties) as client:
        client.offsets("any")


def test_all_clients_get_in_by_one_token(secure, properties, identity, caplog):
    topic = make_topic(secure.kafka, 2)
    write_everything(secure.kafka, topic, 2, rounds=2)
    ranges = stable_ranges(secure.kafka, topic)
    before = len(identity.issued)
    assert Counter(checked(ColumnarSource(properties), ranges)) == Counter(witnessed(secure.kafka, ranges))
    with Kafka(properties) as client, Topics(properties) as topics:
        assert (
            client.offsets(topic).stable
            == topics.ends([topic])[topic].stable
            == {r.partition: r.until_offset for r in ranges}
        )
    assert len(identity.issued) == before + 1
    assert SECRET not in caplog.text and "eyJ" not in caplog.text


def test_a_topic_is_sent_to_by_a_token_that_librdkafka_asks_for(secure, properties, identity):
    topic, before = make_topic(secure.kafka, 1), len(identity.issued)
    producer = TransactionalProducer(properties, "by-token", "line: it", topic, 1 << 20)
    producer.begin()
    producer.send(topic, "a", None, "{}")
    producer.commit()
    with Kafka(secure.kafka) as client:
        assert client.offsets(topic).stable == {0: 2}
    assert len(identity.issued) > before


@pytest.mark.parametrize(
    "given",
    [
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "ann",
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.scope": "of kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=one,pool=two=2",
        },
        {
            "sasl.login.callback.handler.class": HANDLER.replace("Validator", "Login"),
            "sasl.jaas.config": LOGIN.replace(
                ";",
                f' clientId="ann" clientSecret="{SECRET}" scope="of kafka" extension_logicalCluster="one" '
                'extension_pool="two=2";',
            ),
        },
    ],
)
def test_other_names_ask_for_the_same(properties, identity, given):
    kept = {name: value for name, value in properties.items() if name not in (tokens.CLIENT_ID, tokens.CLIENT_SECRET)}
    found = configured({**kept, **given}).properties
    with Kafka(found) as client:
        asks = client._settings["sasl_oauth_token_provider"]
        assert isinstance(asks, token_provider.Tokens)
        assert asks.extensions() == {"logicalCluster": "one", "pool": "two=2"}
        assert client.versions()
    assert identity.issued[-1] == {"grant_type": ["client_credentials"], "scope": ["of kafka"]}


@pytest.mark.parametrize("ask", [records, offsets])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {tokens.CLIENT_SECRET: "wrong-word"},
            "gives client ann no token: it answers 401 Unauthorized: invalid_",
        ),
        ({tokens.CLIENT_ID: "bob"}, "gives client bob no token: it answers 401 Unauthorized"),
        (
            {tokens.ENDPOINT: "http://127.0.0.1:1/token"},
            "BrokerUnreachable: no token for Kafka from http://127.0.0.1:1",
        ),
        ({tokens.ENDPOINT: "nowhere"}, "SettingsError: the token endpoint ://nowhere cannot be asked"),
        ({tokens.CLIENT_SECRET: ""}, "SettingsError: a login by OAUTHBEARER needs sasl.oauthbearer.client.cred"),
    ],
)
def test_a_token_that_is_not_given_is_said_with_what_to_correct(properties, ask, change, said, caplog):
    assert said in refused(ask, {**properties, **change}, caplog)


@pytest.mark.parametrize(
    ("status", "kind"), [(503, "BrokerUnreachable"), (429, "BrokerUnreachable"), (404, "Settings")]
)
def test_an_endpoint_that_is_out_of_order_is_an_outage(properties, identity, status, kind, caplog):
    identity.broken = status
    try:
        assert refused(records, properties, caplog).startswith(kind)
    finally:
        identity.broken = None


def test_a_token_that_brokers_do_not_take_is_a_refused_login(properties, identity, scratch, caplog):
    with Identity(scratch / "other-keys.json", {"ann": SECRET}) as stranger:
        said = refused(records, {**properties, tokens.ENDPOINT: stranger.url}, caplog)
    assert said.startswith("SettingsError: no connection to Kafka at ") and "(user ann)" in said


def test_a_token_is_asked_for_again_when_most_of_its_time_is_over(properties, identity, monkeypatch):
    before = len(identity.issued)
    now = token_provider.monotonic()
    for passed, asked in ((0, 1), (0.79 * identity.lasts, 1), (0.81 * identity.lasts, 2)):
        monkeypatch.setattr(token_provider, "monotonic", lambda passed=passed: now + passed)
        with Kafka(properties) as client:
            assert client.versions()
        assert len(identity.issued) == before + asked


def test_an_endpoint_that_is_away_between_two_connections_is_said(properties, identity, monkeypatch, caplog):
    """The clients connect when they need to, as after a broker's restart, and ask for the token then."""
    with Kafka(properties) as client:
        assert client.versions()
        client.close()
        monkeypatch.setattr(token_provider, "_kept", {})
        identity.broken = 503
        try:
            assert "no token for Kafka" in refused(lambda _: client.versions(), properties, caplog)
        finally:
            identity.broken = None
        assert client.versions()
