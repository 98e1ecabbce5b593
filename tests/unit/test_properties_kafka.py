"""Kafka's properties: all that bears on safety is honoured or refused, and any text at all is one of the two."""

import re
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.errors import SettingsError
from ratchet.source.kafka import Kafka
from ratchet.source.properties import client_settings

words = st.text(max_size=12)
names = st.sampled_from(
    ["bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.jaas.config", "ssl.truststore.type", "client.id",
     "ssl.truststore.location", "ssl.keystore.type", "ssl.keystore.location", "ssl.key.password", "ssl.protocol",
     "ssl.endpoint.identification.algorithm", "ssl.cipher.suites", "sasl.login.class", "max.poll.records", "acks"]
)  # fmt: skip
servers = st.lists(st.sampled_from(["a:1", "b.c:9092", "[::1]:1", "d"]), min_size=1, max_size=3)


@settings(max_examples=300)
@given(st.dictionaries(names, words | st.sampled_from(["PEM", "pem", "SASL_SSL"])), st.none() | servers)
def test_any_properties_are_honoured_or_a_settings_error_that_names_one(properties, at):
    if at:
        properties = {**properties, "bootstrap.servers": ",".join(at)}
    try:
        found = client_settings(properties)
    except SettingsError as error:
        assert re.search(r"bootstrap\.servers|ssl\.\w+|sasl\.\w+|security\.protocol", str(error))
        return
    assert not at or found["bootstrap_servers"] == at
    for name, setting in (("security.protocol", "security_protocol"), ("ssl.truststore.location", "ssl_cafile")):
        assert found.get(setting) == properties.get(name)
    assert ("sasl.jaas.config" in properties) == ("sasl_plain_password" in found)
    assert not {"ssl.cipher.suites", "sasl.login.class"} & properties.keys()


@settings(max_examples=300)
@given(
    st.text(max_size=15), st.text(max_size=15), st.sampled_from(["plain.PlainLoginModule", "scram.ScramLoginModule"])
)
@example('a"b\\', 'password="x"; username="y"', "plain.PlainLoginModule")
@example("u", "line\nend", "plain.PlainLoginModule")
def test_user_and_password_of_a_login_come_back_as_java_reads_them(user, password, module):
    def quoted(text: str) -> str:
        return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'

    jaas = f"org.apache.kafka.common.security.{module} required username={quoted(user)} password={quoted(password)};"
    found = client_settings({"bootstrap.servers": "a:1", "sasl.jaas.config": jaas})
    assert (found["sasl_plain_username"], found["sasl_plain_password"]) == (user, password)


@settings(max_examples=300)
@given(st.text(max_size=40))
@example('PlainLoginModule required username="u" password="hunter2')
def test_any_login_that_is_not_understood_is_refused_without_showing_it(text):
    try:
        client_settings({"bootstrap.servers": "a:1", "sasl.jaas.config": text})
    except SettingsError as error:
        assert "sasl.jaas.config is not understood" in str(error) and "hunter2" not in str(error)


@pytest.mark.parametrize("none", [None, UUID(int=0), str(UUID(int=0))])
def test_a_topic_without_an_id_is_refused(none):
    found = {"name": "orders", "topic_id": none, "partitions": [{"partition_index": 0}]}
    with Kafka({"bootstrap.servers": "old:9092"}) as client:
        with pytest.raises(SettingsError, match="Kafka at old:9092 gives topic 'orders' no id"):
            client._id_of(found)
        assert client._id_of({**found, "topic_id": UUID(int=7)}) == str(UUID(int=7))
