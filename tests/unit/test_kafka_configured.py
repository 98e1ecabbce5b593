"""Connections to Kafka as people have them: Java's names and librdkafka's, and settings that mean nothing here."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.errors import SettingsError
from ratchet.source.configured import IDLE, TUNING, configured
from ratchet.source.properties import KNOWN, client_settings

AT = {"bootstrap.servers": "a:9092"}
TOKENS = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://a/token"}
UNSECURED = 'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="s3cret";'


def test_what_airflows_own_connections_have_is_taken_or_ignored_and_said():
    found = configured(
        {
            **AT,
            "group.id": "mine",
            "auto.offset.reset": "beginning",
            "enable.auto.commit": "false",
            "fetch.min.bytes": "5",
            "isolation.level": "read_committed",
            "enable.ssl.certificate.verification": "True",
        }
    )
    assert found.properties == {**AT, "fetch.min.bytes": "5"}
    assert found.ignored == ("group.id", "auto.offset.reset", "enable.auto.commit")
    assert str(found).startswith("ignored Kafka's group.id, auto.offset.reset, enable.auto.commit: which offsets")


def test_librdkafkas_names_are_javas():
    found = configured(
        {
            "metadata.broker.list": "a:9092",
            "security.protocol": "sasl_ssl",
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "ann",
            "sasl.password": 'p"w\\;=d',
            "ssl.ca.location": "/ca.pem",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert found.ignored == ()
    assert "scram.ScramLoginModule" in found.properties["sasl.jaas.config"]
    assert client_settings(found.properties) == {
        "bootstrap_servers": ["a:9092"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "ann",
        "sasl_plain_password": 'p"w\\;=d',
        "ssl_cafile": "/ca.pem",
        "ssl_check_hostname": False,
    }


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"auto.offset.rest": "x"}, "auto.offset.rest is none that is known here; correct it, or take it out"),
        ({"isolation.level": "read_uncommitted"}, "isolation.level=read_uncommitted is not supported"),
        ({"enable.ssl.certificate.verification": "false"}, "give the broker's authority as ssl.ca.location"),
        ({"oauth_cb": "a:b"}, "oauth_cb is not supported; a function of one process is not there in every worker"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "needs sasl.oauthbearer.token.endpoint.url, sasl.oauthbearer.client.cred"),
        ({**TOKENS, "sasl.jaas.config": 'PlainLoginModule password="s3cret"'}, "is not understood beside sasl.mech"),
        ({**TOKENS, "sasl.jaas.config": UNSECURED}, "unsecuredLoginStringClaim_sub in Kafka property sasl.jaas.config"),
        ({**TOKENS, "sasl.login.callback.handler.class": "org.Mine"}, "org.Mine is not supported: no class of Java's"),
        ({**TOKENS, "sasl.oauthbearer.extensions": "logicalCluster"}, "extensions is not understood; write name=value"),
        ({**TOKENS, "sasl.oauthbearer.extensions": "a=b", "sasl.jaas.config": "x"}, "given beside sasl.jaas.config"),
        ({"sasl.oauthbearer.grant.type": "jwt-bearer"}, "jwt-bearer is not supported; it can be client_credentials"),
        ({"sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method=default is not supported; it can be oidc"),
        ({"sasl.mechanisms": "AWS_MSK_IAM"}, "sasl.mechanism=AWS_MSK_IAM is not supported"),
        ({"security.protocol": "TLS"}, "security.protocol=TLS is none of PLAINTEXT, SSL"),
        ({"ssl.key.location": "/k", "ssl.certificate.location": "/c"}, "into one PEM file, as ssl.keystore.location"),
        ({"ssl.keystore.location": "/k.p12"}, "ssl.keystore.location needs ssl.keystore.type=PEM"),
        ({"sasl.username": "a", "sasl.password": "s3cret"}, "sasl.mechanism is missing; a login by sasl.username"),
        ({"sasl.username": "ann"}, "sasl.password is missing"),
        ({"sasl.password": "s3cret"}, "sasl.username is missing"),
        (
            {"sasl.username": "a", "sasl.password": "s3cret", "sasl.jaas.config": "x"},
            "is given beside sasl.jaas.config",
        ),
        ({"sasl.mechanism": "PLAIN", "sasl.mechanisms": "GSSAPI"}, "sasl.mechanism is given twice"),
        ({"interceptor.classes": "x"}, "interceptor.classes is not supported; records are read"),
    ],
)
def test_what_is_not_understood_is_refused_by_name_before_anything_is_begun(properties, said):
    with pytest.raises(SettingsError, match=re.escape(said)) as refused:
        client_settings(configured({**AT, **properties}).properties)
    assert "s3cret" not in str(refused.value)


@given(st.dictionaries(st.sampled_from(sorted(IDLE | TUNING | KNOWN)) | st.text(max_size=8), st.text(max_size=8)))
def test_every_property_is_kept_or_ignored_by_name_or_refused(properties):
    try:
        found = configured(properties)
    except SettingsError:
        return
    # Words that mean the same in small letters.
    kept = {"ssl.endpoint.identification.algorithm", "security.protocol", "sasl.mechanism"}
    for name in properties.keys() - kept:
        assert (name in found.ignored) != (found.properties.get(name) == properties[name])
