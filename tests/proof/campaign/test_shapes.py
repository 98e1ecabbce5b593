"""What Spark and the product make of the producers' records is what plain Python says of them."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import count
from uuid import uuid4

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
from ratchet.spark.servers import Servers
from ratchet.spark.slice import run_slice
from ratchet.spec.pipeline import Pipeline
from tests.proof.witness.comparison import examine
from tests.proof.witness.console import is_decided
from tests.proof.witness.plain import plain_of
from tests.until import until

from .line import PIPELINES
from .producers import PARTITIONS, SENT, Producers, create_topics

LINES = {**PARTITIONS, **SENT}


@pytest.fixture(scope="module")
def produced(kafka) -> dict[str, str]:
    """Client properties; some records of every pipeline are in its topic, and all is decided."""
    create_topics(kafka.kafka, LINES)
    with Producers(kafka.kafka, 1, dict.fromkeys(LINES, 5_000.0), committed=25_000) as producers:
        producers.wait(60)
    for name in LINES:
        until("every record is committed or aborted", partial(is_decided, kafka.kafka, name))
    return kafka.kafka


@pytest.mark.all
@pytest.mark.parametrize("name", LINES)
def test_what_spark_makes_of_a_topic_is_what_plain_python_says(name, produced, spark_connect, ledger_url):
    """Of a topic of which each version of the spec takes a part, the last one all that is left."""
    small = {"max_records": 1_000, "slice_records": 500}
    *before, last = [
        # Where its rows go besides is no business of Spark's.
        spec.model_copy(update={**small, "sinks": [sink.model_copy(update={"to": ()}) for sink in spec.sinks]})
        for spec in import_module(f"{PIPELINES}.{name}").VERSIONS
    ]
    plains = {spec.code_hash: plain_of(spec) for spec in (*before, last)}
    with Kafka(produced) as client, Ledger(ledger_url) as ledger:
        for spec in (*before, last):
            migrate(ledger_url, [spec])
            with connect_session(spark_connect.spark, name, spec.code_hash) as session:
                transactions = _commit(session, ledger, spec, client, produced, None if spec is last else 2)
    widest = import_module(f"{PIPELINES}.{name}").VERSIONS[1]
    testimony = examine(widest, produced, ledger_url, 2, plains)
    assert testimony.is_exact, testimony
    assert transactions >= 1 and testimony.records > 1_000 and min(testimony.rows.values()) > 5
    # And it would see which version has made what.
    codes = list(plains)
    swapped = dict(zip(codes, map(plains.get, [*codes[1:], codes[0]]), strict=True))
    assert not examine(widest, produced, ledger_url, 2, swapped).is_exact


def _commit(session, ledger: Ledger, spec: Pipeline, client: Kafka, kafka: dict[str, str], most: int | None) -> int:
    """Commit so many transactions, or all that is in the topic; how many it were."""
    for number in count():
        if number == most:
            break
        run = Run(spec.name, f"run {uuid4().hex}")
        begun = begin(ledger, spec, run, partial(client.offsets, spec.source.name), lambda *_: True)
        if not isinstance(begun, Begun):
            break
        for part in begun.slices:
            work = take_try(ledger, spec, begun.claim, part.number)
            cast_vote(ledger, spec, work.token, run_slice(session, spec, work, ledger.url, Servers(kafka)))
        assert isinstance(commit(ledger, spec, begun.claim), Committed)
    return number
