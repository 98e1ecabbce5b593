"""The world of a schedule: Kafka's logs, Airflow's runs, the code of today, a clock; and the steps that tasks take."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ratchet.errors import DestinationUnreachable, EngineLost, LedgerUnreachable, RatchetError, Refused
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Claim, OffsetRange, Run, SliceToken
from ratchet.operate.actions import abort, accept_loss, retry, void
from ratchet.operate.outcome import Outcome, lines_of
from ratchet.operate.pauses import pause_at, resume
from ratchet.operate.release import Released
from ratchet.operate.release import ask as release
from ratchet.operate.replay import Asked, ask, take_back
from ratchet.protocol.begin import KafkaOffsets, begin
from ratchet.protocol.begun import Begun, Skipped
from ratchet.protocol.claims import Settled, claim_of, settle
from ratchet.protocol.commit import Committed, Waits, commit
from ratchet.protocol.failures import errors_recorded, last_error
from ratchet.protocol.leases import renew
from ratchet.protocol.votes import NothingToDo, take_try, vote_no
from ratchet.spec.pipeline import Pipeline
from tests.ledger.staging import records_of
from tests.proof.reference import PER_TOPIC
from tests.proof.simulate.code import VERSIONS, make_of, spec_of
from tests.proof.simulate.logs import Logs, of_line
from tests.proof.simulate.maintenance import maintain
from tests.proof.simulate.seen import Seen
from tests.proof.simulate.sending import opener
from tests.proof.simulate.shapes import LEASE_SECONDS, NAME
from tests.proof.simulate.work import failing, failure, latest_event, process

DAG = NAME
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_LOST = re.compile(r"the ledger at \S+ (does not answer|was lost in a commit): ")
"""What any try may say that was cut off from the ledger."""
_OTHER = re.compile(r"the code is \w+, the epoch began with \w+; nothing was changed$")
"""What a task says that runs in the midst of a deploy."""
_OVERTAKEN = re.compile("run r.+ (works on it|holds the transaction|has it) now|is not held any more")


@dataclass
class AirflowRun:
    """A DAG run, as Airflow has it."""

    run_id: str
    clear_number: int = 0
    is_active: bool = True
    begun: Begun | Skipped | None = None
    """What its begin has said, once it has."""
    done: set[int] = field(default_factory=set)
    """The slices whose tasks are green."""
    outcome: Committed | Waits | None = None
    """What its commit has said last."""
    has_failed: bool = False
    """Whether a task of its has failed for good."""
    txid: int | None = None
    """The transaction that its first begin was given."""

    @property
    def run(self) -> Run:
        return Run(DAG, self.run_id, self.clear_number)

    @property
    def slices(self) -> list[int]:
        """The slices that its begin has told Airflow of."""
        return [part.number for part in self.begun.slices] if isinstance(self.begun, Begun) else []

    def clear(self) -> AirflowRun:
        """All its tasks once more; the run as it was before, whose tasks may still come late."""
        before = replace(self)
        self.clear_number += 1
        self.begun, self.done, self.outcome = None, set(), None
        self.is_active, self.has_failed = True, False
        return before

    def fail(self, run: Run, error: RatchetError) -> None:
        """A task has ended so; where only the ledger did not answer, Airflow tries it again."""
        if self.run == run and not isinstance(error, LedgerUnreachable | DestinationUnreachable):
            self.has_failed = True


@dataclass(frozen=True)
class Step:
    """What an actor is given to do.

    When it says something that is no error, `then` is called with that; otherwise `failed` with the error. `unkept`
    and `untrue` give, in a line, what a reader sees that is not as it said, or as its error said.
    """

    doing: str
    job: Callable[[Ledger], Any]
    then: Callable[[Any], None] = lambda said: None
    unkept: Callable[[Any, Seen], str | None] = lambda said, seen: None
    untrue: Callable[[RatchetError, Seen], str | None] = lambda error, seen: None
    failed: Callable[[RatchetError], None] = lambda error: None


@dataclass
class World:
    """What lies outside the ledger."""

    shape: str
    logs: Logs
    size: str = "few"
    version: str = VERSIONS[0]
    spec_number: int = 0
    """Which of its shape's specs is deployed."""
    migrated: int = 0
    """To which of them the sinks' tables are migrated."""
    runs: list[AirflowRun] = field(default_factory=list)
    cleared: list[AirflowRun] = field(default_factory=list)
    """Runs as they were before they were cleared."""
    settled: set[tuple[str, int]] = field(default_factory=set)
    """The runs, by id and clear number, of which somebody has told the ledger how they ended."""

    @property
    def spec(self) -> Pipeline:
        spec = spec_of(self.shape, self.spec_number, self.version, self.size)
        return spec.model_copy(update={"source": self.logs.declared(spec.source)})

    @property
    def offsets(self) -> KafkaOffsets:
        """Asks Kafka as a process does that begins now."""
        return self.logs.asked_by(self.spec.source)

    def forget_transactions(self) -> None:
        """The ledger was restored: which transactions its runs had is not so any more."""
        for of in (*self.runs, *self.cleared):
            of.txid = None

    @property
    def code(self) -> str:
        """What is deployed, in a few words."""
        return f"{self.version}, spec {self.spec_number}" if self.spec_number or self.migrated else self.version

    def is_active(self, dag_id: str, run_id: str) -> bool:
        """What Airflow says of a run."""
        return any(run.is_active for run in self.runs if run.run_id == run_id)

    def clear(self, of: AirflowRun) -> Step:
        """A person clears a run, and its begin follows."""
        self.cleared.append(of.clear())
        return self.begin(of)

    def new_run(self) -> AirflowRun:
        self.runs.append(AirflowRun(f"r{len(self.runs) + 1}"))
        return self.runs[-1]

    # The tasks of a run, each as its operator does it, with the code of the moment at which it starts.

    def begin(self, of: AirflowRun) -> Step:
        run, spec, offsets = of.run, self.spec, self.offsets

        def then(said: Begun | Skipped) -> None:
            if of.run == run:
                of.begun = said
                of.is_active = isinstance(said, Begun)
                of.txid = of.txid or (said.claim.txid if of.is_active else None)

        def unkept(said: Begun | Skipped, seen: Seen) -> str | None:
            own = re.match(r"line: (?:revision \d+ of )?transaction (\d+) (?:is|was) ", said.message)
            given = said.claim.txid if isinstance(said, Begun) else int(own[1]) if own else of.txid
            if of.txid is not None and given != of.txid:
                return f"its own is transaction {of.txid}"
            if isinstance(said, Begun) and (said.claim.txid, said.claim.revision) not in seen.transactions:
                return f"{said.claim} is not in the ledger"
            if unfinished := re.search(r"(\d+) transactions? (?:is|are) unfinished, (\d+) to (\d+)", said.message):
                number, first, last = map(int, unfinished.groups())
                return None if number == last + 1 - first == spec.max_in_flight else "that is another number"
            return None

        def failed(error: RatchetError) -> None:
            of.fail(run, error)
            of.is_active = of.is_active and not of.has_failed

        def job(ledger: Ledger) -> Begun | Skipped:
            # The interval is another plan's.
            return begin(ledger, spec, run, offsets, self.is_active, interval_end=LONG_AGO)

        return Step(f"{run}: begin ({self.code})", job, then, unkept, failed=failed)

    def process(self, of: AirflowRun, number: int, attempts: int = 1) -> Step:
        """Take a try, stage, vote; with two attempts, Spark runs the task twice and hears of the second, as the ledger
        does of the vote.
        """
        run, spec, version, code = of.run, self.spec, self.version, self.code

        def then(said: SliceToken | str) -> None:
            if of.run == run:
                of.done.add(number)

        held: list[Claim] = []

        def job(ledger: Ledger) -> SliceToken | str:
            held.append(claim_of(ledger, run))
            work = take_try(ledger, spec, held[0], number)
            if isinstance(work, NothingToDo):
                return work.message
            records = self.logs.records_of([work]) if work.releases is None else records_of(ledger, work)
            make = of_line(make_of(spec, version), work.topics.names)
            with errors_recorded(ledger, work.token):
                process(ledger, spec, work, records, make, attempts)
            return work.token

        def unkept(said: SliceToken | str, seen: Seen) -> str | None:
            if isinstance(said, SliceToken):
                vote = seen.votes.get((said.txid, said.epoch, said.slice))
                return None if vote and vote[0] == said.try_number else f"the vote is {vote}, and not that of {said}"
            return None

        twice = ", twice in Spark" if attempts > 1 else ""
        doing = f"{run}: process[{number}] ({code}{twice})"
        return Step(doing, job, then, unkept, partial(_is_overtaken, held), partial(of.fail, run))

    def refuse(self, of: AirflowRun, number: int) -> Step:
        run, spec = of.run, self.spec

        def job(ledger: Ledger) -> str:
            work = take_try(ledger, spec, claim_of(ledger, run), number)
            if isinstance(work, NothingToDo):
                return work.message
            vote_no(ledger, work.token, "the transform refuses")
            raise Refused(f"{work.token}: voted no: the transform refuses")

        return Step(f"{run}: process[{number}] refuses", job, failed=partial(of.fail, run))

    def fail(self, of: AirflowRun, number: int) -> Step:
        """A job that comes to nothing; Airflow tries the task again."""
        run, spec = of.run, self.spec

        def job(ledger: Ledger) -> str:
            work = take_try(ledger, spec, claim_of(ledger, run), number)
            if isinstance(work, NothingToDo):
                return work.message
            why = failure(work.token.epoch, work.token.slice, work.token.try_number)
            with suppress(EngineLost), errors_recorded(ledger, work.token):
                raise EngineLost(why)
            with ledger.begin() as conn:
                row = read_transaction(conn, NAME, work.token.txid, work.token.revision, lock=True)
                is_latest = row.state == State.OPEN and latest_event(conn, work.token) == ("error", why)
                assert not is_latest or last_error(conn, row) == why, f"{why}, and nobody says so"
            return why

        return Step(f"{run}: process[{number}] fails", job)

    def commit(self, of: AirflowRun) -> Step:
        run, spec = of.run, self.spec

        held: list[Claim] = []

        def job(ledger: Ledger) -> tuple[Claim, Committed | Waits]:
            held.append(claim_of(ledger, run))
            return held[0], commit(ledger, spec, held[0], opener(ledger.url))

        def unkept(said: tuple[Claim, Committed | Waits], seen: Seen) -> str | None:
            claim, outcome = said
            row = seen.transactions[claim.txid, claim.revision]
            is_so = row.state in (State.COMMITTED, State.VOIDED) or isinstance(outcome, Waits)
            return None if is_so else f"{claim} is {row.state}"

        def then(said: tuple[Claim, Committed | Waits]) -> None:
            if of.run == run:
                of.outcome = said[1]

        return Step(f"{run}: commit", job, then, unkept, partial(_is_overtaken, held), partial(of.fail, run))

    def late(self, seen: Seen) -> list[Callable[[], Step]]:
        """The steps of runs whose claim is not the current one."""
        return [step for of in (*self.runs, *self.cleared) for step in self._late(of, seen)]

    def _late(self, of: AirflowRun, seen: Seen) -> list[Callable[[], Step]]:
        if not isinstance(of.begun, Begun):
            return []
        claim = of.begun.claim
        row = seen.transactions.get((claim.txid, claim.revision))
        if row is not None and row.claim == claim.number:
            return []
        steps = [partial(self.process, of, of.slices[-1]), partial(self.renew, of), partial(self.settle, of, False)]
        # What all slices have voted for, anybody may commit.
        return steps if row is not None and row.state == State.PREPARED else [*steps, partial(self.commit, of)]

    def renew(self, of: AirflowRun) -> Step:
        run, held = of.run, []

        def job(ledger: Ledger) -> None:
            held.append(claim_of(ledger, run))
            renew(ledger, held[0], LEASE_SECONDS)

        return Step(f"{run}: renews its lease", job, untrue=partial(_is_overtaken, held))

    def settle(self, of: AirflowRun, succeeded: bool) -> Step:
        run, spec = of.run, self.spec

        def then(said: Settled) -> None:
            if of.run == run:
                of.is_active = False

        def job(ledger: Ledger) -> Settled:
            claim = claim_of(ledger, run)
            with ledger.begin() as conn:
                row = read_transaction(conn, NAME, claim.txid, claim.revision, lock=True)
                why = last_error(conn, row)
                is_so = why is None or why in failing(conn, row) or _LOST.match(why) or _OTHER.match(why)
                assert is_so, f"{run}: {why} is not so any more"
            self.settled.add((run.run_id, run.clear_number))
            return settle(ledger, spec, run, succeeded, None if succeeded else why or "a task has failed")

        return Step(f"{run}: settle", job, then)

    # What runs beside.

    def maintain(self) -> Step:
        spec = self.spec
        return Step("maintenance", lambda ledger: maintain(ledger, spec, self.is_active))

    def operate(self, what: str, txid: int) -> Step:
        """A person's move."""
        spec = self.spec
        moves = {
            "retry": lambda ledger: retry(ledger, spec, txid, "a person"),
            "abort": lambda ledger: abort(ledger, spec, txid, "a person said so", "a person"),
            "void": lambda ledger: void(ledger, spec, txid, "a person said so", "a person"),
            "replay": lambda ledger: ask(ledger, spec, txid, txid, "a person said so", "a person", voided=True),
            "release": lambda ledger: release(ledger, spec, txid, txid, "", "a person said so", "a person"),
            "pause-at": lambda ledger: pause_at(ledger, spec, txid, "a person said so", "a person"),
            "resume": lambda ledger: resume(ledger, spec, "a person said so", "a person"),
            "take back": lambda ledger: take_back(ledger, spec, txid, txid, "a person said so", "a person"),
        }

        def unkept(outcome: Outcome | Asked | Released, seen: Seen) -> str | None:
            if not isinstance(outcome, Outcome):
                return None
            said = lines_of(outcome)
            taken = [OffsetRange(seen.names[of[0] // PER_TOPIC], *of) for of in sorted(seen.ranges[txid])]
            plan = ", ".join(map(str, taken))
            return f"the plan is {plan}" if "commits nothing of" in said[0] and not said[0].endswith(plan) else None

        return Step(f"a person: {what} {txid}", moves[what], unkept=unkept)

    def leave(self) -> Step:
        """A person accepts that topics of the line are in the spec no more."""
        spec, offsets = self.spec, self.offsets

        def job(ledger: Ledger) -> Outcome:
            return accept_loss(ledger, spec, offsets, "a person said so", "a person")

        return Step(f"a person: the line is of {spec.source.title} alone", job)


def _is_overtaken(held: list[Claim], error: RatchetError, seen: Seen) -> str | None:
    """Who is told that another has the transaction has it no more."""
    if not _OVERTAKEN.search(str(error)):
        return None
    row = seen.transactions[held[0].txid, held[0].revision]
    is_held = (row.epoch, row.claim, row.claim_ended) == (held[0].epoch, held[0].number, False)
    return f"{held[0]} is still its own" if is_held else None
