"""Lineage of real lines, as it comes by OpenLineage's own client over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import psycopg
import pytest

from ratchet.destinations.dataset import Dataset
from ratchet.errors import SettingsError
from ratchet.ledger.work import Run
from ratchet.operate.destinations import detach
from ratchet.protocol.begin import begin
from ratchet.telemetry.exporter import Exporter, Eye
from ratchet.telemetry.lineage import is_named
from tests.kafka.exported import Line
from tests.kafka.receiver import receiving
from tests.ledger.staging import prepare
from tests.until import until


class Receiver:
    """Keeps events in the order in which they come; refuses the first so many."""

    def __init__(self, refuses: int):
        self.events: list[dict] = []
        self.refused, self._refuses = 0, refuses

    def take(self, _: str, body: bytes) -> int:
        if self.refused < self._refuses:
            self.refused += 1
            return 422
        self.events.append(json.loads(body))
        return 201


@pytest.fixture
def receiver(monkeypatch) -> Iterator[Receiver]:
    made = Receiver(refuses=1)
    with receiving(made.take) as url:
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "the-airflow")
        yield made


@pytest.fixture
def told(line: Line, receiver, ledger_url, kafka_properties) -> Iterator[Receiver]:
    def named(pipeline: str) -> dict[str, Dataset]:
        return {to.address: to.dataset("") for sink in line.spec.sinks for to in sink.destinations}

    with Eye(ledger_url, kafka_properties) as eye, Exporter(eye, 0.2, "127.0.0.1", None, named) as made:
        thread = threading.Thread(target=made.run, daemon=True)
        thread.start()
        made.began.wait(60)
        yield receiver
        made.stop()
        thread.join(60)


def test_each_commit_is_a_run_from_the_topic_to_the_tables(line: Line, told: Receiver, ledger_url, kafka_properties):
    txids = [line.do(run).claim.txid for run in "ab"]
    until("all events have come", lambda: len(told.events) >= 4, 60)
    assert told.refused == 1
    assert [e["eventType"] for e in told.events] == ["START", "COMPLETE"] * 2
    assert len({e["run"]["runId"] for e in told.events}) == 2
    assert {(e["job"]["namespace"], e["job"]["name"]) for e in told.events} == {("the-airflow", "exported")}
    with psycopg.connect(ledger_url) as conn:
        database = f"postgres://{conn.info.host}:{conn.info.port}", conn.info.dbname
    for txid, event in zip(txids, told.events[1::2], strict=True):
        about = event["run"]["facets"]["ratchet_transaction"]
        assert (about["txid"], about["revision"], about["dag_id"]) == (txid, 0, "dag")
        assert sum(r["until"] - r["from"] for r in about["ranges"]) == 20
        (source,) = event["inputs"]
        first = kafka_properties["bootstrap.servers"].split(",")[0]
        assert (source["namespace"], source["name"]) == (f"kafka://{first}", line.spec.source.name)
        assert source["inputFacets"]["inputStatistics"]["rowCount"] == 20
        sinks = {each["name"]: each for each in event["outputs"]}
        (lake,) = (to.name for to in line.spec.sinks[0].destinations)
        assert sinks.keys() == {f"{database[1]}.public.rows", f"{database[1]}.ratchet.dead_letters", lake}
        assert sinks[lake]["namespace"] == "file"
        rows = sinks[f"{database[1]}.public.rows"]
        assert rows["namespace"] == database[0] and rows["outputFacets"]["outputStatistics"]["rowCount"] == 20
        columns = {field["name"]: field["type"] for field in rows["facets"]["schema"]["fields"]}
        assert columns["a"] == columns["_txid"] == "bigint"


def test_a_destination_that_is_detached_is_no_output(line: Line, told: Receiver):
    detach(line.ledger, "exported", line.spec.sinks[0].destinations[0].address, "it is over", "me")
    line.do("a")
    until("its events have come", lambda: len(told.events) >= 2, 60)
    assert [each["namespace"] for each in told.events[1]["outputs"] if each["namespace"] == "file"] == []


def test_a_revision_is_a_run_of_its_own(line: Line, told: Receiver):
    line.do("a")
    begun = begin(
        line.ledger, line.spec, Run("dag", "a", 1), lambda *asked: line.kafka.offsets(line.spec.source.name, *asked),
        is_active=lambda *_: True,
    )  # fmt: skip
    prepare(line.ledger, line.spec, begun)
    line.commit(begun)
    until("all events have come", lambda: len(told.events) >= 4, 60)
    about = [e["run"]["facets"]["ratchet_transaction"] for e in told.events]
    assert [(a["txid"], a["revision"]) for a in about] == [(1, 0), (1, 0), (1, 1), (1, 1)]


def test_without_kafka_there_is_no_name_for_a_topic(receiver, ledger_url):
    with Eye(ledger_url, None) as eye, pytest.raises(SettingsError, match="set RATCHET_KAFKA"):
        Exporter(eye, 1, "127.0.0.1", None)


def test_lineage_goes_where_the_variables_of_openlineage_say_and_nowhere_without_one():
    assert is_named({"OPENLINEAGE_URL": "http://a"}) and is_named({"OPENLINEAGE_CONFIG": "a.yml"})
    assert is_named({"OPENLINEAGE__TRANSPORT__TYPE": "console"}) and is_named({"OPENLINEAGE__TRANSPORT": "{}"})
    assert not is_named({"OPENLINEAGE_URL": "", "OPENLINEAGE_NAMESPACE": "a", "PATH": "/"})
