"""I1, I3, I9, I10: processes are killed at the most telling points, and each pipeline finishes by itself.

`make faults` does so at every point. Here also: that no statement passes by the hook by which points are found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition

from tests.until import until

from .field import Field, field
from .points import Point, read_trace
from .sidebyside import side_by_side
from .trial import Outcome, Trial
from .written import group_points, group_writes, unseen

pytestmark = pytest.mark.timeout(900)

PREPARED = "process: protocol.prepare.prepare_if_complete > ledger.transactions.move: UPDATE ratchet.transactions"
VOTED = "process: protocol.process.process_slice > protocol.votes.cast_vote: COMMIT"
COMMITTED = "commit: protocol.commit._commit > protocol.commit._commit_in_turn: COMMIT"
BEGUN = "begin: airflow.begin.BeginOperator.execute > protocol.begin.begin: COMMIT #3"
SETTLED = "settle: airflow.settle.SettleOperator.execute > protocol.claims.settle: COMMIT"
COPIED = "spark worker: sinks.writer.Writer._flush > sinks.writer.Writer._copy: COPY a block #2"
WRITTEN = "spark worker: spark.writing.Writing.__call__ > sinks.writer.Writer.finish: COMMIT"
MOVED = "commit: protocol.commit.advance > ledger.transactions.move_head: UPDATE ratchet.heads"
WAITING = "trigger: airflow.waiting.Waiting._attend > airflow.waiting.Waiting._renew: UPDATE ratchet.transactions"

TELLING = {
    "connect_1": [Point(WAITING, "before"), Point(COMMITTED, "before"), Point(BEGUN, "after"), Point(SETTLED, "after")],
    "connect_2": [Point(VOTED, "after"), Point(COMMITTED, "after"), Point(SETTLED, "before"), Point(WRITTEN, "after")],
    "connect_3": [Point(PREPARED, "after"), Point(MOVED, "after"), Point(COPIED, "before"), Point(BEGUN, "before")],
}
"""What is armed for each pipeline while it goes through two transactions."""


@pytest.fixture(scope="module")
def grounds(scratch: Path) -> Iterator[Field]:
    home = scratch / "faults"
    home.mkdir()
    with field(home, set(TELLING), traced=True) as made:
        yield made


@pytest.fixture(scope="module")
def outcomes(grounds: Field) -> list[Outcome]:
    trials = [Trial(grounds.victims[name], grounds.armoury, "flow", points) for name, points in TELLING.items()]
    return [outcome for found in side_by_side(Trial.run, trials) for outcome in found]


@pytest.mark.invariant("I9")
def test_whoever_is_killed_every_record_is_there_once_and_the_line_finishes_by_itself(outcomes: list[Outcome]):
    assert [f"{o.line}, {o.point}: {o.state}" for o in outcomes if o.state != "whole"] == []
    assert len({o.kill.pid for o in outcomes}) == sum(map(len, TELLING.values()))


def test_nothing_is_written_past_the_hook(grounds: Field, outcomes: list[Outcome]):
    trace = grounds.armoury.trace
    # By maintenance, which the trials need not have lasted for.
    until("the group's offsets are set", lambda: group_points(trace), 120)
    assert unseen(grounds.postgres_log, trace) == []
    roles = Counter(passed.point.role for passed in read_trace(trace) if passed.backend is not None)
    assert roles.keys() >= {"begin", "process", "commit", "settle", "trigger", "spark worker"}
    assert group_writes(grounds.stack.kafka) - group_points(trace) == Counter()


def test_what_is_written_past_the_hook_is_named(grounds: Field, outcomes: list[Outcome]):
    with psycopg2.connect(grounds.stack.ledger_url, application_name="stranger") as conn, conn.cursor() as cursor:
        cursor.execute("update ratchet.heads set txid = txid where pipeline = 'nobody'")
    found = unseen(grounds.postgres_log, grounds.armoury.trace)
    assert [said.statement for said in found if said.application == "stranger"] == [
        "BEGIN",
        "update ratchet.heads set txid = txid where pipeline = 'nobody'",
        "COMMIT",
    ]
    before = group_writes(grounds.stack.kafka)
    admin = KafkaAdminClient(bootstrap_servers=grounds.stack.kafka["bootstrap.servers"])
    admin.alter_group_offsets("stranger", {TopicPartition("connect_1", 0): OffsetAndMetadata(1)})
    admin.close()
    assert group_writes(grounds.stack.kafka) - before >= Counter({"stranger": 1})
    assert (group_writes(grounds.stack.kafka) - group_points(grounds.armoury.trace))["stranger"] == 1
