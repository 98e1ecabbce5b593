"""Which source reads a slice: the spec and the connection decide, on the driver; the log names an unusual one."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from structlog.testing import capture_logs

from ratchet import Append, Json, Pipeline, Topic
from ratchet.errors import BrokenBatch
from ratchet.ledger.topics import Topics
from ratchet.ledger.work import OffsetRange
from ratchet.source.columnar import ColumnarReading
from ratchet.source.letters import Letters
from ratchet.spark import slice as slices
from ratchet.spark.intake import parts_of
from ratchet.spark.servers import Servers
from ratchet.spark.tally import Tally

USUAL = {"bootstrap.servers": "a:1"}
UNFIT = {**USUAL, "client.dns.lookup": "resolve_canonical_bootstrap_servers_only"}
TOPICS = Topics.one("t", "id")
RANGES = (OffsetRange("t", 0, 5, 500_000), OffsetRange("t", 1, 0, 9))
WORK = SimpleNamespace(ranges=RANGES, topics=TOPICS, token=SimpleNamespace(txid=7, slice=3), releases=None)


def choose(monkeypatch, reader: str, kafka: dict[str, str], work=WORK):
    """(what tasks are told, what they are given, what is logged); Spark only says what it was asked for."""
    spec = Pipeline(
        name="p", source=Topic("t", value=Json("a int"), reader=reader), sinks=[Append("r", columns="a int")]
    )
    monkeypatch.setattr(slices, "read", lambda spark, ranges, properties: ("records", ranges, properties))
    spark = SimpleNamespace(range=lambda *bounds: ("parts", *bounds))
    with capture_logs() as logged:
        intake, given = slices._intake(spark, spec, work, Servers(kafka))
    assert (intake.topic, intake.topics, intake.servers) == (spec.source, TOPICS, Servers(kafka))
    return intake, given, logged


def test_the_columnar_source_is_the_usual_one(monkeypatch):
    intake, given, logged = choose(monkeypatch, "columnar", USUAL)
    assert intake.parts == parts_of(RANGES) and len(intake.parts) > 1 and given[0] == "parts"
    assert logged == []


def test_a_connection_that_it_cannot_use_is_read_by_spark_which_is_said_with_the_reason(monkeypatch):
    intake, given, logged = choose(monkeypatch, "columnar", UNFIT)
    assert intake.parts is None and given == ("records", RANGES, UNFIT)
    (line,) = logged
    assert line["log_level"] == "warning"
    assert line["event"].startswith("p: transaction 7, slice 3: read by Spark's Kafka source, which is slower")
    assert "client.dns.lookup=resolve_canonical_bootstrap_servers_only" in line["event"]


@pytest.mark.parametrize("kafka", [USUAL, UNFIT])
def test_what_the_spec_names_is_no_news(monkeypatch, kafka):
    intake, given, logged = choose(monkeypatch, "spark", kafka)
    assert intake.parts is None and given[0] == "records" and logged == []


@pytest.mark.parametrize("reader", ["columnar", "spark"])
def test_dead_letters_are_read_from_the_ledger_whatever_reads_the_topic(monkeypatch, reader):
    token = SimpleNamespace(txid=7, slice=3, pipeline="p")
    work = SimpleNamespace(**{**vars(WORK), "token": token, "releases": "no"})
    intake, given, logged = choose(monkeypatch, reader, UNFIT, work)
    assert intake.letters == Letters("", "p", 7, "no") and intake.parts == parts_of(RANGES)
    assert given[0] == "parts" and logged == []


def test_what_breaks_while_the_columnar_source_reads_stays_an_error(monkeypatch):
    first = pa.record_batch({"_partition": pa.array([0], pa.int32())})

    def breaks(reading):
        yield first
        raise BrokenBatch("the record batch at offset 5 is broken")

    intake, _, _ = choose(monkeypatch, "columnar", USUAL)
    monkeypatch.setattr(ColumnarReading, "_read", breaks)
    reading = intake.batches(iter([pa.record_batch({"id": pa.array([0], pa.int64())})]), Tally())
    assert next(reading) == first
    with pytest.raises(BrokenBatch, match="offset 5"):
        next(reading)
