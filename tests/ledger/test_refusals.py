"""What was staged and fits neither its vote nor its sink is refused at the vote or at the commit, with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from ratchet.errors import Refused
from ratchet.ledger.states import State
from ratchet.ledger.work import Run, SinkVote
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote
from ratchet.sinks import stage
from ratchet.spec.pipeline import DEAD_LETTERS

from .staging import (
    SPEC,
    a_try,
    appended,
    head,
    planned,
    positions,
    prepare,
    rows_of,
    start,
    state,
    vote_of,
    write,
    write_all,
)


@pytest.mark.invariant("I1")
def test_what_was_voted_must_be_what_is_staged(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    rows = rows_of(SPEC, work)
    rows["rows"] = rows["rows"][:-1] + rows["rows"][:1]
    sinks = write_all(ledger, SPEC, work, rows)
    with pytest.raises(Refused, match=r"1 rows of partition 0 repeat a \(_partition, _offset, _n\)"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, 10, sinks))
    assert state(ledger, 1) is State.ABORTED


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("sink", ["rows", "totals", "latest"])
def test_rows_that_were_voted_and_are_not_staged_are_counted(ledger, log, sink):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    rows = rows_of(SPEC, work)
    sinks = write_all(ledger, SPEC, work, rows)
    sinks[sink] = replace(sinks[sink], rows=11)
    with pytest.raises(Refused, match=f"{sink}: 10 rows are staged, the vote says 11"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, 10, sinks))
    assert state(ledger, 1) is State.ABORTED


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("tag", [tag.name for tag in stage.TAGS])
def test_a_row_that_does_not_say_who_staged_it_cannot_be_staged(ledger, log, tag):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    with pytest.raises(IntegrityError, match=f'null value in column "{tag}"'), ledger.begin() as conn:
        conn.execute(stage.table("line_1_1_0", SPEC.sinks[0]).update().values({tag: None}))


@pytest.mark.invariant("I1")
def test_rows_of_other_slices_are_refused(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    rows = rows_of(SPEC, work)
    rows["rows"][0]["_offset"] = 4711
    sinks = write_all(ledger, SPEC, work, rows)
    with pytest.raises(Refused, match="are not of this slice"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, 10, sinks))


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("sink", ["rows", "latest"])
def test_a_record_that_is_a_row_and_a_dead_letter_is_refused(ledger, log, sink):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    sinks = write_all(ledger, SPEC, work, rows_of(SPEC, work))
    others = SinkVote((), 0, 0)
    partition, offset = positions(work)[3]
    letter = {"_partition": partition, "_offset": offset, "key": None, "value": b"", "headers": None, "error": "no"}
    dead = write(ledger, SPEC, work, DEAD_LETTERS, [letter])
    voted = {**dict.fromkeys(sinks, others), sink: sinks[sink], DEAD_LETTERS: dead}
    with pytest.raises(Refused, match=f"{sink}: partition {partition}, offset {offset} is a row and a dead letter"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, 10, voted, dead_letters=1))
    assert state(ledger, 1) == State.ABORTED


@pytest.mark.invariant("I1", "I5")
def test_a_stage_that_changed_after_the_vote_aborts_its_transaction_and_no_other(ledger, log):
    first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, first)
    prepare(ledger, SPEC, second)
    with ledger.begin() as conn:
        conn.execute(text("delete from ratchet_stage.line_2_1_0 where _offset % 2 = 0"))
    done = commit(ledger, SPEC, first.claim)
    assert done.txids == (1,) and "2 fails and is left to its own commit" in done.message
    assert appended(ledger) == planned(first)
    with pytest.raises(Refused, match="transaction 2, rows: 10 rows are staged, the votes say 20"):
        commit(ledger, SPEC, second.claim)
    assert (state(ledger, 2), head(ledger)) == (State.ABORTED, 1)
    assert appended(ledger) == planned(first)


@pytest.mark.invariant("I1")
def test_a_stage_that_has_grown_since_the_vote_is_not_committed(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    with ledger.begin() as conn:
        conn.execute(text("insert into ratchet_stage.line_1_1_1 select * from ratchet_stage.line_1_1_1 limit 3"))
    with pytest.raises(Refused, match="transaction 1, totals: 23 rows are staged, the votes say 20"):
        commit(ledger, SPEC, begun.claim)
    assert (state(ledger, 1), head(ledger), appended(ledger)) == (State.ABORTED, 0, [])


@pytest.mark.invariant("I3")
def test_a_key_in_two_partitions_without_an_order_is_refused_with_both_positions(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    for part in begun.slices:
        work = a_try(ledger, begun, part.number)
        rows = rows_of(SPEC, work)
        for row in rows["latest"]:
            is_same = (row["_partition"], row["_offset"]) in ((0, 4), (1, 3))
            row["k"] = "same" if is_same else f"{row['_partition']}-{row['_offset']}"
        sinks = write_all(ledger, SPEC, work, rows)
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, 10, sinks))
    with pytest.raises(Refused, match="key same is in partition 0 at offset 4 and in partition 1 at offset 3"):
        commit(ledger, SPEC, begun.claim)


@pytest.mark.invariant("I3")
def test_a_key_that_an_earlier_transaction_has_from_another_partition_is_refused_likewise(ledger, log):
    log.stable = {0: 20, 1: 0}
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    assert commit(ledger, SPEC, first.claim).txids == (1,)
    log.stable = {0: 20, 1: 3}
    second = start(ledger, SPEC, log, "b")
    work = a_try(ledger, second)
    rows = rows_of(SPEC, work)
    rows["latest"][2]["k"] = "0-4"
    sinks = write_all(ledger, SPEC, work, rows)
    cast_vote(ledger, SPEC, work.token, vote_of(SPEC, 3, sinks))
    with pytest.raises(Refused, match="key 0-4 is in partition 1 at offset 2 and in partition 0 at offset 19"):
        commit(ledger, SPEC, second.claim)
    assert (state(ledger, 2), head(ledger)) == (State.ABORTED, 1)


@pytest.mark.parametrize(
    ("change", "back", "why"),
    [
        ("alter table rows rename column a to b", "alter table rows rename column b to a", "column .a. of relation"),
        ("alter table rows add check (a < 5)", "alter table rows drop constraint rows_a_check", "violates check"),
        ("alter table totals rename to elsewhere", "alter table elsewhere rename to totals", "does not exist"),
    ],
)
def test_a_target_that_changes_before_the_commit_aborts_with_the_reason_and_loses_nothing(
    ledger, log, change, back, why
):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    with ledger.begin() as conn:
        conn.execute(text(change))
    with pytest.raises(Refused, match=why):
        commit(ledger, SPEC, begun.claim)
    assert state(ledger, 1) is State.ABORTED
    with ledger.begin() as conn:
        conn.execute(text(back))
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="refused")
    again = start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, again)
    commit(ledger, SPEC, again.claim)
    assert appended(ledger) == planned(again)
