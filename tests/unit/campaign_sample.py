"""Records of parts as a campaign could have written them, made up: of any size, and each by its seed."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from tests.proof.campaign.record import (
    NOT_NOW,
    STRUCK,
    CommitRecord,
    Comparison,
    FaultRecord,
    Machine,
    OperationRecord,
    PartRecord,
    PipelineRecord,
    Readings,
    SentRecord,
)
from tests.proof.campaign.timeline import group

COMMIT = "7a53d0315c2e"
BEGAN = datetime(2026, 11, 21, 10, tzinfo=UTC)
HOUR = 3600.0
SHAPES = {
    "orders": "Append and Accumulate, Spark Connect, 4 slices",
    "payments": "Upsert by key with tombstones, 2 slices",
    "clicks": "Append of exploded rows, spark-submit",
    "stock": "Accumulate, compacted, plan by interval",
    "sent": "Append and Upsert with destinations",
}
DESTINATIONS = ("sent to table", "sent to kafka", "sent to delta", "sent to files", "sent to iceberg")
SERVERS = ("PostgreSQL", "Kafka", "Spark Connect", "scheduler", "triggerer", "api-server", "dag-processor")
KINDS = (
    *(f"{name} killed" for name in (*SERVERS, "PostgreSQL backend", "Spark worker", "task", "supervisor of a task")),
    *(f"{name} stopped for 40 s" for name in (*SERVERS[1:6], "PostgreSQL backend", "Spark worker", "task")),
    "PostgreSQL's disk full",
    *(
        f"connection {route} {way}"
        for route in ("Airflow's tasks–ledger", "Spark workers–ledger", "triggerer–ledger", "Spark–Kafka")
        for way in ("cut", "silent", "slow", "torn")
    ),
    *(f"{name}'s clock an hour {way}" for name in SERVERS[:3] for way in ("ahead", "behind")),
)
SECONDS = {"killed": 5, "stopped": 40, "disk": 30, "connections": 20, "clocks": 25}


def part(number: int = 1, of: int = 1, **said) -> PartRecord:
    """A part in which nothing has happened, but for what is said."""
    given = {
        "commit": COMMIT,
        "seed": 7,
        "part": f"{number}/{of}",
        "began": BEGAN + timedelta(hours=number),
        "ended": BEGAN + timedelta(hours=number + 1),
        "machine": Machine(2, 24 * 2**30),
        "readings": Readings(0, 0),
    }
    return PartRecord(**given | said)


def fault(kind: str = "Kafka killed", recovered_after: float | None = None, **said) -> FaultRecord:
    given = {"kind": kind, "struck_at": 60.0, "healed_at": 65.0, "what_happened": STRUCK}
    return FaultRecord(**given | {"recovered_after": recovered_after} | said)


def compared(**said) -> Comparison:
    nothing = dict.fromkeys(("lost", "doubled", "foreign", "different"), 0)
    return Comparison(**{"pipeline": "orders", "read": 1_234, "rows": 1_230, "dead_letters": 4} | nothing | said)


def sample(of: int = 4, faults: int = 265, commits: int = 370, seed: int = 7) -> list[PartRecord]:
    """Parts of a campaign as it could have been: so many faults in each, and so many commits of each pipeline."""
    return [_sample(random.Random(seed * 1000 + number), number, of, faults, commits) for number in range(1, of + 1)]


def _sample(chance: random.Random, number: int, of: int, faults: int, commits: int) -> PartRecord:
    struck = sorted((_sample_fault(chance) for _ in range(faults)), key=lambda one: one.struck_at)
    outages = [(chance.uniform(0, HOUR), chance.uniform(40, 200)) for _ in range(6)]
    done, pipelines, comparisons = [], [], []
    for n, (name, shape) in enumerate(SHAPES.items()):
        mine, total = [], 660_000 + 10_007 * n + number
        at = sorted(chance.uniform(15, HOUR - 5) for _ in range(commits))
        at = [moment for moment in at if not any(a < moment < a + length for a, length in outages)]
        for txid, moment in enumerate(at, start=1):
            records, waited = int(chance.lognormvariate(7.5, 0.5)), chance.expovariate(0.2)
            revision, epoch = int(chance.random() < 0.06), 1 + int(chance.random() < 0.1)
            mine.append(CommitRecord(name, txid, revision, moment, records, epoch, chance.randint(2, 6), waited))
        revisions = sum(one.revision for one in mine)
        dead = total // 5_000
        aborted = total // 2 + chance.randint(0, 999)
        pipelines.append(PipelineRecord(name, shape, total, aborted, len(mine) - revisions, revisions, dead))
        comparisons.append(compared(pipeline=name, read=total, rows=(total - dead) * (1 + n % 2), dead_letters=dead))
        done += mine
    operations = [
        OperationRecord(
            chance.uniform(60, HOUR - 60),
            chance.choice(("clear", "trigger", "backfill", "doubled task", "void")),
            chance.choice(list(SHAPES)),
            chance.choice(("a revision was committed", "nothing to plan, skipped", "the second try was fenced")),
        )
        for _ in range(40)
    ]
    return part(
        number,
        of,
        readings=Readings(8, 11_200 + number, offsets=2_300),
        pipelines=pipelines,
        faults=struck,
        commits=done,
        operations=sorted(operations, key=lambda one: one.at),
        comparison=comparisons,
        sent=[SentRecord(to, pipelines[-1].committed, 0) for to in DESTINATIONS],
    )


def _sample_fault(chance: random.Random) -> FaultRecord:
    kind = chance.choice(KINDS)
    at = chance.uniform(20, HOUR - 150)
    if chance.random() < 0.05:
        return FaultRecord(kind, at, None, NOT_NOW)
    until = at + SECONDS[group(kind)] * chance.uniform(0.7, 1.5)
    recovered = None if chance.random() < 0.1 else min(chance.lognormvariate(2, 0.9), 140)
    return FaultRecord(kind, at, until, STRUCK, recovered)
