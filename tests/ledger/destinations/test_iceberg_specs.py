"""What is no Iceberg table, and no catalog of such, is refused in a line."""

from __future__ import annotations

import json

import pytest

from ratchet import Append, Iceberg
from ratchet.destinations.iceberg_catalog import properties_of
from ratchet.errors import DestinationUnreachable, SettingsError, SpecError
from ratchet.spec.columns import Column
from ratchet.spec.types import BIGINT


@pytest.mark.parametrize(
    ("columns", "given", "error"),
    [
        ("a bigint", {"name": "orders"}, "is no table in a namespace; give both, as sales.orders"),
        ("a bigint", {"name": "sales..orders"}, "is no table in a namespace"),
        ("a bigint", {"catalog": ""}, "name the Airflow connection to the catalog"),
        ("a bigint", {"partition_by": "b"}, "partition_by 'b' is not one of columns: a"),
        ("a bigint", {"partition_by": "week(a)"}, r"'week\(a\)' divides no table; give a column, or year"),
        ("a bigint", {"partition_by": "bucket(a)"}, r"'bucket\(a\)' divides no table"),
        ("a bigint", {"partition_by": "bucket(0, a)"}, "divides no table"),
        ("a bigint", {"partition_by": "day(a)"}, "Iceberg has no day of a bigint"),
        ("a double", {"partition_by": "a"}, "Iceberg has no identity of a double"),
        ("a timestamp", {"partition_by": ("day(a)", "hour(a)")}, "partition_by names a column twice"),
        ("a timestamp, a_day int", {"partition_by": "day(a)"}, "Iceberg calls its day a_day, and a column has that"),
    ],
)
def test_a_table_that_iceberg_does_not_have_is_refused(columns, given, error):
    with pytest.raises(SpecError, match=error):
        Append("rows", columns=columns, to=Iceberg(**{"name": "sales.orders", "catalog": "lakehouse", **given}))


@pytest.mark.parametrize(
    ("names", "error"),
    [("_FILE", "readers of Iceberg have a column _FILE of their own"), ("Aa", "A and a differ only in case")],
)
def test_names_that_readers_do_not_tell_apart_are_refused(names, error):
    fields = [Column(name, BIGINT) for name in ([names] if names.startswith("_") else names)]
    assert error in (Iceberg("sales.orders", catalog="lakehouse").misfit(fields, ()) or "")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("https://host/", "me", None, {}), "it has one of login and password; a REST catalog wants both, or none"),
        (("https://host/", None, None, {"type": "glue"}), "those of the types rest and sql are supported"),
        (("https://host/", None, None, {"py-catalog-impl": "x.Y"}), "those of the types rest and sql are supported"),
        (("", None, None, {"warehouse": "s3://x"}), "it names no catalog"),
        (("https://host/", None, None, {"s3.region": {}}), "'s3.region' in its extra is no text"),
    ],
)
def test_a_connection_that_is_no_catalog_is_told_without_its_values(given, error):
    with pytest.raises(SettingsError, match=f"connection 'lakehouse': .*{error}"):
        properties_of("connection 'lakehouse'", *given)


def test_what_a_connection_says_is_what_airflows_own_provider_makes_of_it():
    said = properties_of("x", "https://host/v1/", "me", "secret", {"warehouse": "w", "rest.sigv4-enabled": True})
    assert json.loads(said) == {
        "type": "rest",
        "uri": "https://host/v1",
        "credential": "me:secret",
        "warehouse": "w",
        "rest.sigv4-enabled": "true",
    }
    within = {"auth": {"type": "noop"}, "ssl": {"cabundle": "/etc/ca.pem"}}
    assert json.loads(properties_of("x", "https://host", None, None, within)) == {
        "type": "rest",
        "uri": "https://host",
        **within,
    }
    database = {"type": "sql", "uri": "postgresql://u:p@h/d", "warehouse": "file:///w"}
    assert json.loads(properties_of("x", "", None, None, database)) == database


@pytest.mark.parametrize(
    ("properties", "error", "said"),
    [
        ({"type": "sql", "uri": "canary"}, SettingsError, "the catalog's uri cannot be read"),
        ({"type": "sql", "uri": "postgresql://me:canary@127.0.0.1:1/x"}, DestinationUnreachable, "what is committed"),
        ({"type": "rest", "uri": "http://127.0.0.1:1", "credential": "me:canary"}, DestinationUnreachable, "what is"),
    ],
)
def test_a_catalog_that_cannot_be_had_is_told_without_its_secrets(in_postgresql, properties, error, said):
    in_postgresql.properties = properties
    with pytest.raises(error, match=f"lakehouse:sales.orders: .*{said}") as caught:
        in_postgresql.run("a")
    assert "canary" not in str(caught.value)
