"""The operator's moves: each is tried first and says what it would do, then made with a reason and a confirmation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from ratchet.airflow.connections import kafka_properties
from ratchet.errors import IllegalMove, SettingsError
from ratchet.ledger.connection import Ledger
from ratchet.operate import actions, destinations, pauses, release, replaced, replay
from ratchet.operate.outcome import Outcome, lines_of
from ratchet.operate.reason import reason_given
from ratchet.page.access import MAY_MOVE, OWN_SITE, User
from ratchet.page.answers import answer, document
from ratchet.page.reads import known
from ratchet.source.kafka import Kafka
from ratchet.source.offsets import TopicOffsets
from ratchet.spec.pipeline import Pipeline
from ratchet.values.plain import plain

router = APIRouter(prefix="/api/pipelines/{dag_id}/moves", dependencies=[OWN_SITE, MAY_MOVE])
"""Each of these takes POST alone, and says with `dry_run` what it would do, and with what it is then confirmed."""


class Move(BaseModel):
    """A dry run, as long as nothing else is said; else with the reason, and with `confirm` as the dry run gave it."""

    model_config = ConfigDict(extra="forbid")
    dry_run: bool = True
    reason: str | None = None
    confirm: str | None = None


class OfHalt(Move):
    """Of the transaction at which the line is halted, or of another one."""

    txid: int | None = Field(None, ge=1)


class OfPause(Move):
    """Behind one transaction, or behind the last one that is begun."""

    txid: int | None = Field(None, ge=1)


class OfTransaction(Move):
    """Of one transaction."""

    txid: int = Field(ge=1)


class OfDestination(Move):
    """Of the destination with this address."""

    destination: str


class OfRange(Move):
    """Of the transactions `first` to `last`."""

    first: int = Field(ge=1)
    last: int = Field(ge=1)


class OfReplay(OfRange):
    """Of the transactions `first` to `last`; also of those that are voided, if it says so."""

    voided: bool = False


class OfRelease(Move):
    """Of the transactions `first` to `last`, of all where these are not given; of letters whose error has the text."""

    first: int | None = Field(None, ge=1)
    last: int | None = Field(None, ge=1)
    error: str = ""


@router.post("/retry")
def retry(request: Request, dag_id: str, user: User, asked: OfHalt) -> JSONResponse:
    """Lift a halt, or take up a revision that was given up."""

    tried: list[int] = []

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> Outcome:
        # The transaction that was looked at, whatever the line is halted at by then.
        done = actions.retry(ledger, spec, tried[0] if tried else asked.txid, who, reason, dry_run=dry_run)
        tried.extend(change.txid for change in done.changes)
        return done

    return _moved(request, dag_id, user.get_name(), asked, act)


@router.post("/abort")
def abort(request: Request, dag_id: str, user: User, asked: OfTransaction) -> JSONResponse:
    """Let what a transaction has staged count for nothing; the next run tries it again."""

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> Outcome:
        return actions.abort(ledger, spec, asked.txid, reason, who, dry_run=dry_run)

    return _moved(request, dag_id, user.get_name(), asked, act)


@router.post("/void")
def void(request: Request, dag_id: str, user: User, asked: OfTransaction) -> JSONResponse:
    """Decide that a transaction commits nothing."""

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> Outcome:
        return actions.void(ledger, spec, asked.txid, reason, who, dry_run=dry_run)

    return _moved(request, dag_id, user.get_name(), asked, act)


@router.post("/accept-loss")
def accept_loss(request: Request, dag_id: str, user: User, asked: Move) -> JSONResponse:
    """Go on without records that Kafka has deleted, or with what a topic has become."""

    answers: dict[str, TopicOffsets] = {}

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> Outcome:
        def offsets(*of: Any, **more: Any) -> TopicOffsets:
            # What is made goes by the answer that was tried: Kafka may have deleted more since.
            asked_for = repr((of, more))
            if asked_for not in answers:
                with Kafka(kafka_properties(spec.kafka)) as brokers:
                    answers[asked_for] = brokers.offsets(spec.source, *of, **more)
            return answers[asked_for]

        return actions.accept_loss(ledger, spec, offsets, reason, who, dry_run=dry_run)

    return _moved(request, dag_id, user.get_name(), asked, act)


@router.post("/replay")
def ask_for_replay(request: Request, dag_id: str, user: User, asked: OfReplay) -> JSONResponse:
    """Ask for revisions. The dry run also says what they would replace, and which command says how rows would differ.

    That needs Spark, or at least the transform, which this server does not run.
    """

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> replay.Asked:
        of = asked.first, asked.last
        return replay.ask(ledger, spec, *of, reason, who, voided=asked.voided, dry_run=dry_run)

    def besides(ledger: Ledger, spec: Pipeline, tried: Done) -> list[str]:
        assert isinstance(tried, replay.Asked), "it is what `act` returns"
        found = replaced.replaced(ledger, spec.name, (*tried.txids, *tried.before))
        return replaced.lines_of(found, spec, asked.first, asked.last, voided=asked.voided)

    return _moved(request, dag_id, user.get_name(), asked, act, besides)


@router.post("/cancel-replay")
def cancel_replay(request: Request, dag_id: str, user: User, asked: OfRange) -> JSONResponse:
    """Take back revisions that are asked for and not begun."""

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> replay.Asked:
        return replay.take_back(ledger, spec, asked.first, asked.last, reason, who, dry_run=dry_run)

    return _moved(request, dag_id, user.get_name(), asked, act)


@router.post("/release")
def ask_for_release(request: Request, dag_id: str, user: User, asked: OfRelease) -> JSONResponse:
    """Ask for releases of dead letters; how many would fail again says `ratchet release --dry-run`."""

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> release.Released:
        return release.ask(ledger, spec, asked.first, asked.last, asked.error, reason, who, dry_run=dry_run)

    return _moved(request, dag_id, user.get_name(), asked, act)


@router.post("/pause-at")
def pause_at(request: Request, dag_id: str, user: User, asked: OfPause) -> JSONResponse:
    """Stop the line behind a transaction."""

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> Outcome:
        return pauses.pause_at(ledger, spec, asked.txid, reason, who, dry_run=dry_run)

    return _moved(request, dag_id, user.get_name(), asked, act)


@router.post("/resume")
def resume(request: Request, dag_id: str, user: User, asked: Move) -> JSONResponse:
    """Let a paused line go on."""

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> Outcome:
        return pauses.resume(ledger, spec, reason, who, dry_run=dry_run)

    return _moved(request, dag_id, user.get_name(), asked, act)


@router.post("/detach")
def detach(request: Request, dag_id: str, user: User, asked: OfDestination) -> JSONResponse:
    """Let the line go on without a destination; it is brought back by `ratchet attach`, as that may take long."""

    def act(ledger: Ledger, spec: Pipeline, reason: str, who: str, dry_run: bool) -> destinations.Moved:
        return destinations.detach(ledger, spec.name, asked.destination, reason, who, dry_run=dry_run)

    return _moved(request, dag_id, user.get_name(), asked, act)


Done = Outcome | replay.Asked | release.Released | destinations.Moved
Act = Callable[[Ledger, Pipeline, str, str, bool], Done]
"""Makes a move of a ledger and a pipeline, with a reason, as somebody, or tries it."""
Besides = Callable[[Ledger, Pipeline, Done], list[str]]
"""Says what else a person should read before a move that was tried is made."""


def _moved(
    request: Request, dag_id: str, who: str, asked: Move, act: Act, besides: Besides = lambda *_: []
) -> JSONResponse:
    """Try the move; and make it, where what it would do is what the person has seen."""
    match asked:
        case OfRange(first=int(first), last=int(last)) | OfRelease(first=int(first), last=int(last)) if last < first:
            raise SettingsError(f"last {last} is before first {first}")
        case _:
            pass
    pipelines = known(request)
    spec = pipelines.spec(dag_id)
    ledger = pipelines.ledger(spec, waits=True)
    reason = reason_given(asked.reason or "") if not asked.dry_run else asked.reason or "dry run"
    tried = act(ledger, spec, reason, who, True)
    confirm = _digest(asked, tried)
    if asked.dry_run:
        return _answer(tried, confirm, besides(ledger, spec, tried))
    if asked.confirm != confirm:
        raise IllegalMove(
            f"{spec.name}: what this move would do is not what was confirmed; nothing was changed; look at what it "
            "would do now, and confirm that"
        )
    return _answer(act(ledger, spec, reason, who, False), None)


def _answer(done: Done, confirm: str | None, besides: Sequence[str] = ()) -> JSONResponse:
    return answer({**document(done), "said": [*besides, *_said(done)], "confirm": confirm})


def _said(done: Done) -> list[str]:
    match done:
        case Outcome():
            return lines_of(done)
        case replay.Asked():
            return replay.lines_of(done)
        case release.Released():
            return release.lines_of(done)
        case destinations.Moved():
            return destinations.lines_of(done)


def _digest(asked: Move, tried: Done) -> str:
    """What a person confirms: the arguments and what they change; not where the head is, which moves by itself."""
    match tried:
        case Outcome():
            changes = [document(replace(change, reason=None)) for change in tried.changes]
            # Behind which transaction a line stops that is to stop as soon as it can moves by itself, too.
            does: list[object] = [
                tried.move,
                changes,
                *(asdict(of) if of else None for of in (tried.opened, tried.lifted)),
            ]
            does = [*does, tried.accepted]
        case replay.Asked():
            does = [tried.is_taken_back, tried.txids, tried.before, tried.left_out, tried.code]
        case release.Released():
            does = [sorted(tried.letters.items()), tried.before, tried.left_out, tried.code]
        case destinations.Moved():
            does = [tried.destination, tried.attached]
    of = asked.model_dump(exclude={"dry_run", "reason", "confirm"})
    return sha256(json.dumps([tried.pipeline, of, plain(does)], sort_keys=True).encode()).hexdigest()[:16]
