"""How long the page's server takes over HTTP, with two hundred lines, one of a hundred thousand transactions."""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text

from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import commit
from ratchet.source.kafka import Kafka
from tests.kafka.driven import send
from tests.ledger.crowd import LONG, crowd, names_of
from tests.ledger.staging import always_active, do
from tests.page.crowd import CROWD
from tests.page.test_access import READS
from tests.until import until

from .conftest import As

pytestmark = [pytest.mark.all, pytest.mark.timeout(1200)]

MODULE = """
from ratchet import Append
from tests.page.crowd import CROWD

PIPELINE = CROWD.model_copy(update={{"name": {name!r}, "sinks": [Append("rows_{name}", columns="a bigint")]}})
"""
ASKED = {
    "/pipelines/crowd/where": {"partition": 0, "offset": 5 * LONG},
    "/pipelines/crowd/origin": {"sink": "crowd_totals", "key": "k=0"},
}
TIMES = 7


@pytest.fixture
def crowded(ledger: Ledger, more: Path, kafka_properties) -> Ledger:
    """A crowd of lines behind a topic of Kafka, and a spec of each."""
    with Kafka(kafka_properties) as brokers:
        brokers.admin.create_topics({"t": {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
        send(kafka_properties, "t", 10_000, partitions=2)
        migrate(ledger.url, [CROWD])
        begun = begin(ledger, CROWD, Run("crowd", "first"), partial(brokers.offsets, "t"), always_active)
    assert isinstance(begun, Begun)
    do(ledger, CROWD, begun, lambda p, o: {"crowd_rows": [{"a": o}], "crowd_totals": [{"k": f"{p}", "a": o}]})
    commit(ledger, CROWD, begun.claim)
    crowd(ledger.url, "crowd")
    (more / "crowd.py").write_text("from tests.page.crowd import CROWD\n\nPIPELINE = CROWD\n")
    for name in names_of("crowd")[1:]:
        (more / f"{name}.py").write_text(MODULE.format(name=name))
    return ledger


def test_every_route_answers_within_a_second_whatever_came_before(crowded: Ledger, as_: As):
    client = as_("carla")
    until("the specs are read", lambda: len(client.get("/pipelines").json()["pipelines"]) == 200, 120)
    (seen,) = [of for of in client.get("/pipelines").json()["pipelines"] if of["pipeline"] == "crowd"]
    assert seen["last_txid"] == LONG and client.get("/lag").json()["unknown"] == []
    with crowded.begin() as conn:
        halted = conn.execute(text("select count(*) from ratchet.transactions where halted_at is not null"))
        assert halted.scalar_one() == 99
    slow = {}
    for path, params in READS.items():
        path = path.replace("/line", "/crowd").replace("transactions/1", f"transactions/{LONG // 2}")
        params = ASKED.get(path, params)
        took = []
        for _ in range(TIMES):
            started = time.monotonic()
            said = client.get(path, params=params)
            took.append(time.monotonic() - started)
            assert said.status_code == 200, (path, said.text)
        median = statistics.median(took)
        print(f"| `{path}` | {1_000 * median:.0f} | {1_000 * max(took):.0f} | {len(said.content) / 1_000:,.1f} |")
        if median >= 1:
            slow[path] = median
    assert slow == {}
