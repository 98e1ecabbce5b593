"""The table of bad input against the code: each row has its test, and each field of a spec has a row."""

import re

import pytest

from ratchet import (
    Accumulate,
    Append,
    Arrivals,
    Avro,
    Bytes,
    CloudEvents,
    Csv,
    Debezium,
    DeltaLake,
    Files,
    Iceberg,
    Json,
    KafkaTopic,
    MessagePack,
    Pipeline,
    Protobuf,
    Sql,
    Table,
    Text,
    Topic,
    Upsert,
)

from .test_docs import ROOT, defined_tests, rows, section

PAGE = ROOT / "docs" / "bad-input.md"
SECTIONS = re.findall(r"^## .*$", PAGE.read_text(), re.MULTILINE)
_KINDS = (
    Pipeline,
    Sql,
    Arrivals,
    Topic,
    Json,
    Avro,
    Protobuf,
    MessagePack,
    Csv,
    Text,
    Bytes,
    CloudEvents,
    Debezium,
    Append,
    Accumulate,
    Upsert,
    Table,
    KafkaTopic,
    DeltaLake,
    Files,
    Iceberg,
)
FIELDS = [f"{kind.__name__}.{name}" for kind in _KINDS for name in kind.model_fields if name != "kind"]


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_row_says_what_is_lost_and_names_a_test_that_exists(heading):
    listed = rows(section(PAGE, heading))
    assert listed
    tests = defined_tests()
    for row in listed:
        assert len(row) == 4 and all(row), row
        named = re.findall(r"`(test_\w+)`", row[3])
        assert named and set(named) <= tests, row


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_a_spec_has_a_row(field):
    said = [row[0] for row in rows(section(PAGE, "## The spec"))]
    assert [text for text in said if f"`{field}`" in text], f"{PAGE.name} does not say what may be wrong with {field}"


def test_a_row_is_about_a_field_that_exists():
    said = " ".join(row[0] for row in rows(section(PAGE, "## The spec")))
    assert set(re.findall(r"`([A-Z]\w+\.\w+)`", said)) == set(FIELDS)
