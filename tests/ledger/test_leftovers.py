"""Rows are written once, and those that no vote names are removed before the head passes them; nobody sees them."""

from __future__ import annotations

import secrets
from datetime import timedelta

import pyarrow as pa
import pytest
from sqlalchemy import func, select, text

from ratchet.errors import LedgerUnreachable, Refused, TransformError
from ratchet.ledger.schema import stages, writers
from ratchet.ledger.states import State
from ratchet.ledger.transactions import move, read_transaction
from ratchet.ledger.work import OffsetRange, Run, Tag
from ratchet.operate.actions import abort, void
from ratchet.operate.upkeep import upkeep
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact
from ratchet.protocol.leftovers import discard_finished
from ratchet.protocol.votes import cast_vote
from ratchet.sinks import stage
from ratchet.sinks.lookup import sink_of, sinks_of
from ratchet.sinks.writer import Into, Writer, check_own
from tests.until import until

from .staging import (
    SPEC,
    a_try,
    always_active,
    appended,
    committed,
    contents,
    do_slice,
    finish,
    head,
    is_whole,
    prepare,
    rows_of,
    start,
    state,
    write_all,
)
from .task import needed_rows


def begun_anew(ledger, log) -> Begun:
    """The second epoch of a transaction; what a slice of the first has written and voted for is still there."""
    first = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, first, 0)
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, 1, lock=True)
        move(conn, row, State.ABORTED, who="test", why="a reason", reason="a reason")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="aborted")
    again = start(ledger, SPEC, log, "b")
    assert (again.claim.txid, again.claim.epoch) == (1, 2)
    return again


def test_of_an_aborted_epoch_the_rows_are_removed_and_of_the_next_they_stay(ledger, log):
    again = begun_anew(ledger, log)
    prepare(ledger, SPEC, again)
    assert discard_finished(ledger, SPEC.name) == len(SPEC.sinks)
    assert commit(ledger, SPEC, again.claim).txids == (1,)
    is_whole(ledger, again)


def test_a_commit_removes_what_is_left_of_other_epochs_and_of_attempts_that_no_vote_names(ledger, log):
    again = begun_anew(ledger, log)
    work = a_try(ledger, again, 0)
    write_all(ledger, SPEC, work, rows_of(SPEC, work))
    prepare(ledger, SPEC, again)
    assert commit(ledger, SPEC, again.claim).txids == (1,)
    with ledger.begin() as conn:
        assert conn.execute(select(func.count()).select_from(writers)).scalar_one() == 0
    is_whole(ledger, again)


def test_a_group_ends_at_a_member_with_leftovers_which_are_removed_before_it_is_taken_along(ledger, log):
    first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
    work = a_try(ledger, second, 0)
    write_all(ledger, SPEC, work, rows_of(SPEC, work))
    prepare(ledger, SPEC, first)
    prepare(ledger, SPEC, second)
    assert commit(ledger, SPEC, first.claim).txids == (1, 2)
    is_whole(ledger, first, second)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_void_leaves_no_rows_and_says_beforehand_what_it_will_do(ledger, log, dry_run):
    first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, first)
    work = a_try(ledger, second, 0)
    write_all(ledger, SPEC, work, rows_of(SPEC, work))
    prepare(ledger, SPEC, second)
    done = void(ledger, SPEC, 1, "for the test", "me", dry_run=dry_run)
    assert (done.head, done.committed) == (2, (2,))
    assert head(ledger) == (0 if dry_run else 2)
    if not dry_run:
        is_whole(ledger, second)


def test_the_head_is_moved_over_a_void_whose_process_has_died_before_it_removed_the_rows(ledger, log, monkeypatch):
    first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
    do_slice(ledger, SPEC, first, 0)
    prepare(ledger, SPEC, second)

    def dies(*_):
        raise LedgerUnreachable("the process is killed here")

    with monkeypatch.context() as patched:
        patched.setattr("ratchet.operate.decisions.move_on", dies)
        patched.setattr("ratchet.operate.decisions.discard_finished", dies)
        void(ledger, SPEC, 1, "for the test", "me")
    assert (state(ledger, 1), head(ledger), appended(ledger)) == (State.VOIDED, 0, [])
    assert "behind a void, 2 are committed" in list(upkeep(ledger, SPEC, always_active))
    assert head(ledger) == 2
    is_whole(ledger, second)


def test_rows_above_the_head_are_seen_by_nobody(ledger, log):
    first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, second)
    assert contents(ledger, SPEC) == {"rows": [], "totals": [], "latest": [], "dead_letters": []}
    prepare(ledger, SPEC, first)
    third = start(ledger, SPEC, log, "c")
    do_slice(ledger, SPEC, third, 0)
    assert commit(ledger, SPEC, first.claim).txids == (1, 2)
    before = contents(ledger, SPEC)
    is_whole(ledger, first, second)
    # Nor by a revision, which folds keys anew, nor by a compaction.
    revised = start(ledger, SPEC, log, "a", 1)
    prepare(ledger, SPEC, revised)
    commit(ledger, SPEC, revised.claim)
    assert contents(ledger, SPEC) == before
    compact(ledger, SPEC.model_copy(update={"keep_deltas": timedelta(0)}))
    assert contents(ledger, SPEC) == before
    is_whole(ledger, first, second)
    do_slice(ledger, SPEC, third, 1)
    commit(ledger, SPEC, third.claim)
    is_whole(ledger, first, second, third)


def test_of_a_revision_whose_stage_is_gone_nothing_is_committed_and_the_next_run_tries_again(ledger, log):
    first = committed(ledger, log, "a")
    again = start(ledger, SPEC, log, "a", 1)
    prepare(ledger, SPEC, again)
    with ledger.begin() as conn:
        row = read_transaction(conn, SPEC.name, 1, 1)
        stage.drop(conn, stage.relations(conn, sinks_of(SPEC), row)["totals"][1])
    with pytest.raises(Refused, match="transaction 1, epoch 2: what was staged for totals is gone"):
        commit(ledger, SPEC, again.claim)
    settle(ledger, SPEC, Run("dag", "a", 1), succeeded=False, reason="refused")
    adopted = start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, adopted)
    commit(ledger, SPEC, adopted.claim)
    is_whole(ledger, first)


def test_a_stage_that_somebody_else_has_dropped_is_not_looked_for_forever(ledger, log):
    committed(ledger, log, "a")
    begun = start(ledger, SPEC, log, "a", 1)
    work = a_try(ledger, begun)
    with ledger.begin() as conn:
        conn.execute(text(f"drop table ratchet_stage.{work.relations['rows'][1]}"))
    abort(ledger, SPEC, 1, "for the test", "me")
    discard_finished(ledger, SPEC.name)
    with ledger.begin() as conn:
        assert conn.execute(select(stages)).all() == []


@pytest.mark.parametrize("sink", ["totals", "latest"])
def test_a_key_that_no_index_can_hold_is_told_by_who_writes_it_and_leaves_nothing(ledger, log, sink, stages):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    kind = sink_of(SPEC, sink)
    rows = needed_rows(kind, work)
    keys = pa.array([f"{secrets.token_hex(4_000)}" for _ in range(rows.num_rows)])
    rows = rows.set_column(rows.schema.get_field_index("k"), "k", keys)
    into = Into(ledger.url, work.token, work.ranges, work.relations, work.source)
    with pytest.raises(TransformError, match=f"sink '{sink}': PostgreSQL cannot hold a value: index row size"):
        with Writer(into, Tag(0, 0), (kind,)) as writer:
            writer.write(kind, rows)
            writer.finish()
    finish(ledger, begun, stages)
    is_whole(ledger, begun)


def test_a_transform_may_take_its_time_between_two_batches(ledger, log, monkeypatch, stages):
    monkeypatch.setattr("ratchet.ledger.connection.IDLE_SECONDS", 1)
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)

    def is_idle_for_long() -> bool:
        with ledger.begin() as conn:
            query = (
                "select count(*) from pg_stat_activity where datname = current_database() and "
                "application_name = 'ratchet stage' and state_change < clock_timestamp() - interval '1500 milliseconds'"
            )
            return conn.execute(text(query)).scalar_one() > 0

    cast_vote(
        ledger, SPEC, work.token, stages(work, between=lambda: until("the writer has been idle", is_idle_for_long, 20))
    )
    finish(ledger, begun, stages)
    is_whole(ledger, begun)


def test_rows_of_a_partition_of_which_a_loss_was_taken_out_of_the_middle_are_the_slices_own(ledger, log):
    sink = sink_of(SPEC, "rows")
    rows = pa.table({"_partition": pa.array([0, 0], pa.int32()), "_offset": pa.array([3, 13], pa.int64())})
    ranges = [OffsetRange("t", 0, 0, 5), OffsetRange("t", 0, 10, 20)]
    check_own(sink, rows, ranges)
    with pytest.raises(TransformError, match="offset 7 is not of this slice"):
        check_own(sink, rows.set_column(1, "_offset", pa.array([3, 7], pa.int64())), ranges)
