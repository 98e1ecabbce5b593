"""What lineage calls destinations of each kind: names of OpenLineage's, without anything of a login."""

from __future__ import annotations

import json

import pytest

from ratchet import DeltaLake, Files, KafkaTopic, Table
from ratchet.command import variables
from ratchet.destinations.dataset import Dataset
from ratchet.exporting import Names
from ratchet.spec.loading import load_pipelines
from ratchet.values.endpoint import CONNECTIONS
from tests.acceptance.transforms import HOLDS

TABLE = Table("sales.orders", database="warehouse")


@pytest.mark.parametrize(
    ("to", "by", "namespace", "name"),
    [
        (TABLE, "postgresql://u:secret@db.example:6432/dwh?sslmode=require", "db.example:6432", "dwh.sales.orders"),
        (TABLE, "postgresql://u:secret@a:1,b:2/dwh", "a:1", "dwh.sales.orders"),
        (Table("orders", database="warehouse"), "postgresql://u:secret@db", "db:5432", "u.public.orders"),
    ],
)
def test_a_table_is_named_by_the_server_and_the_database_of_its_connection(to, by, namespace, name):
    assert to.dataset(by) == Dataset(f"postgres://{namespace}", name)


@pytest.mark.parametrize("servers", ["k1:9093,k2:9093", "SSL://k1:9093, SSL://k2:9093"])
def test_a_topic_is_named_by_the_first_of_the_bootstrap_servers(servers):
    by = {"bootstrap.servers": servers, "sasl.username": "ann", "sasl.password": "secret"}
    assert KafkaTopic("orders").dataset(json.dumps(by)) == Dataset("kafka://k1:9093", "orders")
    assert Dataset.of_topic("k1", "orders").namespace == "kafka://k1:9092"


def test_a_directory_is_a_path_and_a_place_in_an_object_store_a_key_of_its_bucket():
    assert (
        Files("/lake/orders").dataset("") == DeltaLake("/lake/orders/").dataset("") == Dataset("file", "/lake/orders")
    )
    assert DeltaLake("s3://bucket/sales/orders", store="s").dataset("{}") == Dataset("s3://bucket", "sales/orders")
    # As Iceberg's catalogs give a table's place.
    assert (
        Dataset.of_place("file:///lake/orders")
        == Dataset.of_place("file:/lake/orders")
        == Dataset("file", "/lake/orders")
    )
    assert Dataset.of_place("s3a://bucket/sales/orders/") == Dataset("s3://bucket", "sales/orders")
    azure = Dataset("abfss://files@account.dfs.core.windows.net", "sales/orders")
    assert Dataset.of_place("abfss://files@account.dfs.core.windows.net/sales/orders") == azure


def test_the_exporter_names_what_the_connections_here_lead_to_and_the_rest_when_they_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("RATCHET_PIPELINES", "tests.acceptance.pipelines")
    monkeypatch.setenv(HOLDS, str(tmp_path))
    monkeypatch.setenv("RATCHET_KAFKA", '{"bootstrap.servers": "k:9092"}')
    monkeypatch.delenv(CONNECTIONS, raising=False)
    variables.cache_clear()
    topic, lake, table = "kafka:arriving-out", f"delta:{load_lake()}", "ratchet_ledger:elsewhere.arriving"
    names = Names()
    found = names.of("arriving")
    assert found.keys() == {topic, lake} and found[topic] == Dataset("kafka://k:9092", "arriving-out")
    monkeypatch.setenv(CONNECTIONS, '{"ratchet_ledger": {"url": "postgresql://u:secret@db/ledger"}}')
    assert names.of("arriving")[table] == Dataset("postgres://db:5432", "ledger.elsewhere.arriving")
    assert names.of("nowhere") == {}
    said = capsys.readouterr()
    assert (said.out + said.err).count("is not named: SettingsError") == 1 and "secret" not in said.out + said.err


def load_lake() -> str:
    """The directory that the spec names, whichever test has imported it first."""
    sinks = load_pipelines()["arriving"].sinks
    return next(to.name for sink in sinks for to in sink.destinations if isinstance(to, DeltaLake))
