"""What Spark and the product make of the producers' records is what plain Python says of them."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest

from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.source.kafka import Kafka
from ratchet.spark.engine import connect_session
from ratchet.spark.slice import run_slice
from ratchet.spec.pipeline import Pipeline
from tests.proof.witness.comparison import examine
from tests.proof.witness.console import is_decided
from tests.until import until

from .producers import PARTITIONS, Producers, create_topics


@pytest.fixture(scope="module")
def produced(kafka) -> dict[str, str]:
    """Client properties; some records of every pipeline are in its topic, and all is decided."""
    create_topics(kafka.kafka)
    with Producers(kafka.kafka, 1, dict.fromkeys(PARTITIONS, 5_000.0), committed=20_000) as producers:
        producers.wait(60)
    for name in PARTITIONS:
        until("every record is committed or aborted", partial(is_decided, kafka.kafka, name))
    return kafka.kafka


@pytest.mark.all
@pytest.mark.parametrize("name", PARTITIONS)
def test_what_spark_makes_of_a_topic_is_what_plain_python_says(name, produced, spark_connect, ledger_url):
    spec = import_module(f"tests.proof.campaign.pipelines.{name}").PIPELINE
    migrate(ledger_url, [spec])
    with connect_session(spark_connect.spark, name, spec.code_hash) as session, Kafka(produced) as client:
        with Ledger(ledger_url) as ledger:
            transactions = _drain(session, ledger, spec, client, produced)
    testimony = examine(spec, produced, ledger_url, 2)
    assert testimony.is_exact, testimony
    assert transactions >= 1 and testimony.records > 1_000 and min(testimony.rows.values()) > 5


def _drain(session, ledger: Ledger, spec: Pipeline, client: Kafka, kafka: dict[str, str]) -> int:
    """Commit all that is in the topic; how many transactions that took."""
    number = 0
    while True:
        run = Run(spec.name, f"run {number}")
        begun = begin(ledger, spec, run, partial(client.offsets, spec.source.name), lambda *_: True)
        if not isinstance(begun, Begun):
            return number
        for part in begun.slices:
            work = take_try(ledger, spec, begun.claim, part.number)
            cast_vote(ledger, spec, work.token, run_slice(session, spec, work, ledger.url, kafka))
        assert isinstance(commit(ledger, spec, begun.claim), Committed)
        number += 1
