"""I6: what a try does after its end, in every order: it writes nothing, votes nothing and holds nobody up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import event, select

from ratchet.errors import Fenced, LedgerUnreachable
from ratchet.ledger import fence
from ratchet.ledger.schema import writers
from ratchet.ledger.work import Run, SinkVote, SliceWork
from ratchet.operate.actions import abort, void
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.votes import Cast, NoTry, cast_vote, take_try
from ratchet.sinks import delta
from ratchet.sinks.lookup import sink_of
from ratchet.sinks.port import Rows

from .staging import SPEC, a_try, contents, finish, is_whole, moves_of, start, vote_of


def staged(ledger, work: SliceWork) -> int:
    """How many rows there are of this try's writers, which are known as long as their transaction is not committed."""
    count = 0
    with ledger.begin() as conn:
        of = [column == getattr(work.token, name) for name, column in _OF_TRY.items()]
        for writer in conn.execute(select(writers).where(*of)).all():
            found = delta.named(
                Rows((writer.schema, writer.relation), writer.txid, (writer.writer,), 0), sink_of(SPEC, writer.sink)
            )
            rows = len(conn.execute(found).all())
            assert rows == writer.rows
            count += rows
    return count


_OF_TRY = {name: writers.c[name] for name in ("pipeline", "txid", "revision", "epoch", "slice", "try_number", "nonce")}


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
            cast_vote(ledger, SPEC, old.token, vote_of(SPEC, old, _nothing()))

    for step in (by_new, by_old) if order == "the new one first" else (by_old, by_new):
        step()
    assert staged(ledger, old) == 0
    finish(ledger, begun, stages)
    is_whole(ledger, begun)


@pytest.mark.invariant("I6")
@pytest.mark.parametrize("order", ["the new one first", "the old one first"])
def test_what_a_try_had_staged_before_it_was_overtaken_is_not_part_of_the_delta(ledger, log, stages, order):
    begun = start(ledger, SPEC, log, "a")
    old = a_try(ledger, begun)
    voted_by_old = stages(old, attempt=1)
    new = a_try(ledger, begun)

    def by_new() -> None:
        cast_vote(ledger, SPEC, new.token, stages(new, attempt=2))

    def by_old() -> None:
        with pytest.raises(Fenced, match="try 2"):
            cast_vote(ledger, SPEC, old.token, voted_by_old)

    for step in (by_new, by_old) if order == "the new one first" else (by_old, by_new):
        step()
    assert staged(ledger, old) == staged(ledger, new) > 0
    finish(ledger, begun, stages)
    is_whole(ledger, begun)


def _nothing() -> dict[str, SinkVote]:
    return {sink.name: SinkVote((), 0, 0) for sink in SPEC.sinks}


@pytest.mark.invariant("I9")
def test_a_voted_slice_takes_no_new_try(ledger, log, stages):
    begun = start(ledger, SPEC, log, "a")
    voted_by_another(ledger, log, begun, stages)
    nothing = take_try(ledger, SPEC, begun.claim, 0)
    assert nothing.reason == NoTry.VOTED and "it has voted in try 1" in nothing.message


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
        cast_vote(ledger, SPEC, late.token, vote_of(SPEC, late, _nothing()))
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
def before_writers_are_read(ledger, do: Callable[[], object]) -> Iterator[None]:
    """Let something happen just before the first statement that looks at who has written."""
    is_done = []

    def before(conn, cursor, statement, *_):
        if "FROM ratchet.writers" in statement and not is_done:
            is_done.append(True)
            do()

    event.listen(ledger.engine, "before_cursor_execute", before)
    yield
    event.remove(ledger.engine, "before_cursor_execute", before)
    assert is_done


@each_end
def test_a_vote_whose_rows_are_discarded_while_it_looks_at_them_comes_too_late(ledger, log, stages, end):
    begun = start(ledger, SPEC, log, "a")
    late, there = a_try(ledger, begun), []
    vote = stages(late, attempt=99)
    with before_writers_are_read(ledger, lambda: there.extend(end(ledger, log, begun, stages))), pytest.raises(Fenced):
        cast_vote(ledger, SPEC, late.token, vote)
    is_whole(ledger, *there)


def test_a_vote_that_is_repeated_while_its_transaction_commits_was_cast_already(ledger, log, stages):
    begun = start(ledger, SPEC, log, "a")
    work = a_try(ledger, begun)
    vote = stages(work)
    cast_vote(ledger, SPEC, work.token, vote)
    with before_writers_are_read(ledger, lambda: finish(ledger, begun, stages)):
        assert cast_vote(ledger, SPEC, work.token, vote) == Cast(work.token, is_repeated=True)
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


@pytest.mark.invariant("I6", "I7")
def test_after_a_late_vote_of_an_old_epoch_the_new_one_commits_the_same_slices(ledger, log, stages):
    begun = start(ledger, SPEC, log, "a")
    late = a_try(ledger, begun)
    vote = stages(late, attempt=99)
    begun_anew(ledger, log, begun, stages)
    with pytest.raises(Fenced, match="of epoch 1: the transaction is OPEN in epoch 2"):
        cast_vote(ledger, SPEC, late.token, vote)
    again = start(ledger, SPEC, log, "b")
    assert (again.claim.epoch, again.claim.number, again.slices) == (2, 2, begun.slices)
    finish(ledger, again, stages)
    is_whole(ledger, again)


def test_a_try_that_is_stopped_before_its_last_word_holds_up_an_abort_for_its_idle_time_only(
    ledger, log, stages, monkeypatch
):
    monkeypatch.setattr("ratchet.ledger.connection.IDLE_SECONDS", 4)
    begun = start(ledger, SPEC, log, "a")
    late = a_try(ledger, begun)
    stopped, goes_on = threading.Event(), threading.Event()

    def stop(*of, **how):
        stopped.set()
        assert goes_on.wait(60)
        return whole(*of, **how)

    whole = fence.read_slice
    monkeypatch.setattr(fence, "read_slice", stop)
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
