"""Airflow connections: every part of one arrives as it is, in every client; what is unfit is a SettingsError."""

import json
from unittest.mock import patch
from urllib.parse import unquote

from airflow.sdk import Connection
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql.connect.client import DefaultChannelBuilder
from sqlalchemy import make_url

from ratchet.airflow import connections
from ratchet.errors import SettingsError
from ratchet.ledger.connection import Ledger

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12)
hosts = st.sampled_from(["db", "db.example.com", "127.0.0.1", "::1", "/var/run/a b", "/tmp/ü"])
ports = st.none() | st.integers(1, 65535)
options = st.dictionaries(st.sampled_from(["sslmode", "sslrootcert", "sslcert", "options", "application_name"]), words)
loose = st.none() | st.booleans() | st.integers(-5, 5) | words | st.lists(words, max_size=2)
extras = st.one_of(
    st.none(),
    words,
    st.dictionaries(words | st.sampled_from(["bootstrap.servers", "use_ssl", "jars"]), loose, max_size=3).map(
        json.dumps
    ),
    loose.map(json.dumps),
)


@settings(max_examples=300)
@given(words, st.none() | words, hosts, ports, words, options)
@example("u", "p@:/?#%20+", "db", 5432, "a b%20c/d+é", {"sslrootcert": "/a b&c=d%20+e"})
def test_every_part_of_a_ledgers_connection_reaches_libpq_and_sqlalchemy(login, password, host, port, schema, extra):
    found = Connection(
        conn_id="l", conn_type="postgres", login=login, password=password, host=host, port=port, schema=schema,
        extra=json.dumps({**extra, "not_of_libpq": 1}),
    )  # fmt: skip
    url = connections._libpq_url(found)
    expected = {
        "user": login,
        "password": password,
        "host": host,
        "port": port and str(port),
        "dbname": schema,
        **extra,
    }
    expected = {name: value for name, value in expected.items() if value is not None}
    assert conninfo_to_dict(url) == expected
    with Ledger(url) as ledger:
        _, given_to_psycopg = ledger.engine.dialect.create_connect_args(ledger.engine.url)
    assert {name: str(value) for name, value in given_to_psycopg.items() if name in expected} == expected


@settings(max_examples=200)
@given(
    st.none() | words, st.none() | words, hosts.filter(lambda h: h[0] not in "/:"), ports, st.booleans(), st.booleans()
)
def test_every_part_of_a_spark_connection_reaches_its_client(login, password, host, port, tls, scheme):
    made = Connection(
        conn_id="s", conn_type="spark_connect", host=f"sc://{host}/" if scheme else host, port=port, login=login,
        password=password, extra=json.dumps({"use_ssl": tls}),
    )  # fmt: skip
    with patch.object(connections, "_get", lambda *_: made):
        target = connections.spark_target("s")
    client = DefaultChannelBuilder(target.url)
    assert client.host == host and client._port == (port or 15002)
    is_local = host == "localhost" or host.startswith("127.")
    assert (target.in_clear is None) == (client.secure or is_local), target.in_clear
    said = {name: unquote(value) for name, value in client._params.items()}
    assert said == {k: v for k, v in {"user_id": login, "token": password, "use_ssl": tls and "True"}.items() if v}
    assert repr(target) == "SparkTarget(connection='s', connect=True)"


@settings(max_examples=400)
@given(
    st.sampled_from([connections.kafka_properties, connections.spark_target, connections.ledger_url]),
    st.sampled_from(["kafka", "spark", "spark_connect", "postgres", "http"]),
    st.none() | words, ports, st.none() | words, extras,
)  # fmt: skip
@example(connections.kafka_properties, "kafka", None, None, None, '{"bootstrap.servers": ["a:1", "b:1"]}')
@example(connections.kafka_properties, "kafka", "h", 1, None, '{"client.id": null}')
@example(connections.kafka_properties, "kafka", "h", 1, None, "[" * 10_000)
def test_any_connection_is_understood_or_a_settings_error_that_names_it(read, kind, host, port, login, extra):
    made = Connection(conn_id="the-one", conn_type=kind, host=host, port=port, login=login, extra=extra)
    try:
        with patch.object(connections, "_get", lambda *_: made):
            found = read("the-one")
    except SettingsError as error:
        assert "'the-one'" in str(error)
        return
    if isinstance(found, dict):
        said = {name: value for name, value in json.loads(extra or "{}").items() if isinstance(value, str)}
        assert found.items() >= said.items() and found["bootstrap.servers"]
        assert all(isinstance(value, str) for value in found.values())
        assert not extra or all(not isinstance(value, list | dict | None) for value in json.loads(extra).values())


@settings(max_examples=400)
@given(words | st.builds("{}://{}".format, st.sampled_from(["postgresql", "postgres", "mysql", "x"]), words))
@example("postgresql://h:port/d")
@example("postgresql://h:99999999999/d?x=1&x=2")
@example("postgresql://u:hunter2@[::1/d")
@example("postgresql://u:hunter2@h/d?plugin=x")
@example("")
def test_any_url_of_a_ledger_is_taken_or_a_settings_error_that_does_not_show_it(url):
    try:
        with Ledger(url) as ledger:
            assert ledger.engine.url.host == make_url(url).host
    except SettingsError as error:
        assert "postgresql://USER@HOST/DATABASE" in str(error) and "hunter2" not in str(error)
