"""Prepared transactions without Kafka and Spark: PostgreSQL makes the rows where tasks would write them.

Everything else is the project's own: begin, tries, writers and votes. A writer has as many rows as a Spark task has.
"""

from __future__ import annotations

import psycopg
from psycopg import sql
from sqlalchemy import Connection

from benchmarks.backlog import COLUMNS, PARTITIONS
from benchmarks.table import SLICE, append, renew
from ratchet import Json, Pipeline, Topic
from ratchet.ledger import writers
from ratchet.ledger.connection import Ledger
from ratchet.ledger.topics import Topics
from ratchet.ledger.work import Claim, OffsetRange, Run, SinkVote, SliceWork, Tag, Vote
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.sinks.lookup import sinks_of
from ratchet.source.offsets import TopicOffsets
from ratchet.spark.intake import parts_of
from ratchet.spec.parts import DeclaredSink
from ratchet.spec.pipeline import DEAD_LETTERS

MOST = 10_000_000
"""The most records of a transaction."""


class Line:
    """One pipeline with an empty sink, an Append; a context manager that closes its connections."""

    def __init__(
        self,
        ledger_url: str,
        name: str,
        topic: Topic | None = None,
        sink: DeclaredSink | None = None,
        partitions: int = PARTITIONS,
    ):
        self.spec = Pipeline(
            name=name,
            source=topic or Topic(name, value=Json(COLUMNS)),
            sinks=[sink or append(name)],
            max_records=MOST,
            slice_records=SLICE,
            max_in_flight=2,
        )
        renew(ledger_url, self.spec)
        self.ledger = Ledger(ledger_url)
        self.until = dict.fromkeys(range(partitions), 0)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.ledger.close()

    @property
    def rows(self) -> tuple[str, str]:
        """The delta table, (schema, name)."""
        return sinks_of(self.spec)[0].home

    def arrive(self, records: int) -> None:
        """Let so many more records wait."""
        self.until = {p: until + records // len(self.until) for p, until in self.until.items()}

    def prepare(self, records: int, run_id: str) -> Claim:
        """A new transaction of so many records, up to its last vote."""
        self.arrive(records)
        return self._prepared(Run(self.spec.name, run_id))

    def revise(self, run_id: str, clear_number: int = 1) -> Claim:
        """A revision of the transaction that a run has committed, up to its last vote."""
        return self._prepared(Run(self.spec.name, run_id, clear_number))

    def _prepared(self, run: Run) -> Claim:
        begun = begin(self.ledger, self.spec, run, self.offsets, lambda *_: True)
        assert isinstance(begun, Begun), begun
        self.process(begun)
        return begun.claim

    def process(self, begun: Begun) -> None:
        """Take a try at each slice, write its rows, and vote."""
        for part in begun.slices:
            work = take_try(self.ledger, self.spec, begun.claim, part.number)
            assert isinstance(work, SliceWork), work
            self._process(work)

    def offsets(self, *_: object) -> TopicOffsets:
        """What Kafka would say, for begin."""
        return TopicOffsets(Topics.one(self.spec.source.title, "bench"), dict.fromkeys(self.until, 0), dict(self.until))

    def _process(self, work: SliceWork) -> None:
        with self.ledger.begin() as conn:
            numbers = tuple(self._written(conn, work, Tag(n, n), part) for n, part in enumerate(parts_of(work.ranges)))
        records = sum(map(len, work.ranges))
        nothing = SinkVote((), 0, 0)
        # The checksum serves who reads rows back later, and nobody does.
        vote = Vote(
            records=records,
            ranges=work.ranges,
            sinks={self.spec.sinks[0].name: SinkVote(numbers, records, 0), DEAD_LETTERS: nothing},
            dead_letters=0,
            reached={},
            code_hash=self.spec.code_hash,
            application_id="bench",
            seconds={},
        )
        cast_vote(self.ledger, self.spec, work.token, vote)

    def _written(self, conn: Connection, work: SliceWork, tag: Tag, part: tuple[OffsetRange, ...]) -> int:
        """The number of a writer that has written a part of a slice."""
        name = self.spec.sinks[0].name
        number = writers.register(conn, work.token, tag, name, work.relations[name])
        driver = conn.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        for r in part:
            self._insert(driver, work, number, r)
        spans = {r.partition: (r.from_offset, r.until_offset - 1) for r in part}
        writers.note(conn, number, sum(map(len, part)), spans)
        return number

    def _insert(self, driver: psycopg.Connection, work: SliceWork, writer: int, of: OffsetRange) -> None:
        """A row for each record of a range."""
        statement = sql.SQL(
            "insert into {} (_txid, _writer, _source, _partition, _offset, _n, id, account, amount, score, kind) "
            "select {}, {}, {}, {}, o, 0, o, 'a-' || 10000 + o % 1000, 1000 + o % 9000, 100 + o % 900, 'card' "
            "from generate_series({}::bigint, {}) o"
        )
        given = work.token.txid, writer, work.source, of.partition, of.from_offset, of.until_offset - 1
        relation = sql.Identifier(*work.relations[self.spec.sinks[0].name])
        driver.execute(statement.format(relation, *map(sql.Literal, given)))
