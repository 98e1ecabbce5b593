"""Java-style client properties as the Python client's settings; never a connection less safe than asked for."""

import pytest

from ratchet import Json, Topic
from ratchet.errors import SettingsError
from ratchet.source.columnar import ColumnarSource
from ratchet.source.properties import client_settings, librdkafka_settings, unfit_for_columnar
from ratchet.spark.intake import spark_instead

AT = {"bootstrap.servers": "a:9092,b:9092"}


def test_servers_and_tuning():
    settings = client_settings({**AT, "max.poll.records": "20000", "client.id": "x"})
    assert settings == {"bootstrap_servers": ["a:9092", "b:9092"], "client_id": "x"}


def test_a_login_as_java_writes_it():
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="p\\"w;=d";'
    sasl = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas}
    assert client_settings({**AT, **sasl}) == {
        "bootstrap_servers": ["a:9092", "b:9092"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ann",
        "sasl_plain_password": 'p"w;=d',
    }


def test_pem_files_and_the_check_of_the_host_name():
    ssl = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "",
    }
    settings = client_settings({**AT, **ssl})
    assert (settings["ssl_cafile"], settings["ssl_check_hostname"]) == ("/ca.pem", False)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"bootstrap.servers": ""}, "bootstrap.servers"),
        ({**AT, "ssl.truststore.type": "JKS"}, "ssl.truststore.type=JKS"),
        ({**AT, "ssl.truststore.location": "/trust.jks"}, "needs ssl.truststore.type=PEM"),
        ({**AT, "ssl.cipher.suites": "x"}, "ssl.cipher.suites is not supported"),
        ({**AT, "sasl.jaas.config": 'Krb5LoginModule required password="secret";'}, "is not understood"),
    ],
)
def test_what_cannot_be_honoured_is_refused(properties, said):
    with pytest.raises(SettingsError, match=said) as refused:
        client_settings(properties)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "sasl.mechanism=GSSAPI takes its login from"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "sasl.mechanism=GSSAPI takes its login"),
        ({"client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}, "client.dns.lookup=resolve_canonical"),
    ],
)
def test_what_the_columnar_source_does_not_keep_to_is_known_before_it_reads(properties, said):
    assert client_settings({**AT, **properties})
    assert said in (unfit_for_columnar({**AT, **properties}) or "")
    with pytest.raises(SettingsError, match=f"the columnar source cannot read by this connection: {said}"):
        ColumnarSource({**AT, **properties})


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"client.dns.lookup": "use_all_dns_ips", "client.rack": "a", "max.poll.records": "5"},
        # Without a login no mechanism counts.
        {"security.protocol": "SSL", "sasl.mechanism": "GSSAPI"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"},
    ],
)
def test_what_it_keeps_to_is_read_by_it(properties):
    assert unfit_for_columnar({**AT, **properties}) is None
    ColumnarSource({**AT, **properties})


def test_librdkafka_is_given_the_same_by_its_own_names():
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="p\\"w";'
    given = {
        **AT,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": jaas,
        "ssl.truststore.location": "authority.pem",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.location": "identity.pem",
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "secret",
        "max.poll.records": "5",
    }
    settings = librdkafka_settings(given)
    assert settings == {
        "bootstrap.servers": "a:9092,b:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": 'p"w',
        "ssl.ca.location": "authority.pem",
        "ssl.certificate.location": "identity.pem",
        "ssl.key.location": "identity.pem",
        "ssl.key.password": "secret",
    }
    # The broker's name is looked at unless that is refused in so many words.
    unnamed = librdkafka_settings({**given, "ssl.endpoint.identification.algorithm": ""})
    assert unnamed == {**settings, "ssl.endpoint.identification.algorithm": "none"}
    assert librdkafka_settings({**given, "ssl.endpoint.identification.algorithm": "https"}) == settings


def test_spark_s_source_is_not_asked_to_log_in_by_tokens():
    """It would wait for them in Java, and fail in each task."""
    tokens = {
        **AT,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://a/token",
        "sasl.oauthbearer.client.credentials.client.id": "ann",
        "sasl.oauthbearer.client.credentials.client.secret": "secret",
    }
    topic = Topic("orders", value=Json("id bigint"))
    assert spark_instead(topic, tokens) is None
    canonical = {**tokens, "client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}
    for asked, properties in ((topic.model_copy(update={"reader": "spark"}), tokens), (topic, canonical)):
        with pytest.raises(SettingsError, match="Spark's Kafka source does not log in by OAUTHBEARER"):
            spark_instead(asked, properties)
