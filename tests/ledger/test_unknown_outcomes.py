"""I12: the connection to PostgreSQL is lost before, in and after a COMMIT; the same call repeated resolves it.

Every call goes by way of a proxy that reads the messages; what prepares it goes straight to the ledger.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, text

from ratchet.errors import IllegalMove, LedgerUnreachable, OutcomeUnknown
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import events, runs, slices, stages
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run, SliceWork
from ratchet.operate.actions import void
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.leftovers import discard_finished
from ratchet.protocol.votes import cast_vote, take_try
from tests.until import until

from .proxy import Loss, Proxy, is_commit
from .staging import (
    SPEC,
    Log,
    always_active,
    appended,
    is_waiting,
    planned,
    rows_of,
    start,
    vote_of,
    write_all,
)

SMALL = SPEC.model_copy(update={"max_records": 4, "slice_records": 2})
"""Two slices of two records."""

Call = Callable[[Ledger], object]
Done = Callable[[object], None]


class Line:
    """The pipeline, and what has been begun of it."""

    def __init__(self, ledger: Ledger, proxy: Proxy):
        self.ledger, self.proxy = ledger, proxy
        self.log = Log(stable={0: 100_000, 1: 100_000})
        self.committed: list[Begun] = []
        self.runs = 0

    def through(self, call: Call) -> object:
        """Make a call by way of the proxy, with connections of its own."""
        with Ledger(self.proxy.url) as ledger:
            return call(ledger)

    def run(self) -> Run:
        self.runs += 1
        return Run("dag", f"r{self.runs}")

    def start(self, clear_number: int = 0) -> Begun:
        run_id = f"r{self.runs}" if clear_number else self.run().run_id
        return start(self.ledger, SMALL, self.log, run_id, clear_number)

    def stage(self, work: SliceWork):
        """Stage what a job would; its vote."""
        sinks = write_all(self.ledger, SMALL, work, rows_of(SMALL, work))
        return vote_of(SMALL, work, sinks)

    def prepare(self, begun: Begun) -> Begun:
        for part in begun.slices:
            work = take_try(self.ledger, SMALL, begun.claim, part.number)
            if isinstance(work, SliceWork):
                cast_vote(self.ledger, SMALL, work.token, self.stage(work))
        return begun

    def finish(self, *begun: Begun) -> None:
        """Prepare and commit; nothing where that is done."""
        for b in begun:
            self.prepare(b)
            assert isinstance(commit(self.ledger, SMALL, b.claim), Committed)
            self.committed.append(b)

    def state(self, begun: Begun):
        with self.ledger.begin() as conn:
            return read_transaction(conn, SMALL.name, begun.claim.txid, begun.claim.revision)

    def check(self) -> None:
        """The sinks hold each committed transaction once, the ledger agrees, and nothing else is left."""
        discard_finished(self.ledger, SMALL.name)
        assert appended(self.ledger) == planned(*self.committed)
        totals, latest = {}, {}
        for partition, offset, _, txid in planned(*self.committed):
            totals.setdefault(str(partition), []).append(offset)
            latest[f"{partition}-{offset % 5}"] = (offset, txid)
        with self.ledger.begin() as conn:
            found = conn.execute(text("select k, a_sum, a_min, a_max, n from totals")).all()
            assert sorted(found) == [(k, sum(o), min(o), max(o), len(o)) for k, o in sorted(totals.items())]
            found = conn.execute(text("select k, a, _txid from latest")).all()
            assert sorted(found) == [(k, *row) for k, row in sorted(latest.items())]
            assert conn.execute(select(func.count()).select_from(stages)).scalar_one() == 0
            ends = conn.execute(
                select(events.c.txid, events.c.revision).where(events.c.move.in_(("COMMITTED", "VOIDED")))
            )
            assert set(Counter(map(tuple, ends)).values()) == {1}
            bound = conn.execute(select(runs.c.run_id, runs.c.clear_number)).all()
            assert len(bound) == len(set(bound))
        assert [fault for check in verify(self.ledger, SMALL) for fault in check.faults] == []


@pytest.fixture
def line(ledger, ledger_url):
    with Proxy(ledger_url) as proxy:
        line = Line(ledger, proxy)
        # A pipeline's very first run makes more statements than any other.
        line.finish(line.start())
        yield line


# What is called. Each gives the call that is repeated to the letter, and what to do with its result.


def allocate(line: Line) -> tuple[Call, Done]:
    run = line.run()

    def done(begun: object) -> None:
        assert isinstance(begun, Begun) and begun.claim.number == 1
        line.finish(begun)

    return lambda ledger: begin(ledger, SMALL, run, line.log.offsets, always_active), done


def a_try(line: Line) -> tuple[Call, Done]:
    begun = line.start()

    def done(work: object) -> None:
        assert isinstance(work, SliceWork)
        cast_vote(line.ledger, SMALL, work.token, line.stage(work))
        line.finish(begun)

    return lambda ledger: take_try(ledger, SMALL, begun.claim, 0), done


def last_vote(line: Line) -> tuple[Call, Done]:
    begun = line.start()
    works = [take_try(line.ledger, SMALL, begun.claim, part.number) for part in begun.slices]
    votes = [line.stage(work) for work in works]
    cast_vote(line.ledger, SMALL, works[0].token, votes[0])

    def done(_: object) -> None:
        assert line.state(begun).state == State.PREPARED
        with line.ledger.begin() as conn:
            mine = (slices.c.txid == begun.claim.txid, slices.c.try_number == 1, slices.c.voted_at.is_not(None))
            assert conn.execute(select(func.count()).where(*mine)).scalar_one() == 2
        line.finish(begun)

    return lambda ledger: cast_vote(ledger, SMALL, works[1].token, votes[1]), done


def one_commit(line: Line) -> tuple[Call, Done]:
    begun = line.prepare(line.start())

    def done(said: object) -> None:
        assert isinstance(said, Committed) and line.state(begun).state == State.COMMITTED
        line.finish(begun)

    return lambda ledger: commit(ledger, SMALL, begun.claim), done


def group_commit(line: Line) -> tuple[Call, Done]:
    group = [line.start() for _ in range(3)]
    for begun in group:
        line.prepare(begun)

    def done(said: object) -> None:
        assert isinstance(said, Committed)
        assert [line.state(begun).state for begun in group] == [State.COMMITTED] * 3
        line.finish(*group)

    return lambda ledger: commit(ledger, SMALL, group[0].claim), done


def commit_of_a_revision(line: Line) -> tuple[Call, Done]:
    line.finish(line.start())
    revision = line.prepare(line.start(clear_number=1))
    assert revision.claim.revision == 1

    def done(said: object) -> None:
        assert isinstance(said, Committed) and line.state(revision).state == State.COMMITTED

    return lambda ledger: commit(ledger, SMALL, revision.claim), done


def a_settling(line: Line) -> tuple[Call, Done]:
    begun = line.start()
    run = Run("dag", f"r{line.runs}")

    def done(said: object) -> None:
        row = line.state(begun)
        assert (row.claim_ended, row.failures) == (True, 1)
        adopted = line.start()
        assert (adopted.how, adopted.claim.txid) == ("adopted", begun.claim.txid)
        line.finish(adopted)

    return lambda ledger: settle(ledger, SMALL, run, succeeded=False, reason="killed"), done


def a_void(line: Line) -> tuple[Call, Done]:
    begun = line.prepare(line.start())

    def call(ledger: Ledger) -> object:
        try:
            return void(ledger, SMALL, begun.claim.txid, "for the test", "me")
        except IllegalMove as error:
            # The person is told that it is done.
            assert f"transaction {begun.claim.txid} is VOIDED" in str(error)

    def done(_: object) -> None:
        assert line.state(begun).state == State.VOIDED

    return call, done


OPERATIONS = [allocate, a_try, last_vote, one_commit, group_commit, commit_of_a_revision, a_settling, a_void]
TIDY = [commit_of_a_revision, a_void]
"""Those that discard at their end what is left, in a database transaction of its own."""


def deciding(operation: Callable, commits: int) -> int:
    """How many of its COMMITs a call needs to have done what it was asked for; the rest anybody does."""
    if operation is a_void:
        # What was prepared is removed after it, and the head moves then.
        return 1
    return commits - (operation in TIDY)


def says_what_to_do(error: LedgerUnreachable, in_commit: bool) -> None:
    """Unknown is said of a loss in a COMMIT, and of no other."""
    assert isinstance(error, OutcomeUnknown) == in_commit, error
    if in_commit:
        assert "took effect is unknown" in str(error) and "call again" in str(error)
    else:
        assert "this step has changed nothing" in str(error) and "check that PostgreSQL runs" in str(error)


@pytest.mark.invariant("I12")
@pytest.mark.parametrize(
    "operation",
    [
        last_vote,
        one_commit,
        *(pytest.param(each, marks=pytest.mark.all) for each in (allocate, a_try, commit_of_a_revision)),
        *(pytest.param(each, marks=pytest.mark.all) for each in (a_settling, a_void)),
    ],
    ids=lambda o: o.__name__,
)
def test_a_call_that_loses_its_connection_at_any_statement_has_changed_nothing_since(line, operation):
    """At the first of each kind of statement that the call makes; COMMIT is the next test's."""
    call, done = operation(line)
    said = line.proxy.lose(Loss.BEFORE, lambda *_: False).seen
    done(line.through(call))
    firsts = sorted(said.index(statement) + 1 for statement in set(said) if not is_commit(statement))
    commits = [number for number, statement in enumerate(said, 1) if is_commit(statement)]
    decided = commits[deciding(operation, len(commits)) - 1] if operation in TIDY else len(said)
    told = 0
    for at in firsts:
        call, done = operation(line)
        plan = line.proxy.lose(Loss.BEFORE, lambda number, _, at=at: number == at)
        try:
            result = line.through(call)
        except LedgerUnreachable as error:
            says_what_to_do(error, in_commit=False)
            assert at <= decided, f"what was decided is denied for want of {said[at - 1]}"
            told += 1
            result = line.through(call)
        assert plan.reached.is_set()
        done(result)
    # Losing what ends a connection is nothing to tell of.
    assert told >= sum(at <= decided for at in firsts) - 3
    line.check()


LOSSES = [
    (Loss.BEFORE, 0),
    (Loss.UNANSWERED, 0),
    (Loss.UNANSWERED, 1),
    (Loss.UNANSWERED, 12),
    (Loss.SILENT_BEFORE, 0),
    (Loss.SILENT_AFTER, 0),
    (Loss.HELD, 0),
]
"""How a COMMIT is lost, and how much of its answer arrives: 12 bytes that it is done, 6 that the server is ready."""
OUTCOMES = [(Loss.BEFORE, 0), (Loss.UNANSWERED, 0), (Loss.HELD, 0)]
"""What PostgreSQL has done of a COMMIT that is lost: nothing, all, or nothing yet."""
WHOLE = [
    pytest.param(each, LOSSES, marks=pytest.mark.all) for each in OPERATIONS if each not in (last_vote, one_commit)
]
"""They take minutes, in test-all; how an answer fails to come is the same for every call."""


@pytest.mark.invariant("I12")
@pytest.mark.parametrize(
    ("operation", "losses"),
    [(last_vote, LOSSES), (one_commit, LOSSES), (group_commit, OUTCOMES), *WHOLE],
    ids=lambda given: given.__name__ if callable(given) else f"{len(given)} losses",
)
def test_whatever_is_lost_of_a_commit_its_outcome_is_unknown_and_the_same_call_resolves_it(line, operation, losses):
    call, done = operation(line)
    plan = line.proxy.lose(Loss.BEFORE, lambda *_: False)
    done(line.through(call))
    assert plan.commits
    waited = 0
    for number in range(1, deciding(operation, plan.commits) + 1):
        for how, answer_bytes in losses:
            call, done = operation(line)
            lost, error = lose_commit(line, call, number, how, answer_bytes)
            assert lost.reached.is_set() and error is not None, f"COMMIT {number}: {how}: the caller was told success"
            says_what_to_do(error, in_commit=True)
            if how is Loss.HELD:
                result, met = call_beside(line, call, lost)
                waited += met
            else:
                result = line.through(call)
            done(result)
    assert waited, "no repeat has met the lock of the call whose COMMIT was held up"
    line.check()


@pytest.mark.parametrize("operation", TIDY, ids=lambda o: o.__name__)
def test_a_loss_of_the_tidying_up_does_not_deny_what_was_done(line, operation):
    call, done = operation(line)
    plan = line.proxy.lose(Loss.BEFORE, lambda *_: False)
    done(line.through(call))
    for how, answer_bytes in LOSSES:
        call, done = operation(line)
        lost, error = lose_commit(line, call, plan.commits, how, answer_bytes)
        assert lost.reached.is_set() and error is None, f"{how}: the caller was told {error!r}"
        lost.go_on.set()
        done(line.through(call))
    line.check()


def lose_commit(line: Line, call: Call, number: int, how: Loss, answer_bytes: int):
    """Make the call with its COMMIT of this number lost; the error that the caller gets, if any."""
    plan = line.proxy.lose_commit(number, how, answer_bytes)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(line.through, call)
        if how in (Loss.SILENT_BEFORE, Loss.SILENT_AFTER):
            until("the call has come so far or is over", lambda: plan.reached.is_set() or calling.done())
            # Nothing has come back, so the caller must not believe anything yet.
            assert not calling.done()
            plan.go_on.set()
        return plan, calling.exception()


def call_beside(line: Line, call: Call, held) -> tuple[object, bool]:
    """The same call, while PostgreSQL has yet to get the first one's COMMIT, which arrives in the midst of it."""
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(line.through, call)
        until("the call is over or waits", lambda: again.done() or is_waiting(line.ledger))
        met = not again.done()
        held.go_on.set()
        return again.result(), met


def test_a_ledger_that_cannot_be_reached_says_that_nothing_was_changed(line):
    call, done = one_commit(line)
    line.proxy.refuse(True)
    with pytest.raises(LedgerUnreachable) as raised:
        line.through(call)
    says_what_to_do(raised.value, in_commit=False)
    line.proxy.refuse(False)
    done(line.through(call))
    line.check()


def test_a_committed_answer_that_arrived_whole_is_a_success(line):
    """The connection is lost right behind it."""
    call, done = last_vote(line)
    plan, error = lose_commit(line, call, 1, Loss.UNANSWERED, answer_bytes=18)
    assert plan.reached.is_set() and error is None
    done(None)
    line.check()
