"""I6, I9: two of everything. A try that is late stages and votes nothing; steps that are doubled happen once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pytest
from sqlalchemy import event, func, select, text

from ratchet.begin import Begun, begin
from ratchet.claims import settle
from ratchet.commit import Committed, Waits, commit
from ratchet.errors import Fenced, LedgerUnreachable
from ratchet.ledger import read_transaction
from ratchet.moves import abort, void
from ratchet.pipeline import DEAD_LETTERS
from ratchet.schema import STAGE_SCHEMA, events
from ratchet.sinks.staged import staged_columns
from ratchet.spark import stager
from ratchet.spark.checksum import row_hash
from ratchet.spark.stager import Copying, Stage
from ratchet.transaction import Run, SinkVote, State, Tag, Vote
from ratchet.votes import SliceWork, cast_vote, take_try

from .staging import (
    SPEC,
    always_active,
    contents,
    is_whole,
    moves_of,
    positions,
    rows_of,
    start,
    vote_of,
)

ARROW = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "boolean": pa.bool_()}


@dataclass(frozen=True)
class Attempt:
    """A Spark task attempt, as the stager asks for it."""

    number: int

    def partitionId(self) -> int:  # noqa: N802
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802
        return self.number


@pytest.fixture
def stages(ledger_url, monkeypatch):
    """What a job stages of its slice, with its own code, in one Spark task; the vote.

    `between` is called when half of the first sink's rows are on their way to PostgreSQL.
    """

    def stage(work: SliceWork, between: Callable[[], object] = lambda: None, attempt: int = 0) -> Vote:
        monkeypatch.setattr(stager.TaskContext, "get", staticmethod(lambda: Attempt(attempt)))
        sinks, then = {DEAD_LETTERS: SinkVote((), 0, 0)}, between
        for sink in SPEC.sinks:
            columns = staged_columns(sink)
            rows = rows_of(SPEC, work)[sink.name]
            half = len(rows) // 2
            copying = Copying(Stage(sink.name, work.stages[sink.name], ledger_url), work.token)
            (report,) = copying(_batches(columns, rows[:half], rows[half:], then))
            (said,) = report.to_pylist()
            tag = Tag(said["partition"], said["attempt"])
            sinks[sink.name] = SinkVote((tag,), said["rows"], int(said["checksum"]))
            then = lambda: None  # noqa: E731
        return vote_of(SPEC, len(positions(work)), sinks)

    return stage


def _batches(columns, first: list[dict], second: list[dict], between: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    yield _batch(columns, first)
    between()
    yield _batch(columns, second)


def _batch(columns, rows: list[dict]) -> pa.RecordBatch:
    hashes = [row_hash(columns, [row[c.name] for c in columns]) for row in rows]
    arrays = [pa.array([row[c.name] for row in rows], ARROW[c.type]) for c in columns]
    signed = pa.array([h - 2**64 if h >= 2**63 else h for h in hashes], pa.int64())
    return pa.record_batch([*arrays, signed], [*(c.name for c in columns), "_hash"])


def a_try(ledger, begun: Begun, number: int = 0) -> SliceWork:
    work = take_try(ledger, SPEC, begun.claim, number)
    assert isinstance(work, SliceWork), work
    return work


def finish(ledger, begun: Begun, stages) -> None:
    """Process what has not voted, and commit."""
    for part in begun.slices:
        work = take_try(ledger, SPEC, begun.claim, part.number)
        if isinstance(work, SliceWork):
            cast_vote(ledger, SPEC, work.token, stages(work))
    assert isinstance(commit(ledger, SPEC, begun.claim), Committed)


def staged(ledger, work: SliceWork) -> int:
    """How many rows of this try are in the stages that there still are."""
    count = 0
    with ledger.begin() as conn:
        for relation in work.stages.values():
            if conn.execute(text("select to_regclass(:name)"), {"name": f"ratchet_stage.{relation}"}).scalar_one():
                query = f"select count(*) from ratchet_stage.{relation} where _slice = :slice and _try = :try"  # noqa: S608
                count += conn.execute(
                    text(query), {"slice": work.token.slice, "try": work.token.try_number}
                ).scalar_one()
    return count


# Two tries of one slice, both to their end.


@pytest.mark.parametrize("order", ["the new one first", "the old one first"])
def test_of_two_tries_that_both_finish_the_newer_counts_whichever_is_first(ledger, log, stages, order):
    begun = start(ledger, SPEC, log, "a")
    old, new = a_try(ledger, begun), a_try(ledger, begun)

    def by_new() -> None:
        cast_vote(ledger, SPEC, new.token, stages(new, attempt=2))

    def by_old() -> None:
        with pytest.raises(Fenced):
            stages(old, attempt=1)
        with pytest.raises(Fenced):
            cast_vote(ledger, SPEC, old.token, vote_of(SPEC, 10, _nothing()))

    for step in (by_new, by_old) if order == "the new one first" else (by_old, by_new):
        step()
    assert staged(ledger, old) == 0
    finish(ledger, begun, stages)
    is_whole(ledger, begun)


@pytest.mark.parametrize("order", ["the new one first", "the old one first"])
def test_what_a_try_had_staged_before_it_was_overtaken_is_not_part_of_the_delta(ledger, log, stages, order):
    begun = start(ledger, SPEC, log, "a")
    old = a_try(ledger, begun)
    voted_by_old = stages(old, attempt=1)
    new = a_try(ledger, begun)

    def by_new() -> None:
        cast_vote(ledger, SPEC, new.token, stages(new, attempt=2))

    def by_old() -> None:
        with pytest.raises(Fenced, match="try 2 has the slice now"):
            cast_vote(ledger, SPEC, old.token, voted_by_old)

    for step in (by_new, by_old) if order == "the new one first" else (by_old, by_new):
        step()
    assert staged(ledger, old) == staged(ledger, new) > 0
    finish(ledger, begun, stages)
    is_whole(ledger, begun)


def _nothing() -> dict[str, SinkVote]:
    return {sink.name: SinkVote((), 0, 0) for sink in SPEC.sinks}


# A try whose epoch ends while it works. Each gives the transactions that are committed in the end.


def newer_try(ledger, log, begun, stages) -> list[Begun]:
    a_try(ledger, begun)
    return []


def voted_by_another(ledger, log, begun, stages) -> list[Begun]:
    work = a_try(ledger, begun)
    cast_vote(ledger, SPEC, work.token, stages(work, attempt=7))
    return []


def aborted(ledger, log, begun, stages) -> list[Begun]:
    abort(ledger, SPEC, begun.claim.txid, "for the test", "me")
    return []


def begun_anew(ledger, log, begun, stages) -> list[Begun]:
    aborted(ledger, log, begun, stages)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="aborted")
    again = start(ledger, SPEC, log, "b")
    assert (again.how, again.claim.epoch) == ("adopted", 2)
    return []


def committed(ledger, log, begun, stages) -> list[Begun]:
    finish(ledger, begun, stages)
    return [begun]


def being_revised(ledger, log, begun, stages) -> list[Begun]:
    finish(ledger, begun, stages)
    assert start(ledger, SPEC, log, "a", 1).how == "revised"
    return [begun]


def revised(ledger, log, begun, stages) -> list[Begun]:
    finish(ledger, begun, stages)
    finish(ledger, start(ledger, SPEC, log, "a", 1), stages)
    return [begun]


def voided(ledger, log, begun, stages) -> list[Begun]:
    void(ledger, SPEC, begun.claim.txid, "for the test", "me")
    return []


ENDS = [newer_try, voted_by_another, aborted, begun_anew, committed, being_revised, revised, voided]
each_end = pytest.mark.parametrize("end", ENDS, ids=lambda e: e.__name__)


@each_end
def test_a_try_that_begins_to_stage_after_its_end_stages_and_votes_nothing(ledger, log, stages, end):
    begun = start(ledger, SPEC, log, "a")
    late = a_try(ledger, begun)
    there = end(ledger, log, begun, stages)
    before = (contents(ledger, SPEC), moves_of(ledger))
    with pytest.raises(Fenced):
        stages(late, attempt=99)
    with pytest.raises(Fenced):
        cast_vote(ledger, SPEC, late.token, vote_of(SPEC, 10, _nothing()))
    assert staged(ledger, late) == 0
    assert (contents(ledger, SPEC), moves_of(ledger)) == before
    is_whole(ledger, *there)


@each_end
def test_a_try_whose_end_comes_while_its_rows_are_on_their_way_stages_nothing(ledger, log, stages, end):
    begun = start(ledger, SPEC, log, "a")
    late, there = a_try(ledger, begun), []
    with pytest.raises(Fenced):
        stages(late, between=lambda: there.extend(end(ledger, log, begun, stages)), attempt=99)
    assert staged(ledger, late) == 0
    is_whole(ledger, *there)


@contextmanager
def before_stages_are_read(ledger, do: Callable[[], object]) -> Iterator[None]:
    """Let something happen just before the first statement that looks at what is staged."""
    is_done = []

    def before(conn, cursor, statement, *_):
        if f"{STAGE_SCHEMA}." in statement and not is_done:
            is_done.append(True)
            do()

    event.listen(ledger.engine, "before_cursor_execute", before)
    yield
    event.remove(ledger.engine, "before_cursor_execute", before)
    assert is_done


@each_end
def test_a_vote_whose_stages_are_discarded_while_it_looks_at_them_comes_too_late(ledger, log, stages, end):
    begun = start(ledger, SPEC, log, "a")
    late, there = a_try(ledger, begun), []
    vote = stages(late, attempt=99)
    with before_stages_are_read(ledger, lambda: there.extend(end(ledger, log, begun, stages))), pytest.raises(Fenced):
        cast_vote(ledger, SPEC, late.token, vote)
    is_whole(ledger, *there)


def test_a_vote_that_is_repeated_while_its_stages_are_discarded_was_cast_already(ledger, log, stages):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    vote = stages(work)
    cast_vote(ledger, SPEC, work.token, vote)
    with before_stages_are_read(ledger, lambda: finish(ledger, begun, stages)):
        assert cast_vote(ledger, SPEC, work.token, vote) == f"{work.token}: this vote was cast already"
    is_whole(ledger, begun)


@each_end
def test_a_try_that_has_staged_all_votes_too_late(ledger, log, stages, end):
    begun = start(ledger, SPEC, log, "a")
    late = a_try(ledger, begun)
    vote = stages(late, attempt=99)
    there = end(ledger, log, begun, stages)
    before = (contents(ledger, SPEC), moves_of(ledger))
    with pytest.raises(Fenced):
        cast_vote(ledger, SPEC, late.token, vote)
    assert (contents(ledger, SPEC), moves_of(ledger)) == before
    is_whole(ledger, *there)


def test_a_try_that_is_stopped_before_its_last_word_holds_up_an_abort_for_its_idle_time_only(
    ledger, log, stages, monkeypatch
):
    monkeypatch.setattr("ratchet.ledger.IDLE_SECONDS", 1)
    begun = start(ledger, SPEC, log, "a")
    late = a_try(ledger, begun)
    stopped, goes_on = threading.Event(), threading.Event()

    def stop(self, conn):
        stopped.set()
        assert goes_on.wait(60)
        return whole(self, conn)

    whole = Copying._slice_is_over
    monkeypatch.setattr(Copying, "_slice_is_over", stop)
    with ThreadPoolExecutor(2) as pool:
        staging = pool.submit(stages, late)
        try:
            assert stopped.wait(60)
            pool.submit(abort, ledger, SPEC, 1, "for the test", "me").result(timeout=20)
        finally:
            goes_on.set()
        with pytest.raises(LedgerUnreachable, match="slice 0, try 1: .*nothing was voted"):
            staging.result()
    assert staged(ledger, late) == 0
    is_whole(ledger)


# Steps that are doubled, at once.


def at_once(*calls: Callable[[], object]) -> list[object]:
    """What each gave, or the error it raised."""
    together = threading.Barrier(len(calls))

    def one(call: Callable[[], object]) -> object:
        together.wait()
        try:
            return call()
        except Fenced as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


ROUNDS = 8


def test_a_begin_and_its_own_settle_at_once_leave_one_claim_that_is_ended_or_held(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    done = []
    for n in range(ROUNDS):
        run = Run("dag", f"r{n}")
        first = start(ledger, SPEC, log, run.run_id)
        again, said = at_once(
            lambda run=run: begin(ledger, SPEC, run, log.offsets, always_active),
            lambda run=run: settle(ledger, SPEC, run, succeeded=False, reason="killed"),
        )
        assert isinstance(again, Fenced) or again.claim == first.claim
        assert "is left OPEN" in said
        adopted = start(ledger, SPEC, log, f"{run.run_id} after")
        assert (adopted.how, adopted.claim.txid, adopted.claim.number) == ("adopted", first.claim.txid, 2)
        finish(ledger, adopted, stages)
        done.append(adopted)
    is_whole(ledger, *done)


def test_two_runs_that_find_the_same_abandoned_work_at_once_adopt_it_once(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    done = []
    for n in range(ROUNDS):
        lost = start(ledger, SPEC, log, f"r{n}")
        settle(ledger, SPEC, Run("dag", f"r{n}"), succeeded=False, reason="killed")
        found = at_once(*(lambda who=who, n=n: start(ledger, SPEC, log, f"r{n}{who}") for who in "ab"))
        assert sorted(b.how for b in found) == ["adopted", "allocated"]
        assert {b.claim.txid for b in found if b.how == "adopted"} == {lost.claim.txid}
        for b in sorted(found, key=lambda b: b.claim.txid):
            finish(ledger, b, stages)
            done.append(b)
    is_whole(ledger, *done)


def test_commits_of_a_line_that_come_all_at_once_commit_each_once_and_in_order(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    done = []
    for n in range(ROUNDS):
        line = [start(ledger, SPEC, log, f"r{n}{who}") for who in "abc"]
        for begun in line:
            for part in begun.slices:
                work = a_try(ledger, begun, part.number)
                cast_vote(ledger, SPEC, work.token, stages(work))
        # Each of them twice, the last first.
        said = at_once(*(lambda b=b: commit(ledger, SPEC, b.claim) for b in [*reversed(line), *reversed(line)]))
        assert {type(outcome) for outcome in said} <= {Committed, Waits}
        by = [outcome.txids for outcome in said if isinstance(outcome, Committed)]
        assert sorted(txid for txids in by for txid in txids) == [b.claim.txid for b in line]
        done += line
    with ledger.begin() as conn:
        order = conn.execute(select(events.c.txid).where(events.c.move == "COMMITTED").order_by(events.c.id)).scalars()
        assert order.all() == list(range(1, 3 * ROUNDS + 1))
    is_whole(ledger, *done)


def test_a_settle_of_the_run_beside_its_commit_changes_nothing_of_it(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    done = []
    for n in range(ROUNDS):
        begun = start(ledger, SPEC, log, f"r{n}")
        for part in begun.slices:
            work = a_try(ledger, begun, part.number)
            cast_vote(ledger, SPEC, work.token, stages(work))
        settling = [
            lambda n=n: settle(ledger, SPEC, Run("dag", f"r{n}"), succeeded=False, reason="killed") for _ in range(2)
        ]
        outcome, *_ = at_once(lambda b=begun: commit(ledger, SPEC, b.claim), *settling)
        assert outcome.txids == (begun.claim.txid,)
        with ledger.begin() as conn:
            row = read_transaction(conn, SPEC.name, begun.claim.txid)
            ends = select(func.count()).where(events.c.txid == row.txid, events.c.move == "end")
            assert (row.state, row.failures, row.claim_ended) == (State.COMMITTED, 0, True)
            assert conn.execute(ends).scalar_one() == 1
        done.append(begun)
    is_whole(ledger, *done)


def test_a_settle_that_is_doubled_counts_one_failure(ledger, log, stages):
    log.stable = {0: 400, 1: 400}
    for n in range(ROUNDS):
        begun = start(ledger, SPEC, log, f"r{n}")
        said = at_once(*[lambda n=n: settle(ledger, SPEC, Run("dag", f"r{n}"), succeeded=False, reason="killed")] * 3)
        assert sorted("had ended before" in line for line in said) == [False, True, True]
        with ledger.begin() as conn:
            assert read_transaction(conn, SPEC.name, begun.claim.txid).failures == 1
        finish(ledger, start(ledger, SPEC, log, f"r{n} after"), stages)
