"""Releases: dead letters of committed transactions are processed once more, and their rows join their transactions."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import select

from ratchet import Accumulate, Upsert
from ratchet.errors import NotRevisable, Refused, TopicChanged, UnknownTopic
from ratchet.ledger.schema import events, replays, transactions
from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.operate import replay
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun, Skip, Skipped
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import NEWEST, Made

from .releasing import OTHER, SPEC, Line, bad, copy_of_three, first, good, letters, released, second
from .staging import always_active, contents, do, expire


@pytest.fixture
def line(databases, log):
    with copy_of_three(databases, log) as line:
        yield line


@pytest.mark.invariant("I1")
@pytest.mark.invariant("I3")
def test_what_a_release_takes_joins_its_transaction_in_every_sink_and_what_fails_again_stays(line):
    asked = line.ask()
    assert asked.letters == {txid: len(letters(line, txid)) for txid in (1, 2, 3)} and asked.waiting == 3
    for txid in (1, 2, 3):
        begun = line.one(second)
        assert (begun.how, begun.claim.txid, begun.claim.revision) == ("replayed", txid, 1)
        line.shows(txid, released)
        line.is_whole()
    assert isinstance(line.begin(), Skipped)
    # What has failed again may be released again, by the error that it has now.
    with pytest.raises(NotRevisable, match="no transaction from 1 to 3 has dead letters whose errors contain 'no num"):
        line.ask(errors="no number")
    done = line.release(partial(good, "third"), errors="still")
    assert [b.claim.revision for b in done] == [2, 2]
    for txid in (1, 2, 3):
        line.shows(txid, lambda p, o: found if DEAD_LETTERS not in (found := released(p, o)) else good("third", p, o))
    line.is_whole()
    assert contents(line.ledger, SPEC)[DEAD_LETTERS] == []


@pytest.mark.parametrize("becomes", ["deleted", "made again"])
def test_a_release_is_begun_without_the_topic_and_what_would_read_it_waits(line, log, becomes):
    replay.ask(line.ledger, SPEC, 1, 1, "again", "me")
    line.ask(2, 2)
    if becomes == "made again":
        log.topic_id = "second"

    def offsets(*asked):
        if becomes == "deleted":
            raise UnknownTopic
        return log.offsets(*asked)

    def next_(run, **how):
        return begin(line.ledger, SPEC, Run("dag", run), offsets, always_active, **how)

    said = UnknownTopic if becomes == "deleted" else TopicChanged
    foreseen = next_("d", dry_run=True)
    begun = next_("d")
    assert isinstance(begun, Begun) and isinstance(foreseen, Begun)
    for found in (foreseen, begun):
        assert (found.how, found.claim.txid, found.claim.revision) == ("replayed", 2, 1)
    do(line.ledger, SPEC, begun, second)
    commit(line.ledger, SPEC, begun.claim)
    line.shows(2, released)
    # The revision needs the topic's records: none is begun to fail, and it waits on.
    with pytest.raises(said):
        next_("e")
    with line.ledger.begin() as conn:
        assert conn.execute(select(replays.c.txid, replays.c.given_up)).all() == [(1, None)]


@pytest.mark.parametrize("becomes", ["deleted", "made again"])
def test_work_that_needs_the_topic_is_not_passed_for_a_release(line, log, becomes):
    """A run that was cleared has its own transaction to go on with, which other code has begun."""
    log.stable = {p: at + 5 for p, at in log.stable.items()}
    own = begin(line.ledger, SPEC, Run("dag", "own"), log.offsets, always_active)
    assert isinstance(own, Begun) and own.how == "allocated"
    line.ask(2, 2)
    if becomes == "made again":
        log.topic_id = "second"

    def offsets(*asked):
        if becomes == "deleted":
            raise UnknownTopic
        return log.offsets(*asked)

    with pytest.raises(UnknownTopic if becomes == "deleted" else TopicChanged):
        begin(line.ledger, OTHER, Run("dag", "own", 1), offsets, always_active)
    with line.ledger.begin() as conn:
        assert conn.execute(select(replays.c.txid)).scalars().all() == [2]


@pytest.mark.invariant("I1")
def test_only_dead_letters_whose_errors_have_the_text_are_released(line):
    (begun,) = line.release(second, 2, 2, "number")
    line.shows(2, lambda p, o: second(p, o) if o % 2 and DEAD_LETTERS in first(p, o) else first(p, o))
    line.is_whole()
    odd = [at for at in letters(line, 2) if at[1] % 2]
    with line.ledger.begin() as conn:
        row = conn.execute(select(transactions).where(transactions.c.revision == 1)).one()
        said = conn.execute(
            select(events.c.detail["why"].astext).where(events.c.move == "OPEN", events.c.revision == 1)
        )
        assert said.scalar_one() == f"releases {len(odd)} dead letters of transaction 2"
        asked = select(events.c.who, events.c.detail["why"].astext).where(events.c.move == "release")
        assert conn.execute(asked).one() == ("amy", "the code was corrected")
    assert (row.releases, row.records) == ("number", len(odd))
    # A slice without such a letter is not processed.
    assert all(
        any(r.partition == p and o in range(r.from_offset, r.until_offset) for r in part.ranges for p, o in odd)
        for part in begun.slices
    )


@pytest.mark.invariant("I9")
def test_a_release_that_is_asked_for_or_begun_twice_is_done_once(line):
    assert line.ask().waiting == 3
    again = line.ask()
    assert (again.letters, again.before, again.waiting) == ({}, (1, 2, 3), 3)
    begun = line.begin()
    repeated = begin(line.ledger, SPEC, line.run, line.log.offsets, always_active)
    assert repeated.claim == begun.claim and repeated.slices == begun.slices
    line.finish(begun, second)
    assert commit(line.ledger, SPEC, begun.claim).txids == ()
    line.shows(1, released)
    line.is_whole()
    assert begin(line.ledger, SPEC, line.run, line.log.offsets, always_active).reason is Skip.COMMITTED_BEFORE


@pytest.mark.invariant("I7")
def test_a_release_follows_a_revision_and_a_revision_a_release(line):
    revised = partial(good, "revised")
    line.release(second, 2, 2)
    line.shows(2, released)
    line.is_whole()
    # A revision replaces what was released as well.
    assert [r for part in line.clear("run_2", first).slices for r in part.ranges]
    line.shows(2, first)
    line.is_whole()
    line.release(partial(good, "third"), 2, 2)
    line.shows(2, lambda p, o: good("third", p, o) if DEAD_LETTERS in first(p, o) else first(p, o))
    line.is_whole()
    replay.ask(line.ledger, SPEC, 1, 2, "all of it", "amy")
    for txid in (1, 2):
        assert line.one(revised).claim.txid == txid
        line.shows(txid, revised)
    line.is_whole()


@pytest.mark.invariant("I7")
def test_a_release_that_is_not_committed_leaves_the_old_result_and_is_tried_again(line):
    line.ask(1, 1)
    begun = line.begin()
    do(line.ledger, SPEC, begun, second)
    line.is_whole()
    # Other code does not need Kafka to process once more what the ledger has.
    line.log.beginning = dict(line.log.stable)
    expire(line.ledger)
    adopted = begin(line.ledger, OTHER, Run("dag", "other"), line.log.offsets, lambda *_: False)
    assert (adopted.how, adopted.claim.revision, adopted.claim.epoch) == ("adopted", 1, begun.claim.epoch + 1)
    do(line.ledger, OTHER, adopted, second)
    commit(line.ledger, OTHER, adopted.claim)
    line.shows(1, released)
    line.is_whole()


@pytest.mark.invariant("I7")
def test_a_clear_supersedes_a_release_and_takes_the_place_of_one_that_waits(line):
    line.ask()
    begun = line.begin()
    do(line.ledger, SPEC, begun, second)
    # Another one is going on, so this one waits, in place of the release.
    waits = begin(line.ledger, SPEC, Run("dag", "run_2", 1), line.log.offsets, always_active)
    assert waits.reason is Skip.REPLAY_WAITS
    assert line.ask(2, 2).before == (2,)
    with line.ledger.begin() as conn:
        kinds = conn.execute(select(replays.c.txid, replays.c.releases).order_by(replays.c.txid)).all()
    assert list(map(tuple, kinds)) == [(2, None), (3, "")]
    revised = partial(good, "revised")
    line.clear("run_1", revised)
    line.shows(1, revised)
    line.is_whole()
    with pytest.raises(Refused, match="superseded by revision 2"):
        commit(line.ledger, SPEC, begun.claim)
    for txid, make in ((2, revised), (3, second)):
        assert line.one(make).claim.txid == txid
        line.shows(txid, {2: revised, 3: released}[txid])
    line.is_whole()


@pytest.mark.invariant("I9")
def test_what_covers_more_takes_the_place_of_what_waits(line):
    def waiting() -> str | None:
        with line.ledger.begin() as conn:
            return conn.execute(select(replays.c.releases)).scalar_one()

    assert line.ask(1, 1, "number").letters and waiting() == "number"
    assert line.ask(1, 1, "date").before == (1,) and waiting() == "number"
    assert line.ask(1, 1).letters and waiting() == ""
    assert line.ask(1, 1, "date").before == (1,) and waiting() == ""
    assert replay.ask(line.ledger, SPEC, 1, 1, "all of it", "amy").txids == (1,) and waiting() is None
    assert line.ask(1, 1).before == (1,) and waiting() is None
    replay.take_back(line.ledger, SPEC, 1, 1, "not now", "amy")
    assert line.ask(1, 1).letters and replay.take_back(line.ledger, SPEC, 1, 1, "not now", "amy").txids == (1,)


@pytest.mark.invariant("I3")
def test_a_released_row_is_behind_what_its_key_had_later(rich_ledger, log):
    """Of an Upsert the later record of a transaction wins, where it was there first as well; by order the greater."""
    spec = SPEC.model_copy(
        update={
            "sinks": [
                Upsert("rich_latest", key="k string", columns="a bigint"),
                Upsert("rich_newest", key="k string", columns="at bigint, a bigint", order="at"),
            ]
        }
    )

    def record(at: int, a: int) -> Made:
        return {
            "rich_latest": [{"k": "x", "a": a, "_deleted": False}],
            NEWEST: [{"k": "x", "at": at, "a": a, "_deleted": False}],
        }

    def before(partition: int, offset: int) -> Made:
        if partition:
            return {}
        return bad("no", partition, offset) if offset in (1, 5, 14) else record(-offset, 100 + offset)

    def after(partition: int, offset: int) -> Made:
        return record(50 if offset == 1 else -offset, offset)

    line = Line(rich_ledger, log, spec)
    line.commit(before)
    line.is_whole()
    for txid in line.places:
        if any((p, o) in ((0, 1), (0, 5), (0, 14)) for p, o in line.places[txid]):
            line.release(after, txid, txid)
            line.shows(txid, lambda p, o: after(p, o) if DEAD_LETTERS in before(p, o) else before(p, o))
            line.is_whole()
    shown = contents(rich_ledger, spec)
    assert shown["rich_latest"] == [("x", 117, 0, 17, 3)]
    assert [row[:3] for row in shown[NEWEST]] == [("x", 50, 1)]


@pytest.mark.invariant("I3")
def test_keyed_rows_are_added_to_though_their_columns_have_changed_and_a_new_sink_has_only_what_is_released(line):
    sinks = [
        *SPEC.sinks[:2],
        Upsert("rich_latest", key="k string", columns="a bigint, b string"),
        *SPEC.sinks[3:],
        Accumulate("later", key="k string", count="n"),
    ]
    line.spec = SPEC.model_copy(update={"sinks": sinks})
    migrate(line.ledger.url, [line.spec])
    line.fold.put(line.spec, 1, line.places[1], released)
    line.release(lambda p, o: {**second(p, o), "later": [{"k": "x", "n": 1}]} if o % 9 else second(p, o), 1, 1)
    shown, wanted = contents(line.ledger, line.spec), line.fold.contents(line.spec.sinks)
    number = sum(1 for _, o in letters(line, 1) if o % 9)
    assert shown.pop("later") == [("x", number, 1)]
    wanted.pop("later")
    assert shown == wanted and line.faults() == []


def test_a_release_in_a_ledger_of_many_slices_takes_part_in_what_status_and_history_say(line):
    line.ask(3, 3)
    begun = line.begin()
    assert (
        begun.how == "replayed"
        and "amy has asked for a release of dead letters: the code was corrected" in begun.message
    )
    do(line.ledger, SPEC, begun, second)
    done = commit(line.ledger, SPEC, begun.claim)
    assert done.message == "revision 1 of transaction 3: committed, with 4 released dead letters"
    with line.ledger.begin() as conn:
        row = conn.execute(select(transactions).where(transactions.c.revision == 1)).one()
    assert row.state == State.COMMITTED and row.applied[DEAD_LETTERS]["taken"]["rows"] == 4
