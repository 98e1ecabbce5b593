"""A broker whose disk is restored under a line: what was committed stays, and what comes since is taken, all of it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from ratchet import Accumulate, Append, Json, Pipeline, Topic, Upsert
from ratchet.dev.stack import Stack
from ratchet.errors import RecordsLost
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.source.kafka import Kafka
from tests.source.topics import make_topic

from .rig import Rig


def values(tag: str, count: int) -> list[bytes]:
    return [b'{"tag": "%s", "v": %d}' % (tag.encode(), v) for v in range(count)]


WAS, GONE, NEW, MORE = values("was", 30), values("gone", 25), values("new", 70), values("more", 11)


def spec_of(topic: str) -> Pipeline:
    return Pipeline(
        name="p",
        source=Topic(topic, key="k string", value=Json("tag string, v int")),
        sinks=[
            Append("seen", columns="tag string"),
            Accumulate("sums", key="tag string", sum="v bigint", count="n"),
            Upsert("last", key="k string", columns="tag string, v int"),
        ],
        max_records=40,
        slice_records=15,
        max_in_flight=4,
    )


@contextmanager
def broker(home: Path, session, ledger: Ledger) -> Iterator[Rig]:
    with Stack(home, {"kafka"}) as stack, Kafka(stack.kafka) as client:
        yield Rig(session, ledger, stack.kafka, client)


def drain(rig: Rig, spec: Pipeline, name: str) -> None:
    """Commit all that is there."""
    for number in range(20):
        run = Run("dag", f"{name}{number}")
        asked = begin(rig.ledger, spec, run, partial(rig.client.offsets, spec.source.name), lambda *_: True)
        if isinstance(asked, Skipped):
            assert asked.reason == Skip.NO_RECORDS
            return
        for work in rig.begin(spec, run.run_id):
            rig.check(spec, work, rig.run(spec, work))
        assert isinstance(commit(rig.ledger, spec, rig.claim), Committed)
        settle(rig.ledger, spec, run, succeeded=True)
    raise AssertionError("it goes on and on")


@pytest.mark.all
@pytest.mark.invariant("I1")
def test_a_line_is_exact_over_a_disk_that_is_restored(session, ledger_url, scratch):
    home = scratch / "restored-line"
    with Ledger(ledger_url) as ledger:
        with broker(home, session, ledger) as rig:
            spec = spec_of(make_topic(rig.kafka, partitions=2))
            send = partial(rig.send, spec.source.name)
            for p in (0, 1):
                send(*WAS, partition=p, keys=[b"%d" % p] * len(WAS))
            rig.begin(spec, "first0")
            (log,) = home.rglob(f"{spec.source.name}-1")
            shutil.copytree(log, scratch / "backup-line")
            send(*GONE, partition=1, keys=[b"1"] * len(GONE))
            drain(rig, spec, "first")
            # A plan of which nothing is read before the disk is restored.
            send(*GONE[:9], partition=1, keys=[b"1"] * 9)
            rig.begin(spec, "left")
        shutil.rmtree(log)
        shutil.copytree(scratch / "backup-line", log)
        with broker(home, session, ledger) as rig:
            send = partial(rig.send, spec.source.name)
            send(*NEW, partition=1, keys=[b"1"] * len(NEW))
            send(*MORE, partition=0, keys=[b"0"] * len(MORE))
            offsets = partial(rig.client.offsets, spec.source.name)
            with pytest.raises(RecordsLost, match="-1 was cut at offset 30 and has other records up to 100 now"):
                begin(ledger, spec, Run("dag", "second"), offsets, lambda *_: True)
            accept_loss(ledger, spec, offsets, "the disk was restored", "somebody")
            settle(ledger, spec, Run("dag", "left"), succeeded=False, reason="its records are gone")
            drain(rig, spec, "second")
        assert [fault for check in verify(ledger, spec) for fault in check.faults] == []
    with psycopg.connect(ledger_url) as conn:
        rows = Counter(conn.execute("select tag, _partition, _offset from seen").fetchall())
        sums = dict(conn.execute("select tag, n from sums").fetchall())
        last = dict(conn.execute("select k, tag from last").fetchall())
    wanted = [("was", p, o) for p in (0, 1) for o in range(30)] + [("gone", 1, o) for o in range(30, 55)]
    wanted += [("new", 1, o) for o in range(30, 100)] + [("more", 0, o) for o in range(30, 41)]
    assert rows == Counter(wanted)
    assert sums == {"was": 60, "gone": 25, "new": 70, "more": 11}
    assert last == {"0": "more", "1": "new"}
