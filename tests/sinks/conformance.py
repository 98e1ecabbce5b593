"""What every sink keeps to, whatever it keeps: a suite in which a sink registers by a Case.

`class TestAppend(Conformance): case = Case(...)` runs it, on a ledger of its own for each test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from sqlalchemy import select, update

from ratchet import Json, Pipeline, Topic
from ratchet.errors import TransformError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run, SinkVote, SliceWork, Tag
from ratchet.operate import release
from ratchet.operate.verify import recompute, verify
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.checksum import MODULUS, batch_checksum
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.sinks.types import DELETED, POSITION
from ratchet.sinks.writer import Into, Writer
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.values.arrow import arrow_schema
from tests.ledger.staging import Log, a_try, positions, records_of, start, vote_of, write

_LETTER = {"timestamp": None, "key": None, "value": b"?", "headers": None, "error": "no"}
Row = dict[str, Any]
Given = list[tuple[int, Row]]
"""(txid, a row with its `_partition` and `_offset`) in txid order."""


class Case(NamedTuple):
    """A sink over a topic with key `k string` and column `a bigint`, and what it must show of what it was given."""

    sink: Sink
    expected: Callable[[Given], list[tuple]]


class Conformance:
    """The suite; a subclass has a `case`."""

    case: Case
    brings: str = ""
    """The statement that makes the table which a user has already."""

    @property
    def sink(self) -> Sink:
        """What works for the declared one."""
        return self.case.sink.working

    @pytest.fixture(autouse=True)
    def sent_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A slice's few rows are sent to PostgreSQL in several parts, as many rows are."""
        monkeypatch.setattr("ratchet.sinks.writer.SENT_ROWS", 3)

    @pytest.fixture
    def spec(self) -> Pipeline:
        return Pipeline(
            name="line",
            source=Topic("t", key="k string", value=Json("a bigint")),
            sinks=[self.case.sink],
            max_records=24,
            slice_records=8,
            keep_deltas=timedelta(days=1),
        )

    @pytest.fixture
    def migrated(self, spec: Pipeline) -> tuple[list[Pipeline], str]:
        return [spec], self.brings

    @pytest.fixture
    def ledger(self, ledger_url: str) -> Iterator[Ledger]:
        with Ledger(ledger_url) as opened:
            yield opened

    def rows(self, at: Sequence[tuple[int, int]], version: int) -> list[Row]:
        """Rows of records, some of one key, with nulls; a key stays in its partition."""
        made: list[Row] = []
        for partition, offset in at:
            dice = random.Random(f"{version} {partition} {offset}")
            key = None if partition == 0 and dice.random() < 0.2 else f"{partition}-{dice.randrange(3)}"
            if dice.random() < 0.9:
                place = {"_partition": partition, "_offset": offset, "_n": 0, "_deleted": False}
                made.append({"k": key, "a": dice.choice([None, *range(-4, 5)]), **place})
        return made

    def table(self, rows: list[Row]) -> pa.Table:
        hidden = [DELETED] if DELETED in self.sink.written else []
        return pa.Table.from_pylist(rows, schema=arrow_schema((*self.sink.needed, *hidden, *POSITION)))

    def written(self, ledger: Ledger, work: SliceWork, rows: list[Row], attempt: int, parts: int) -> SinkVote:
        """Stage rows in so many parts, as one attempt."""
        tag = Tag(0, attempt)
        with Writer(
            Into(ledger.url, work.token, work.ranges, work.relations, work.source), tag, (self.sink,)
        ) as writer:
            size = max(1, -(-len(rows) // parts))
            for first in range(0, len(rows), size):
                writer.write(self.sink, self.table(rows[first : first + size]))
            done = writer.finish()[self.sink.name]
        return SinkVote((done.writer,) if done.rows else (), done.rows, done.checksum)

    def do(
        self, ledger: Ledger, spec: Pipeline, log: Log, run: str, version: int, clear: int = 0
    ) -> tuple[int, list[Row]]:
        """A whole run, each slice staged by an attempt that counts for nothing and by one that does."""
        begun = start(ledger, spec, log, run, clear)
        given: list[Row] = []
        for part in begun.slices:
            work = a_try(ledger, begun, part.number, spec)
            rows = self.rows(positions(work), version)
            self.written(ledger, work, rows[1:], attempt=0, parts=1)
            vote = self.written(ledger, work, rows, attempt=1, parts=part.number + 1)
            sinks = {self.sink.name: vote, DEAD_LETTERS: SinkVote((), 0, 0)}
            cast_vote(ledger, spec, work.token, vote_of(spec, work, sinks))
            given += rows
        commit(ledger, spec, begun.claim)
        return begun.claim.txid, given

    def shown(self, ledger: Ledger) -> list[tuple]:
        with ledger.begin() as conn:
            found = conn.execute(select(self.sink.target)).all()
        return sorted(map(tuple, found), key=repr)

    def is_as_expected(self, ledger: Ledger, spec: Pipeline, given: dict[int, list[Row]]) -> None:
        in_order = [(txid, row) for txid in sorted(given) for row in given[txid]]
        assert self.shown(ledger) == sorted(self.case.expected(in_order), key=repr)
        assert [fault for check in verify(ledger, spec) for fault in check.faults] == []

    @pytest.fixture
    def line(self, ledger: Ledger, spec: Pipeline) -> tuple[Log, dict[int, list[Row]]]:
        """Three transactions."""
        log, given = Log(stable={0: 36, 1: 36}), {}
        for run in "abc":
            txid, rows = self.do(ledger, spec, log, run, version=1)
            given[txid] = rows
        return log, given

    def test_it_shows_what_the_votes_name_in_txid_order(self, ledger, spec, line):
        _, given = line
        assert len(given) == 3
        self.is_as_expected(ledger, spec, given)

    def test_a_revision_takes_the_place_of_the_older_delta(self, ledger, spec, line):
        log, given = line
        txid, given[txid] = self.do(ledger, spec, log, "b", version=2, clear=1)
        assert txid == 2
        self.is_as_expected(ledger, spec, given)

    def test_the_rows_of_a_release_join_those_of_their_transaction(self, ledger, spec, line):
        log, given = line
        dead = sinks_of(spec)[-1]
        log.stable = {0: 60, 1: 60}
        begun, later = start(ledger, spec, log, "d"), start(ledger, spec, log, "e")
        given[4], released = [], []
        for begun_ in (begun, later):
            for part in begun_.slices:
                work = a_try(ledger, begun_, part.number, spec)
                given_up = [row for row in self.rows(positions(work), 4) if row["_offset"] % 3 == 0]
                given_up = given_up if begun_ is begun else []
                rows = [row for row in self.rows(positions(work), 4) if row not in given_up]
                letters = [{**_LETTER, "_partition": r["_partition"], "_offset": r["_offset"]} for r in given_up]
                sinks = {
                    self.sink.name: self.written(ledger, work, rows, attempt=0, parts=1),
                    DEAD_LETTERS: write(ledger, spec, work, dead.name, letters),
                }
                vote = vote_of(spec, work, sinks, dead_letters=len(letters))
                cast_vote(ledger, spec, work.token, vote)
                given.setdefault(begun_.claim.txid, []).extend(rows)
                released += given_up
            commit(ledger, spec, begun_.claim)
            settle(ledger, spec, Run("dag", "d" if begun_ is begun else "e"), succeeded=True)
        assert released and later.claim.txid == 5
        self.is_as_expected(ledger, spec, given)
        release.ask(ledger, spec, None, None, "", "for the test", "somebody")
        again = start(ledger, spec, log, "f")
        assert again.claim.txid == 4
        for part in again.slices:
            work = a_try(ledger, again, part.number, spec)
            read = set(records_of(ledger, work))
            rows = [row for row in released if (row["_partition"], row["_offset"]) in read]
            sinks = {self.sink.name: self.written(ledger, work, rows, attempt=0, parts=1)}
            cast_vote(ledger, spec, work.token, vote_of(spec, work, sinks, records=len(read)))
        commit(ledger, spec, again.claim)
        given[4] = sorted(given[4] + released, key=lambda row: (row["_partition"], row["_offset"]))
        self.is_as_expected(ledger, spec, given)

    def test_compaction_changes_nothing_that_is_shown(self, ledger, spec, line):
        log, given = line
        compact(ledger, spec.model_copy(update={"keep_deltas": timedelta(0)}))
        self.is_as_expected(ledger, spec, given)
        log.stable = {0: 48, 1: 48}
        txid, given[txid] = self.do(ledger, spec, log, "d", version=3)
        self.is_as_expected(ledger, spec, given)

    def test_rows_above_the_head_and_of_writers_that_no_vote_names_are_seen_by_nobody(self, ledger, spec, line):
        log, given = line
        log.stable = {0: 72, 1: 72}
        before = self.shown(ledger)
        # One that is prepared and waits, one that is being processed, and attempts that count for nothing.
        first, second = start(ledger, spec, log, "d"), start(ledger, spec, log, "e")
        later: dict[int, list[Row]] = {4: [], 5: []}
        for begun in (second, first):
            for part in begun.slices:
                work = a_try(ledger, begun, part.number, spec)
                rows = self.rows(positions(work), 4)
                self.written(ledger, work, rows, attempt=0, parts=1)
                vote = self.written(ledger, work, rows, attempt=1, parts=2)
                if begun is second or part.number:
                    sinks = {self.sink.name: vote, DEAD_LETTERS: SinkVote((), 0, 0)}
                    cast_vote(ledger, spec, work.token, vote_of(spec, work, sinks))
                later[begun.claim.txid] += rows
        assert self.shown(ledger) == before
        self.is_as_expected(ledger, spec, given)
        # Whoever folds or merges keys looks at deltas, and must not look so far.
        txid, given[2] = self.do(ledger, spec, log, "b", version=2, clear=1)
        assert txid == 2
        self.is_as_expected(ledger, spec, given)
        compact(ledger, spec.model_copy(update={"keep_deltas": timedelta(0)}))
        self.is_as_expected(ledger, spec, given)
        work = a_try(ledger, first, 0, spec)
        vote = self.written(ledger, work, self.rows(positions(work), 4), attempt=0, parts=1)
        cast_vote(
            ledger, spec, work.token, vote_of(spec, work, {self.sink.name: vote, DEAD_LETTERS: SinkVote((), 0, 0)})
        )
        assert commit(ledger, spec, first.claim).txids == (4, 5)
        self.is_as_expected(ledger, spec, given | later)

    def test_damage_is_named(self, ledger, spec, line):
        with ledger.begin() as conn:
            # A view cannot be changed, but what is behind it.
            table = self.sink.tables[0]
            conn.execute(update(table).where(table.c._txid == 3).values(_txid=2))
        assert [fault for check in verify(ledger, spec) for fault in check.faults] != []

    def test_what_is_recomputed_is_what_is_kept(self, ledger, spec, line):
        sink = self.sink

        def again(works: Sequence[SliceWork]) -> dict[str, tuple[int, int]]:
            rows = [row for work in works for row in self.rows(positions(work), 1)]
            kept = sink.combine(self.table(rows)).select([c.name for c in sink.written])
            sums = [batch_checksum(sink.written, batch) for batch in kept.combine_chunks().to_batches()]
            return {sink.name: (kept.num_rows, sum(sums) % MODULUS)}

        assert recompute(ledger, spec, again).faults == ()

    def test_rows_that_are_combined_in_parts_fold_to_the_same(self):
        sink = self.sink
        rows = self.rows([(p, o) for p in (0, 1) for o in range(60)], 1)
        whole = sink.combine(self.table(rows))
        assert whole.schema.names == [c.name for c in sink.written]
        assert whole.num_rows <= len(rows)
        # A slice of nothing gives nothing.
        assert sink.combine(self.table([])).num_rows == 0

    def test_a_row_of_no_record_of_the_slice_is_refused(self, ledger, spec):
        begun = start(ledger, spec, Log(), "a")
        work = a_try(ledger, begun, 0, spec)
        foreign = self.rows(positions(work), 1)[0] | {"_offset": 10_000}
        with pytest.raises(TransformError, match="offset 10000 is not of this slice"):
            self.written(ledger, work, [foreign], attempt=0, parts=1)

    def test_it_says_what_it_needs_and_what_it_keeps(self, spec):
        sink = self.sink
        assert sink.described and sink.shown == sink.name
        assert len(sink.tables) == len(sink.unique)
        assert {c.name for c in sink.needed} <= {"k", "a"}
        assert sinks_of(spec)[0] == sink
