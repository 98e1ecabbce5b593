"""Records that Kafka no longer has, and the move by which a person accepts it, against a real PostgreSQL."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from ratchet.errors import Fenced, IllegalMove, RecordsLost, TopicChanged
from ratchet.ledger import history
from ratchet.ledger.schema import losses, slices
from ratchet.ledger.work import Run, SliceWork
from ratchet.operate.actions import abort, accept_loss
from ratchet.operate.outcome import lines_of
from ratchet.protocol.begin import Skipped, begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote, take_try

from .staging import SPEC, always_active, appended, do_slice, fail, planned, prepare, rows_of, start, vote_of, write_all


@pytest.mark.invariant("I2")
def test_lost_records_that_no_plan_has_taken_become_a_voided_transaction(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    log.beginning = {0: 15, 1: 10}
    with pytest.raises(RecordsLost, match="ratchet accept-loss line"):
        begin(ledger, SPEC, Run("dag", "b"), log.offsets, always_active)
    said = lines_of(accept_loss(ledger, SPEC, log.offsets(), "nobody needs them", "somebody", dry_run=True))
    assert said[0] == "transaction 2 is VOIDED: t-0[10,15), 5 offsets, are accepted as lost" and "dry run" in said[-1]
    accept_loss(ledger, SPEC, log.offsets(), "nobody needs them", "somebody")
    second = start(ledger, SPEC, log, "b")
    assert second.claim.txid == 3
    assert min(r.from_offset for part in second.slices for r in part.ranges if r.partition == 0) == 15
    prepare(ledger, SPEC, second)
    assert commit(ledger, SPEC, second.claim).txids == (3,)
    assert appended(ledger) == planned(first, second)
    with ledger.begin() as conn:
        assert [(r.txid, r.partition, r.from_offset, r.until_offset) for r in conn.execute(select(losses))] == [
            (2, 0, 10, 15)
        ]
    with pytest.raises(IllegalMove, match="Kafka has every offset"):
        accept_loss(ledger, SPEC, log.offsets(), "again", "somebody")


@pytest.mark.invariant("I2")
def test_what_retention_has_deleted_of_a_partition_before_it_was_ever_seen_is_lost(ledger, log):
    log.beginning, log.stable = {0: 4}, {0: 10}
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    log.beginning[7], log.stable[7] = 3, 9
    with pytest.raises(RecordsLost, match=r"t-7: retention has deleted t-7\[0,3\), 3 offsets that no transaction"):
        begin(ledger, SPEC, Run("dag", "b"), log.offsets, always_active)
    said = lines_of(accept_loss(ledger, SPEC, log.offsets(), "nobody needs them", "somebody"))
    assert said[0] == "transaction 2 is VOIDED: t-7[0,3), 3 offsets, are accepted as lost"
    second = start(ledger, SPEC, log, "b")
    assert [str(r) for part in second.slices for r in part.ranges] == ["t-7[3,9)"]
    prepare(ledger, SPEC, second)
    assert commit(ledger, SPEC, second.claim).txids == (3,)
    assert appended(ledger) == planned(first, second)


@pytest.mark.invariant("I1")
def test_lost_records_of_a_plan_are_taken_out_of_what_has_not_voted(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    assert [str(r) for part in begun.slices for r in part.ranges] == ["t-0[0,10)", "t-1[0,10)"]
    do_slice(ledger, SPEC, begun, 0)
    late = take_try(ledger, SPEC, begun.claim, 1)
    log.beginning = {0: 10, 1: 4}
    said = lines_of(accept_loss(ledger, SPEC, log.offsets(), "deleted too soon", "somebody"))
    assert said[0] == "line: transaction 1, slice 1: t-1[0,4), 4 offsets, are accepted as lost"
    with ledger.begin() as conn:
        assert [e.detail["lost"] for e in history.read(conn, SPEC.name) if e.move == "accept-loss"] == [[said[0]]]
    sinks = write_all(ledger, SPEC, late, rows_of(SPEC, late))
    with pytest.raises(Fenced):
        cast_vote(ledger, SPEC, late.token, vote_of(SPEC, late, sinks))
    work = take_try(ledger, SPEC, begun.claim, 1)
    assert isinstance(work, SliceWork) and [str(r) for r in work.ranges] == ["t-1[4,10)"]
    do_slice(ledger, SPEC, begun, 1)
    commit(ledger, SPEC, begun.claim)
    # What had voted before it was deleted is there.
    assert appended(ledger) == [row for row in planned(begun) if row[0] == 0 or row[1] >= 4]


def test_a_loss_is_not_looked_for_in_another_topic(ledger, log):
    start(ledger, SPEC, log, "a")
    log.topic_id, log.beginning = "second", {0: 7, 1: 7}
    with pytest.raises(TopicChanged, match="ranges are of first: it is another topic"):
        accept_loss(ledger, SPEC, log.offsets(), "deleted", "somebody")
    with ledger.begin() as conn:
        assert conn.execute(select(losses)).all() == []


def test_a_slice_of_which_nothing_is_left_keeps_its_place(ledger, log):
    fail(ledger, log, "a")
    abort(ledger, SPEC, 1, "its records are gone", "somebody")
    log.beginning = {0: 10, 1: 0}
    accept_loss(ledger, SPEC, log.offsets(), "deleted", "somebody")
    again = start(ledger, SPEC, log, "b")
    assert [(part.number, len(part)) for part in again.slices] == [(0, 0), (1, 10)]
    with ledger.begin() as conn:
        assert conn.execute(select(slices.c.ranges).where(slices.c.epoch == 2, slices.c.slice == 0)).scalar_one() == []


@pytest.mark.invariant("I10")
def test_a_prepared_transaction_is_finished_without_kafka(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")

    def gone(_):
        raise AssertionError("Kafka was asked")

    again = begin(ledger, SPEC, Run("dag", "b"), gone, always_active)
    assert not isinstance(again, Skipped) and again.how == "adopted"
    assert commit(ledger, SPEC, again.claim).txids == (1,)
