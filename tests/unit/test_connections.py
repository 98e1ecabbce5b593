"""Airflow's connections as the core is told them: what is missing or unfit is named, and no secret is shown."""

from __future__ import annotations

import asyncio
import json

import pytest
from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from ratchet import Append, DeltaLake, Iceberg, Json, KafkaTopic, Pipeline, Topic, command
from ratchet.airflow import connections
from ratchet.destinations.object_store import options_of
from ratchet.destinations.port import Owner
from ratchet.errors import SettingsError
from ratchet.values.endpoint import Endpoint


def connection(monkeypatch, **fields):
    """Make Airflow know exactly this connection, under the id `c`."""
    monkeypatch.setattr(connections.Connection, "get", lambda _: Connection(conn_id="c", **fields))


def test_a_missing_connection_is_named_with_the_way_to_create_it(monkeypatch):
    def missing(_):
        raise AirflowNotFoundException("no")

    monkeypatch.setattr(connections.Connection, "get", missing)
    for read in (connections.ledger_url, connections.kafka_properties, connections.spark_target):
        with pytest.raises(SettingsError, match="connection 'gone'.*airflow connections add gone "):
            read("gone")


def test_the_ledgers_url_is_quoted_and_keeps_what_libpq_knows(monkeypatch):
    from psycopg.conninfo import conninfo_to_dict

    extra = json.dumps({"sslmode": "require", "options": "-c x=1", "cursor": "dictcursor"})
    secret = "p@s:s/w?d%"
    connection(
        monkeypatch, conn_type="postgres", host="db", port=5433, login="me@x", password=secret, schema="r", extra=extra
    )
    assert conninfo_to_dict(connections.ledger_url("c")) == {
        "user": "me@x",
        "password": secret,
        "host": "db",
        "port": "5433",
        "dbname": "r",
        "sslmode": "require",
        "options": "-c x=1",
    }
    connection(monkeypatch, conn_type="postgres", host="/run/pg", schema="r")
    assert conninfo_to_dict(connections.ledger_url("c")) == {"host": "/run/pg", "dbname": "r"}
    connection(monkeypatch, conn_type="mysql", host="db")
    with pytest.raises(SettingsError, match="type 'mysql'"):
        connections.ledger_url("c")


def test_an_endpoint_has_its_port_before_its_path_and_no_login_in_its_address(monkeypatch):
    connection(monkeypatch, conn_type="http", host="https://at/apis/ccompat/v7/", port=8081, login="me", password="s")
    found = connections.endpoint("c")
    assert (found.url, found.login, found.password) == ("https://at:8081/apis/ccompat/v7", "me", "s")
    connection(monkeypatch, conn_type="http", host="at", port=8081, schema="https")
    assert connections.endpoint("c").url == "https://at:8081"
    for host in ("https://me:pa#ss@at", "https://at/?token=hunter2", ""):
        connection(monkeypatch, conn_type="http", host=host)
        with pytest.raises(SettingsError, match="connection 'c'") as caught:
            connections.endpoint("c")
        assert "ss" not in str(caught.value).replace("address", "").replace("password", "") and "hunter2" not in str(
            caught.value
        )


def test_the_way_past_a_pooler_is_another_connection_that_the_ledgers_extra_names(monkeypatch):
    known = {
        "plain": Connection(conn_id="plain", conn_type="postgres", host="pooler", extra='{"sslmode": "require"}'),
        "past": Connection(conn_id="past", conn_type="postgres", host="db", login="u", password="p", schema="r"),
        "ledger": Connection(conn_id="ledger", conn_type="postgres", host="pooler", extra='{"direct": "past"}'),
        "lost": Connection(conn_id="lost", conn_type="postgres", host="pooler", extra='{"direct": "gone"}'),
        "unfit": Connection(conn_id="unfit", conn_type="postgres", host="pooler", extra='{"direct": {"host": "db"}}'),
    }

    async def get(conn_id):
        if conn_id not in known:
            raise AirflowNotFoundException("no")
        return known[conn_id]

    monkeypatch.setattr(connections.Connection, "async_get", get)

    def direct(connection: str) -> str | None:
        return asyncio.run(connections.async_direct_url(connection))

    assert direct("plain") is None
    assert direct("ledger") == "postgresql://u:p@db/r"
    # What a client of libpq would not know is not handed on to one.
    assert asyncio.run(connections.async_ledger_url("ledger")) == "postgresql://pooler/"
    with pytest.raises(SettingsError, match="'lost' names 'gone' as 'direct': .*; create it: airflow connections add"):
        direct("lost")
    with pytest.raises(SettingsError, match="connection 'unfit': 'direct' in its extra is not the id of a connection"):
        direct("unfit")


def test_kafka_takes_its_properties_from_the_extra_and_its_server_from_the_host(monkeypatch):
    connection(monkeypatch, conn_type="kafka", host="k", port=9092, extra='{"security.protocol": "SSL"}')
    assert connections.kafka_properties("c") == {"security.protocol": "SSL", "bootstrap.servers": "k:9092"}
    connection(monkeypatch, conn_type="kafka", host="a:1,b:2")
    assert connections.kafka_properties("c") == {"bootstrap.servers": "a:1,b:2"}
    for fields in ({}, {"host": "k", "password": "x"}, {"host": "k", "extra": "[]"}):
        connection(monkeypatch, conn_type="kafka", **fields)
        with pytest.raises(SettingsError, match="connection 'c'"):
            connections.kafka_properties("c")


def test_the_spark_connection_says_the_engine_and_never_shows_its_token(monkeypatch):
    connection(
        monkeypatch, conn_type="spark_connect", host="sc://s", port=15002, password="to;ken", extra='{"use_ssl": true}'
    )
    target = connections.spark_target("c")
    assert target.connect and target.url == "sc://s:15002/;token=to%3Bken;use_ssl=True"
    assert "ken" not in repr(target)
    connection(monkeypatch, conn_type="spark", host="local[2]")
    assert not connections.spark_target("c").connect
    connection(monkeypatch, conn_type="spark_connect")
    with pytest.raises(SettingsError, match="has no host"):
        connections.spark_target("c")


def test_the_page_of_a_spark_application_is_named_by_the_connection(monkeypatch):
    ui = "https://spark.example:18480/history/{application_id}/jobs/"
    connection(monkeypatch, conn_type="spark_connect", host="sc://h", extra=json.dumps({"ui": ui}))
    page_of = connections.spark_page("c")
    assert page_of and page_of("local-17/?x") == "https://spark.example:18480/history/local-17%2F%3Fx/jobs/"
    connection(monkeypatch, conn_type="spark", host="spark://h")
    assert connections.spark_page("c") is None
    for wrong in (5, "javascript:alert('{application_id}')", "https://spark.example/history/"):
        connection(monkeypatch, conn_type="spark", host="spark://h", extra=json.dumps({"ui": wrong}))
        with pytest.raises(SettingsError, match="'ui' in its extra is no address of a page"):
            connections.spark_page("c")

    def missing(_):
        raise AirflowNotFoundException("c")

    monkeypatch.setattr(connections.Connection, "get", missing)
    assert connections.spark_page("c") is None


LAKE = DeltaLake("s3://lake/orders", store="c")
STORED = Pipeline(
    name="stored", source=Topic("t", value=Json("a bigint")), sinks=[Append("r", columns="a bigint", to=LAKE)]
)


@pytest.fixture
def options_of_store(monkeypatch):
    """Gives that by which LAKE is opened."""
    given: list[str] = []
    monkeypatch.setattr(DeltaLake, "open", lambda _, owner, by, registries: given.append(by))

    def read() -> dict[str, str]:
        connections.opener(STORED)(LAKE, Owner("stored", "r", ()))
        return json.loads(given[-1])

    return read


ALWAYS = {"aws_conditional_put": "etag", "aws_skip_signature": "false"}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"extra": '{"region_name": "eu-central-1"}'}, {"aws_region": "eu-central-1"}),
        (
            {"login": "me", "password": "s", "extra": '{"aws_session_token": "t", "verify": true}'},
            {"aws_access_key_id": "me", "aws_secret_access_key": "s", "aws_session_token": "t"},
        ),
        (
            {"extra": '{"endpoint_url": "http://at:9000/", "config_kwargs": {"s3": {"addressing_style": "path"}}}'},
            {
                "aws_endpoint": "http://at:9000",
                "aws_endpoint_url_s3": "http://at:9000",
                "aws_allow_http": "true",
                "aws_region": "us-east-1",
                "aws_virtual_hosted_style_request": "false",
            },
        ),
        (
            {"extra": '{"endpoint_url": "https://a", "service_config": {"s3": {"endpoint_url": "https://b"}}}'},
            {"aws_endpoint": "https://b", "aws_endpoint_url_s3": "https://b", "aws_region": "us-east-1"},
        ),
    ],
)
def test_a_connection_to_an_object_store_is_read_as_airflows_provider_has_it(
    monkeypatch, options_of_store, fields, options
):
    connection(monkeypatch, conn_type="aws", **fields)
    assert options_of_store() == options | ALWAYS


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"conn_type": "s3"}, "is of type 's3'; an object store needs aws: airflow connections add c --conn-type aws"),
        ({"host": "at"}, "its host is not used; put the address of the store into its extra"),
        ({"login": "canary"}, "has only one of login and password"),
        ({"password": "canary"}, "has only one of login and password"),
        ({"extra": "[]"}, "its extra is not a JSON object"),
        ({"extra": '{"role_arn": "canary"}'}, "'role_arn' in its extra is not supported for object stores"),
        ({"extra": '{"verify": false}'}, "'verify' in its extra must be true"),
        ({"extra": '{"region_name": 5}'}, "'region_name' in its extra is no text"),
        ({"extra": '{"aws_session_token": "canary"}'}, "'aws_session_token' in its extra needs a login and a password"),
        ({"extra": '{"service_config": {"s3": "canary"}}'}, "'s3' in its extra is no JSON object"),
        (
            {"extra": '{"config_kwargs": {"s3": {"addressing_style": "canary"}}}'},
            "of 'config_kwargs' in its extra nothing",
        ),
        ({"extra": '{"config_kwargs": {"proxies": {}}}'}, "of 'config_kwargs' in its extra nothing but"),
        ({"extra": '{"endpoint_url": "at:9000"}'}, "its endpoint 'at:9000' is no address; write it as https://HOST"),
        ({"extra": '{"endpoint_url": "ftp://at"}'}, "is no address"),
        ({"extra": '{"endpoint_url": "https://at:x"}'}, "is no address"),
        ({"extra": '{"endpoint_url": "https://me:canary@at"}'}, "its endpoint has a login in it"),
    ],
)
def test_a_connection_that_leads_to_no_object_store_is_told_without_its_secrets(
    monkeypatch, options_of_store, fields, said
):
    connection(monkeypatch, **{"conn_type": "aws", **fields})
    with pytest.raises(SettingsError) as caught:
        options_of_store()
    assert "connection 'c'" in str(caught.value) and said in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_command_names_amazons_own_store_by_no_url():
    given = options_of("the variable", "", "me", "s", {"region_name": "eu-central-1"})
    assert given == {
        "aws_access_key_id": "me",
        "aws_secret_access_key": "s",
        "aws_region": "eu-central-1",
        **ALWAYS,
    }


def test_a_missing_connection_to_an_object_store_is_named_with_the_way_to_create_it(monkeypatch, options_of_store):
    def missing(_):
        raise AirflowNotFoundException("no")

    monkeypatch.setattr(connections.Connection, "get", missing)
    with pytest.raises(SettingsError, match="connection 'c', .* as its store; create it: .*--conn-type aws"):
        options_of_store()


def test_an_iceberg_connection_says_what_it_says_to_airflows_own_provider(monkeypatch):
    extra = {"warehouse": "s3://lake/", "rest.sigv4-enabled": True}
    connection(
        monkeypatch,
        conn_type="iceberg",
        host="https://at/catalog/",
        login="me",
        password="s",
        extra=json.dumps(extra),
    )
    assert json.loads(connections.iceberg_properties("c")) == {
        "type": "rest",
        "uri": "https://at/catalog",
        "credential": "me:s",
        "warehouse": "s3://lake/",
        "rest.sigv4-enabled": "true",
    }
    database = {"type": "sql", "uri": "postgresql://me:s@at/db", "warehouse": "s3://lake/"}
    connection(monkeypatch, conn_type="iceberg", extra=json.dumps(database))
    assert json.loads(connections.iceberg_properties("c")) == database
    connection(monkeypatch, conn_type="postgres", host="db")
    with pytest.raises(SettingsError, match="connection 'c' is of type 'postgres'; .* airflow connections add c "):
        connections.iceberg_properties("c")


def test_a_destination_is_opened_by_what_its_connection_says(monkeypatch):
    said = {"type": "sql", "uri": "postgresql://me:s@at/db"}
    connection(monkeypatch, conn_type="iceberg", extra=json.dumps(said))
    monkeypatch.setattr(Iceberg, "open", lambda self, owner, by, registries: (self.address, owner, json.loads(by)))
    spec = Pipeline(
        name="orders", source=Topic("orders", value=Json("a bigint")), sinks=[Append("rows", columns="a bigint")]
    )
    owner = Owner("orders", "rows", ())
    opened = connections.opener(spec)(Iceberg("sales.orders", catalog="c"), owner)
    assert opened == ("c:sales.orders", owner, said)


def test_a_topic_of_avro_is_opened_with_the_registry_that_it_names(monkeypatch):
    monkeypatch.setattr(KafkaTopic, "open", lambda self, owner, by, registries: dict(registries))
    monkeypatch.setattr(connections, "kafka_properties", lambda name: {"bootstrap.servers": "b:9092"})
    connection(monkeypatch, conn_type="http", host="https://registry", login="me", password="s")
    spec = Pipeline(
        name="orders", source=Topic("orders", value=Json("a bigint")), sinks=[Append("rows", columns="a bigint")]
    )
    owner, topic = Owner("orders", "rows", ()), KafkaTopic("out", format="avro", registry="r")
    assert connections.opener(spec)(topic, owner) == {"r": Endpoint("https://registry", "me", "s", {})}
    monkeypatch.setenv("RATCHET_KAFKA", '{"bootstrap.servers": "b:9092"}')
    monkeypatch.setenv("RATCHET_CONNECTIONS", '{"r": {"url": "http://registry:8081"}}')
    assert command.opener(spec)(topic, owner) == {"r": Endpoint("http://registry:8081")}
    with pytest.raises(SettingsError, match="orders: connection 'q' is not in RATCHET_CONNECTIONS"):
        command.opener(spec)(topic.model_copy(update={"registry": "q"}), owner)
