"""A line over a topic of its own whose measures are exported."""

from __future__ import annotations

from pathlib import Path

from ratchet import Append, DeltaLake, Json, Pipeline, Topic
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from tests.ledger.staging import always_active, prepare


class Line:
    """A line over a topic of its own, two partitions, of which tests do what a run would; its rows go to a lake too."""

    def __init__(self, url: str, kafka, topic: str, lake: Path):
        self.spec = Pipeline(
            name="exported",
            source=Topic(topic, value=Json("a bigint")),
            transform="tests.ledger.staging:rows_of",
            sinks=[Append("rows", columns="a bigint", to=DeltaLake(str(lake)))],
            max_records=20,
            slice_records=10,
            max_failures=1,
        )
        migrate(url, [self.spec])
        self.ledger, self.kafka = Ledger(url), kafka

    def begin(self, run: str):
        return begin(
            self.ledger, self.spec, Run("dag", run), lambda *asked: self.kafka.offsets(self.spec.source.name, *asked),
            is_active=always_active,
        )  # fmt: skip

    def do(self, run: str):
        begun = self.begin(run)
        prepare(self.ledger, self.spec, begun)
        self.commit(begun)
        settle(self.ledger, self.spec, Run("dag", run), succeeded=True)
        return begun

    def commit(self, begun: Begun) -> None:
        commit(self.ledger, self.spec, begun.claim, lambda destination, owner: destination.open(owner, ""))
