"""Records that Kafka no longer has, and the move by which a person accepts it, against a real PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select

from ratchet.errors import BrokerUnreachable, Fenced, IllegalMove, RecordsLost, TopicChanged
from ratchet.ledger import history
from ratchet.ledger.schema import losses, slices
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run, SliceWork
from ratchet.operate.actions import abort, accept_loss
from ratchet.operate.outcome import lines_of
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.plan import reached
from ratchet.protocol.votes import cast_vote, take_try
from ratchet.sinks.lookup import sink_of
from ratchet.source.offsets import KnownLogs

from .staging import (
    PLAIN,
    SPEC,
    always_active,
    appended,
    do_slice,
    fail,
    planned,
    prepare,
    rows_of,
    start,
    vote_of,
    write_all,
)


@pytest.mark.invariant("I2")
def test_lost_records_that_no_plan_has_taken_become_a_voided_transaction(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    log.beginning = {0: 15, 1: 10}
    with pytest.raises(RecordsLost, match="ratchet accept-loss line"):
        begin(ledger, SPEC, Run("dag", "b"), log.offsets, always_active)
    said = lines_of(accept_loss(ledger, SPEC, log.offsets, "nobody needs them", "somebody", dry_run=True))
    assert said[0] == "transaction 2 is VOIDED: t-0[10,15), 5 offsets, are accepted as lost" and "dry run" in said[-1]
    accept_loss(ledger, SPEC, log.offsets, "nobody needs them", "somebody")
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
        accept_loss(ledger, SPEC, log.offsets, "again", "somebody")


@pytest.mark.invariant("I2")
def test_what_retention_has_deleted_of_a_partition_before_it_was_ever_seen_is_lost(ledger, log):
    log.beginning, log.stable = {0: 4}, {0: 10}
    first = start(ledger, PLAIN, log, "a")
    prepare(ledger, PLAIN, first)
    commit(ledger, PLAIN, first.claim)
    log.beginning[7], log.stable[7] = 3, 9
    with pytest.raises(RecordsLost, match=r"t-7: retention has deleted t-7\[0,3\), 3 offsets that no transaction"):
        begin(ledger, PLAIN, Run("dag", "b"), log.offsets, always_active)
    said = lines_of(accept_loss(ledger, PLAIN, log.offsets, "nobody needs them", "somebody"))
    assert said[0] == "transaction 2 is VOIDED: t-7[0,3), 3 offsets, are accepted as lost"
    second = start(ledger, PLAIN, log, "b")
    assert [str(r) for part in second.slices for r in part.ranges] == ["t-7[3,9)"]
    prepare(ledger, PLAIN, second)
    assert commit(ledger, PLAIN, second.claim).txids == (3,)
    assert appended(ledger) == planned(first, second)


@pytest.mark.invariant("I1")
def test_lost_records_of_a_plan_are_taken_out_of_what_has_not_voted(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    assert [str(r) for part in begun.slices for r in part.ranges] == ["t-0[0,10)", "t-1[0,10)"]
    do_slice(ledger, SPEC, begun, 0)
    late = take_try(ledger, SPEC, begun.claim, 1)
    log.beginning = {0: 10, 1: 4}
    said = lines_of(accept_loss(ledger, SPEC, log.offsets, "deleted too soon", "somebody"))
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


@pytest.mark.invariant("I1")
def test_a_line_goes_on_with_every_new_record_where_a_log_was_cut(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    # A slice of each partition: one has voted when the log is cut.
    second = start(ledger, SPEC, log, "b")
    assert [str(r) for part in second.slices for r in part.ranges] == ["t-0[10,20)", "t-1[10,20)"]
    do_slice(ledger, SPEC, second, 1)
    late = take_try(ledger, SPEC, second.claim, 0)
    log.stable, log.lineages, log.kept = {0: 30, 1: 14}, {0: ((0, 0), (2, 6)), 1: ((0, 0), (2, 14))}, {0: 6, 1: 14}
    with pytest.raises(RecordsLost, match="t-0 was cut at offset 6 and has other records up to 30 now"):
        start(ledger, SPEC, log, "c")
    outcome = accept_loss(ledger, SPEC, log.offsets, "the disk was restored", "somebody", dry_run=True)
    assert lines_of(outcome)[:4] == [
        "line: transaction 2, slice 0: t-0[10,20), 10 offsets, are accepted as lost",
        "line: a log was cut: source 2 begins; what was committed of the one before stays",
        "line: t-0 goes on at offset 6; it was planned up to 20",
        "line: t-1 goes on at offset 14; it was planned up to 20",
    ]
    assert replace(outcome, dry_run=False) == accept_loss(
        ledger, SPEC, log.offsets, "the disk was restored", "somebody"
    )
    with ledger.begin() as conn:
        (event,) = [e for e in history.read(conn, SPEC.name) if "source" in e.detail]
        assert (event.detail["why"], event.detail["source"]) == ("the disk was restored", 2)
        # Monitoring must not see what is not committed, nor that other records of the log are taken.
        line = read_line(conn, SPEC.name)
        assert line is not None and reached(conn, line) == (1, {0: 6, 1: 10})
    with pytest.raises(Fenced):
        cast_vote(ledger, SPEC, late.token, vote_of(SPEC, late, write_all(ledger, SPEC, late, rows_of(SPEC, late))))
    do_slice(ledger, SPEC, second, 0)
    commit(ledger, SPEC, second.claim)
    log.kept = {}
    third = start(ledger, SPEC, log, "c")
    assert [str(r) for part in third.slices for r in part.ranges] == ["t-0[6,16)", "t-0[16,26)"]
    fourth = start(ledger, SPEC, log, "d")
    assert [str(r) for part in fourth.slices for r in part.ranges] == ["t-0[26,30)"]
    for begun in (third, fourth):
        prepare(ledger, SPEC, begun)
        commit(ledger, SPEC, begun.claim)
    voted = [row for row in planned(second) if row[0] == 1]
    assert appended(ledger) == sorted([*planned(first, third, fourth), *voted])
    with ledger.begin() as conn:
        rows = sink_of(SPEC, "rows").tables[0]
        assert conn.execute(select(rows.c._txid, rows.c._source).distinct().order_by(rows.c._txid)).all() == [
            (1, 1),
            (2, 1),
            (3, 2),
            (4, 2),
        ]
        line = read_line(conn, SPEC.name)
        assert line is not None and reached(conn, line) == (2, {0: 30, 1: 14})
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []


@pytest.mark.invariant("I1")
def test_a_cut_is_where_the_log_ends_and_not_where_a_transaction_hangs(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    # The marker of a transaction was cut off: what follows its beginning is undecided.
    log.stable, log.end, log.kept = {0: 3, 1: 50}, {0: 8, 1: 50}, {0: 8}
    log.lineages = {0: ((0, 0), (2, 8)), 1: ((0, 0),)}
    with pytest.raises(RecordsLost, match="t-0 was cut at offset 8, though"):
        start(ledger, SPEC, log, "b")
    accept_loss(ledger, SPEC, log.offsets, "the disk was restored", "somebody")
    log.kept = {}
    second = start(ledger, SPEC, log, "b")
    assert {r.partition for part in second.slices for r in part.ranges} == {1}
    log.stable = {0: 30, 1: 50}
    log.end = log.stable
    third = start(ledger, SPEC, log, "c")
    assert min(r.from_offset for part in third.slices for r in part.ranges if r.partition == 0) == 8


@pytest.mark.invariant("I1")
def test_a_loss_is_not_accepted_by_an_answer_from_before_a_plan(ledger, log):
    start(ledger, SPEC, log, "a")
    log.stable = {0: 20, 1: 10}
    answers = [log.offsets(None, KnownLogs(lineages={}))]

    def meanwhile(*asked):
        log.stable = {0: 25, 1: 10}
        start(ledger, SPEC, log, "b")
        return answers.pop()

    with pytest.raises(IllegalMove, match="a run has planned meanwhile; nothing was accepted"):
        accept_loss(ledger, SPEC, meanwhile, "it looks so", "somebody")


@pytest.mark.invariant("I1")
def test_a_line_goes_on_with_a_topic_that_was_made_again(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    start(ledger, SPEC, log, "b")
    log.topic_id, log.beginning, log.stable = "second", {0: 2, 1: 0, 2: 0}, {0: 7, 1: 3, 2: 1}
    with pytest.raises(TopicChanged, match="deleted and made again.*ratchet accept-loss line"):
        start(ledger, SPEC, log, "c")
    said = lines_of(accept_loss(ledger, SPEC, log.offsets, "it was made again", "somebody"))
    assert said[:7] == [
        "line: transaction 2, slice 0: t-0[10,20), 10 offsets, are accepted as lost",
        "line: transaction 2, slice 1: t-1[10,20), 10 offsets, are accepted as lost",
        "transaction 3 is VOIDED: t-0[0,2), 2 offsets, are accepted as lost",
        "line: topic t was made again, with id second: source 2 begins; what was committed of the one before stays",
        "line: t-0 goes on at offset 0; it was planned up to 20",
        "line: t-1 goes on at offset 0; it was planned up to 20",
        "the head is 1",
    ]
    second = start(ledger, SPEC, log, "b")
    assert second.claim.txid == 2 and [len(part) for part in second.slices] == [0, 0]
    third = start(ledger, SPEC, log, "c")
    assert [str(r) for part in third.slices for r in part.ranges] == ["t-0[2,7)", "t-1[0,3)", "t-2[0,1)"]
    for begun in (second, third):
        prepare(ledger, SPEC, begun)
        commit(ledger, SPEC, begun.claim)
    assert appended(ledger) == planned(first, third)
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []
    with pytest.raises(IllegalMove, match="Kafka has every offset"):
        accept_loss(ledger, SPEC, log.offsets, "again", "somebody")


@pytest.mark.invariant("I1")
def test_what_a_cut_log_has_lost_is_not_begun_anew_with_other_code(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    do_slice(ledger, SPEC, begun, 0)
    log.kept, log.lineages = {0: 4}, {0: ((0, 0), (2, 4))}
    accept_loss(ledger, SPEC, log.offsets, "the disk was restored", "somebody")
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")
    other = SPEC.model_copy(update={"sinks": SPEC.sinks[:2]})
    log.kept = {}
    with pytest.raises(RecordsLost, match=r"Kafka does not have t-0\[4,10\) any more"):
        begin(ledger, other, Run("dag", "b"), log.offsets, always_active)


def test_a_loss_is_not_looked_for_in_a_topic_of_another_name(ledger, log):
    start(ledger, SPEC, log, "a")
    log.topic, log.topic_id, log.beginning = "u", "second", {0: 7, 1: 7}
    other = SPEC.model_copy(update={"source": SPEC.source.model_copy(update={"name": "u"})})
    with pytest.raises(TopicChanged, match="the ledger's ranges are of topic t, not of u"):
        accept_loss(ledger, other, log.offsets, "deleted", "somebody")
    with pytest.raises(TopicChanged, match="of topic t, and none of them is in Kafka and the spec"):
        accept_loss(ledger, SPEC, log.offsets, "deleted", "somebody")
    with ledger.begin() as conn:
        assert conn.execute(select(losses)).all() == []


def test_a_slice_of_which_nothing_is_left_keeps_its_place(ledger, log):
    fail(ledger, log, "a")
    abort(ledger, SPEC, 1, "its records are gone", "somebody")
    log.beginning = {0: 10, 1: 0}
    accept_loss(ledger, SPEC, log.offsets, "deleted", "somebody")
    again = start(ledger, SPEC, log, "b")
    assert [(part.number, len(part)) for part in again.slices] == [(0, 0), (1, 10)]
    with ledger.begin() as conn:
        assert conn.execute(select(slices.c.ranges).where(slices.c.epoch == 2, slices.c.slice == 0)).scalar_one() == []


@pytest.mark.invariant("I10")
def test_a_prepared_transaction_is_finished_without_kafka(ledger, log):
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="killed")

    def gone(*_):
        raise BrokerUnreachable("no broker answers")

    again = begin(ledger, SPEC, Run("dag", "b"), gone, always_active)
    assert not isinstance(again, Skipped) and again.how == "adopted"
    assert again.message.endswith("; no more is due than before, since Kafka was not heard: no broker answers")
    assert commit(ledger, SPEC, again.claim).txids == (1,)
