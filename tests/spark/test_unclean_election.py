"""Three brokers, and the election of a follower that lacks what its leader had acknowledged: nothing is passed over."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from uuid import uuid4

import psycopg
import pytest
from kafka.errors import KafkaError

from ratchet.dev.stack import Stack
from ratchet.errors import RecordsLost
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.source.kafka import Kafka
from ratchet.spark.engine import connect_session
from tests.until import until

from .rig import Rig
from .test_cut_logs import GONE, MORE, NEW, WAS, drain, spec_of
from .test_three_brokers import BROKERS, state

pytestmark = pytest.mark.cluster
LEADER, FOLLOWER, OTHER = BROKERS
PATIENCE = 180


@pytest.fixture
def cluster(scratch):
    with Stack(scratch / "unclean", {"kafka"}, brokers=3) as stack:
        yield stack


@pytest.fixture
def freeze(cluster) -> Iterator[Callable[[int, bool], None]]:
    """Stops a broker's process, or lets it go on."""
    pids = {number: cluster.pids()[name] for number, name in BROKERS.items()}

    def switch(broker: int, is_frozen: bool) -> None:
        os.kill(pids[broker], signal.SIGSTOP if is_frozen else signal.SIGCONT)

    yield switch
    for broker in BROKERS:
        switch(broker, False)


def make_topic(client: Kafka) -> str:
    """Partition 0 on a leader and its follower; partition 1 is led by the third broker."""
    name = f"unclean-{uuid4().hex[:12]}"
    configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true", "retention.ms": "-1"}
    assignments = {0: [LEADER, FOLLOWER], 1: [OTHER, LEADER]}
    client.admin.create_topics({name: {"assignments": assignments, "configs": configs}}, wait_for_metadata=True)
    until("the follower is in sync", partial(is_led, client, name, LEADER, {LEADER, FOLLOWER}), PATIENCE)
    return name


def is_led(client: Kafka, topic: str, leader: int, in_sync: set[int]) -> bool:
    """Whether partition 0 has this leader and these replicas in sync, for all that brokers say that answer."""
    try:
        return state(client, topic)[0] == (leader, in_sync)
    except KafkaError:
        return False


def without(cluster: Stack, frozen: int) -> dict[str, str]:
    """Properties that do not name a broker that accepts connections and answers none."""
    servers = cluster.kafka["bootstrap.servers"].split(",")
    named = [server for number, server in zip(BROKERS, servers, strict=True) if number != frozen]
    return {**cluster.kafka, "bootstrap.servers": ",".join(named)}


def refused(rig: Rig, spec, run: str, said: str) -> None:
    offsets = partial(rig.client.offsets, spec.source.name)
    with pytest.raises(RecordsLost, match=f"-0 was cut at offset 30{said}, though the ledger has planned it up to 64"):
        begin(rig.ledger, spec, Run("dag", run), offsets, lambda *_: True)


@pytest.mark.invariant("I1", "I2")
def test_an_unclean_election_is_told_by_begin_and_by_each_slice_and_every_new_record_is_taken(
    spark_connect, ledger_url, cluster, freeze
):
    connected = connect_session(spark_connect.spark, "tests", uuid4().hex)
    with connected as session, Ledger(ledger_url) as ledger:
        with Kafka(cluster.kafka) as client:
            until("all three brokers have joined", lambda: len(client.admin.describe_cluster()["brokers"]) == 3)
            rig = Rig(session, ledger, cluster.kafka, client)
            spec = spec_of(make_topic(client))
            for p in (0, 1):
                rig.send(spec.source.name, *WAS, partition=p, keys=[b"%d" % p] * len(WAS))
            # What the leader alone has.
            freeze(FOLLOWER, True)
        with Kafka(without(cluster, FOLLOWER)) as client:
            rig = Rig(session, ledger, without(cluster, FOLLOWER), client)
            until("it is given up", partial(is_led, client, spec.source.name, LEADER, {LEADER}), PATIENCE)
            rig.send(spec.source.name, *GONE, keys=[b"0"] * len(GONE))
            rig.begin(spec, "first0")
            drain(rig, spec, "first")
            rig.send(spec.source.name, *GONE[:9], keys=[b"0"] * 9)
            (planned,) = rig.begin(spec, "left")
        freeze(LEADER, True)
        freeze(FOLLOWER, False)
        with Kafka(without(cluster, LEADER)) as client:
            rig = Rig(session, ledger, without(cluster, LEADER), client)
            until("the follower leads", partial(is_led, client, spec.source.name, FOLLOWER, {FOLLOWER}), PATIENCE)
            refused(rig, spec, "second", "")
            rig.send(spec.source.name, *NEW, keys=[b"0"] * len(NEW))
            rig.send(spec.source.name, *MORE, partition=1, keys=[b"1"] * len(MORE))
            refused(rig, spec, "second", " and has other records up to 100 now")
            with pytest.raises(RecordsLost, match=r"-0 was cut at offset 30, and \[55,64\) was planned"):
                rig.run(spec, planned)
            # The leader of before comes back, and follows.
            freeze(LEADER, False)
            both = {LEADER, FOLLOWER}
            until("both have it", partial(is_led, client, spec.source.name, FOLLOWER, both), PATIENCE)
            refused(rig, spec, "third", " and has other records up to 100 now")
            offsets = partial(client.offsets, spec.source.name)
            said = accept_loss(ledger, spec, offsets, "an unclean election", "somebody")
            assert said.opened is not None and (said.opened.source, said.opened.cause) == (2, "cut")
            settle(ledger, spec, Run("dag", "left"), succeeded=False, reason="its records are gone")
            drain(rig, spec, "fourth")
        assert [fault for check in verify(ledger, spec) for fault in check.faults] == []
    with psycopg.connect(ledger_url) as conn:
        rows = Counter(conn.execute("select tag, _partition, _offset from seen").fetchall())
        sums = dict(conn.execute("select tag, n from sums").fetchall())
        last = dict(conn.execute("select k, tag from last").fetchall())
    wanted = [("was", p, o) for p in (0, 1) for o in range(30)] + [("gone", 0, o) for o in range(30, 55)]
    wanted += [("new", 0, o) for o in range(30, 100)] + [("more", 1, o) for o in range(30, 41)]
    assert rows == Counter(wanted)
    assert sums == {"was": 60, "gone": 25, "new": 70, "more": 11}
    assert last == {"0": "new", "1": "more"}
