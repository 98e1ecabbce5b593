"""What was written and fits neither its vote nor its sink is refused at the vote or at the commit, with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from ratchet.errors import Fenced, Refused
from ratchet.ledger.fence import hold_try
from ratchet.ledger.states import State
from ratchet.ledger.work import Run, SinkVote
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote
from ratchet.sinks import delta
from ratchet.sinks.lookup import sink_of
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
def test_what_was_voted_must_be_what_is_written(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    rows = rows_of(SPEC, work)
    rows["rows"] = rows["rows"][:-1] + rows["rows"][:1]
    sinks = write_all(ledger, SPEC, work, rows)
    with pytest.raises(Refused, match=r"1 rows of partition 0 repeat a \(_partition, _offset, _n\)"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
    assert state(ledger, 1) is State.ABORTED


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("sink", ["rows", "totals", "latest"])
def test_rows_that_were_voted_and_are_not_written_are_counted(ledger, log, sink):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    rows = rows_of(SPEC, work)
    sinks = write_all(ledger, SPEC, work, rows)
    sinks[sink] = replace(sinks[sink], rows=11)
    with pytest.raises(Refused, match=f"{sink}: 10 rows are written, the vote says 11"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
    assert state(ledger, 1) is State.ABORTED


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("column", ["_txid", "_writer"])
@pytest.mark.parametrize("sink", ["rows", "totals", "latest"])
def test_a_row_that_does_not_say_who_wrote_it_cannot_be_written(ledger, log, sink, column):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    with pytest.raises(IntegrityError, match=f'null value in column "{column}"'), ledger.begin() as conn:
        kind = sink_of(SPEC, sink)
        conn.execute(delta.table(kind.home, kind).update().values({column: None}))


@pytest.mark.invariant("I1")
def test_rows_of_other_slices_are_refused(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    rows = rows_of(SPEC, work)
    rows["rows"][0]["_offset"] = 4711
    sinks = write_all(ledger, SPEC, work, rows)
    with pytest.raises(Refused, match="are not of this slice"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("sink", ["rows", "latest"])
def test_a_record_that_is_a_row_and_a_dead_letter_is_refused(ledger, log, sink):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    sinks = write_all(ledger, SPEC, work, rows_of(SPEC, work))
    others = SinkVote((), 0, 0)
    partition, offset = positions(work)[3]
    letter = {"_partition": partition, "_offset": offset, "timestamp": None, "key": None, "value": b"", "headers": None}
    letter["error"] = "no"
    dead = write(ledger, SPEC, work, DEAD_LETTERS, [letter])
    voted = {**dict.fromkeys(sinks, others), sink: sinks[sink], DEAD_LETTERS: dead}
    with pytest.raises(Refused, match=f"{sink}: partition {partition}, offset {offset} is a row and a dead letter"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, voted, dead_letters=1))
    assert state(ledger, 1) == State.ABORTED


@pytest.mark.invariant("I1", "I5")
def test_deltas_that_changed_after_the_vote_abort_their_transaction_and_no_other(ledger, log):
    first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, first)
    prepare(ledger, SPEC, second)
    with ledger.begin() as conn:
        conn.execute(text('delete from ratchet_delta."public.latest" where _txid = 2 and _offset % 2 = 0'))
    done = commit(ledger, SPEC, first.claim)
    assert done.txids == (1,) and "2 fails and is left to its own commit" in done.message
    assert appended(ledger) == planned(first)
    with pytest.raises(Refused, match="transaction 2, latest: 10 rows are there, the votes say 20"):
        commit(ledger, SPEC, second.claim)
    assert (state(ledger, 2), head(ledger)) == (State.ABORTED, 1)
    assert appended(ledger) == planned(first)


@pytest.mark.invariant("I1")
def test_deltas_that_have_grown_since_the_vote_are_not_committed(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    with ledger.begin() as conn:
        conn.execute(
            text('insert into ratchet_delta."public.totals" select * from ratchet_delta."public.totals" limit 3')
        )
    with pytest.raises(Refused, match="transaction 1, totals: 23 rows are there, the votes say 20"):
        commit(ledger, SPEC, begun.claim)
    assert (state(ledger, 1), head(ledger), appended(ledger)) == (State.ABORTED, 0, [])


@pytest.mark.invariant("I1")
def test_a_vote_that_names_a_writer_of_another_try_or_one_that_is_not_there_is_refused(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    works = [a_try(ledger, begun, part.number) for part in begun.slices[:2]]
    sinks, others = (write_all(ledger, SPEC, work, rows_of(SPEC, work)) for work in works)
    foreign = {**sinks, "rows": others["rows"]}
    with pytest.raises(Refused, match=r"rows: writer \d+ is not of this try"):
        cast_vote(ledger, SPEC, works[0].token, vote_of(SPEC, works[0], foreign))
    settle(ledger, SPEC, Run("dag", "a"), succeeded=False, reason="refused")
    again = start(ledger, SPEC, log, "b")
    work = a_try(ledger, again)
    sinks = write_all(ledger, SPEC, work, rows_of(SPEC, work))
    invented = {**sinks, "rows": replace(sinks["rows"], writers=(999_999,))}
    with pytest.raises(Refused, match="rows: its rows are gone"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, invented))


@pytest.mark.invariant("I1")
@pytest.mark.parametrize("sink", ["rows", "totals", "latest"])
def test_rows_that_two_writers_of_a_vote_have_both_written_are_refused(ledger, log, sink):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    rows = rows_of(SPEC, work)
    sinks = write_all(ledger, SPEC, work, rows)
    twice = write(ledger, SPEC, work, sink, rows[sink][:1], attempt=1)
    both = SinkVote(sinks[sink].writers + twice.writers, sinks[sink].rows + 1, 0)
    vote = vote_of(SPEC, work, {**sinks, sink: both})
    if sink == "totals":
        # Sums have no positions, so that only what accepted the attempts can know.
        cast_vote(ledger, SPEC, work.token, vote)
        return
    with pytest.raises(Refused, match=r"1 rows of partition 0 repeat a \(_partition, _offset, _n\)"):
        cast_vote(ledger, SPEC, work.token, vote)


@pytest.mark.invariant("I6")
def test_a_vote_on_other_ranges_than_the_slices_or_of_a_try_with_another_nonce_changes_nothing(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    sinks = write_all(ledger, SPEC, work, rows_of(SPEC, work))
    other = replace(work.ranges[0], until_offset=work.ranges[0].until_offset - 1)
    with pytest.raises(Fenced, match=r"the job has read t-0\[0,9\), and the slice is \[\[0, 0, 10\]\]"):
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks, ranges=(other,)))
    # The numbers of a try that a ledger had given before it was restored to an earlier state.
    old = replace(work, token=replace(work.token, nonce=work.token.nonce ^ 1))
    with pytest.raises(Fenced, match="another try of this number has the slice now"):
        cast_vote(ledger, SPEC, old.token, vote_of(SPEC, work, sinks))
    with pytest.raises(Fenced, match="another try of this number"), ledger.begin() as conn:
        hold_try(conn, old.token)
    assert state(ledger, 1) is State.OPEN
    cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))


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
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
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
    cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
    with pytest.raises(Refused, match="key 0-4 is in partition 0 at offset 19 and in partition 1 at offset 2"):
        commit(ledger, SPEC, second.claim)
    assert (state(ledger, 2), head(ledger)) == (State.ABORTED, 1)


@pytest.mark.parametrize(
    ("change", "back", "why"),
    [
        ("alter table totals rename n to b", "alter table totals rename b to n", "column .n. of relation"),
        ("alter table totals add check (n < 5)", "alter table totals drop constraint totals_n_check", "violates check"),
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
