"""What a person's move has done: a value for programs and pages, and the lines that people read of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ratchet.ledger.rows import Pause
from ratchet.ledger.states import State
from ratchet.ledger.topics import LineTopic
from ratchet.ledger.work import OffsetRange, counted, name_of, utc
from ratchet.protocol.pause import behind_of, why_paused
from ratchet.protocol.sources import Cause


class Move(StrEnum):
    """The moves that a person makes; the command's names."""

    RETRY = "retry"
    ABORT = "abort"
    VOID = "void"
    ACCEPT_LOSS = "accept-loss"
    REPARTITIONED = "repartitioned"
    PAUSE_AT = "pause-at"
    RESUME = "resume"


@dataclass(frozen=True)
class Change:
    """What became of one transaction or revision, or of one of its slices.

    `from_state` is None for a transaction that the move has made, and equals `to_state` where only its slices, or its
    right to be tried, have changed. `ranges` are those that are given up, or left to the next source.
    """

    txid: int
    revision: int
    slice: int | None
    from_state: State | None
    to_state: State
    ranges: tuple[OffsetRange, ...]
    reason: str | None

    def __str__(self) -> str:
        return name_of(self.txid, self.revision)


@dataclass(frozen=True)
class Start:
    """Where a partition goes on in a new source, and up to where the source before was planned."""

    topic: str
    partition: int
    offset: int
    planned_until: int


@dataclass(frozen=True)
class Opened:
    """The source that a line goes on with: at once, or where keys have moved when the one before is planned to its end.

    `starts` are the partitions that do not go on where plans had ended; where keys have moved, all of them.
    `made_again` are those of its topics that have other ids than before. `passed_over` is the source that waited
    to begin, and never will.
    """

    source: int
    topics: tuple[LineTopic, ...]
    made_again: tuple[str, ...]
    cause: Cause
    starts: tuple[Start, ...]
    passed_over: int | None = None


@dataclass(frozen=True)
class Left:
    """A topic of which nothing more is planned: {Kafka's partition: up to where it was planned}."""

    topic: str
    planned: Mapping[int, int]


@dataclass(frozen=True)
class Outcome:
    """What a move has done or, when `dry_run`, would do.

    `head` is where the head stands after it. `committed` are the txids that it committed on the way; `failed` is the
    one at which that ended because it cannot be applied, and `failed_why` says why. `opened` is the source that the
    move has made, `left` are the topics that the line leaves. `accepted` says what else is accepted as lost. `pause`
    is the one at which the line stops after the move, `lifted` the one that the move has lifted or moved.
    """

    move: Move
    pipeline: str
    changes: tuple[Change, ...]
    head: int
    committed: tuple[int, ...] = ()
    failed: int | None = None
    failed_why: str | None = None
    opened: Opened | None = None
    pause: Pause | None = None
    lifted: Pause | None = None
    left: tuple[Left, ...] = ()
    accepted: str | None = None
    dry_run: bool = False


def lines_of(outcome: Outcome) -> list[str]:
    """What a person reads of it."""
    said = [line for change in outcome.changes for line in _change(outcome, change)]
    said += left_lines(outcome.pipeline, outcome.left)
    said += opened_lines(outcome.pipeline, outcome.opened) if outcome.opened else []
    said += [f"{outcome.pipeline}: {outcome.accepted}"] if outcome.accepted else []
    said += _pause(outcome) if outcome.move in (Move.PAUSE_AT, Move.RESUME) else []
    if outcome.move in _MOVE_THE_HEAD and not (outcome.changes and all(map(_is_done_before, outcome.changes))):
        said.append(_head(outcome))
    return [*said, "this was a dry run: nothing was changed"] if outcome.dry_run else said


def losses_of(pipeline: str, change: Change) -> list[str]:
    """A line for each range that is accepted as lost."""
    where = f"{change} is VOIDED" if change.slice is None else f"{pipeline}: {change}, slice {change.slice}"
    return [f"{where}: {r}, {len(r):,} offsets, are accepted as lost" for r in change.ranges]


def left_of(pipeline: str, change: Change) -> list[str]:
    """A line for each range that a slice leaves to the next source."""
    return [f"{pipeline}: {change}, slice {change.slice}, leaves {r} to the next source" for r in change.ranges]


def left_lines(pipeline: str, left: Iterable[Left]) -> list[str]:
    """A line for each topic that a line leaves."""
    lines: list[str] = []
    for of in left:
        ends = ", ".join(f"{of.topic}-{partition} at {at}" for partition, at in sorted(of.planned.items()))
        said = f"topic {of.topic} is left: nothing more of it is planned, what was committed stays"
        lines.append(f"{pipeline}: {said}; its plans end there: {ends}")
    return lines


def opened_lines(pipeline: str, opened: Opened) -> list[str]:
    """What has become of the source, and where partitions go on."""
    number = opened.source
    stays = f"source {number} begins; what was committed of the one before stays"
    again = [
        f"topic {each.name} was made again, with id {each.topic_id}"
        for each in opened.topics
        if each.name in opened.made_again
    ]
    said = {
        Cause.MADE_AGAIN: f"{'; '.join(again)}: {stays}",
        Cause.CUT: f"a log was cut: {stays}",
        Cause.REPARTITIONED: f"keys are in other partitions from the offsets below on: source {number} begins there, "
        "when all that is before them is planned; of a key in both, its record in the later source is the last",
    }
    lines = [f"{pipeline}: {said[opened.cause]}"]
    if opened.passed_over:
        again = f"; `ratchet repartitioned {pipeline} --reason …` says anew where keys have moved"
        # In a topic that was made again keys are where they are.
        again = again if opened.cause == Cause.CUT else ""
        lines.append(f"{pipeline}: source {opened.passed_over}, which waited, never begins{again}")
    for at in opened.starts:
        where = f"{at.topic}-{at.partition}"
        lines.append(f"{pipeline}: {where} goes on at offset {at.offset}; it was planned up to {at.planned_until}")
    return lines


_MOVE_THE_HEAD = (Move.VOID, Move.ACCEPT_LOSS, Move.PAUSE_AT, Move.RESUME)


def _pause(outcome: Outcome) -> list[str]:
    """What has become of the pause; a dry run's is nobody's, and since never."""
    name, pause, dry = outcome.pipeline, outcome.pause, outcome.dry_run
    if pause is None:
        said = [f"{name} would go on" if dry else f"{name} goes on"]
    elif dry:
        resumes = f"`ratchet resume {name} --reason …` would let it go on"
        said = [f"{name} would be paused {behind_of(pause)}: nothing later is begun or committed; {resumes}"]
    else:
        said = [why_paused(name, pause)]
    if outcome.lifted:
        before, is_ = outcome.lifted, "is" if dry else "was"
        said.append(f"it {is_} paused {behind_of(before)} by {before.who} since {utc(before.at)}: {before.reason}")
    return said


def _change(outcome: Outcome, change: Change) -> list[str]:
    named = f"{outcome.pipeline}: {change}"
    is_beyond = outcome.pause is not None and not change.revision and change.txid > outcome.pause.txid
    then = (
        f"after `ratchet resume {outcome.pipeline}` the next run of any kind"
        if is_beyond
        else "the next run of any kind"
    )
    match outcome.move:
        case Move.RETRY:
            return [f"{named} is {change.to_state} and may be tried again; {then} goes on with it"]
        case Move.ABORT if change.revision:
            return [f"{named} is ABORTED; the old result stays"]
        case Move.ABORT:
            return [f"{named} is ABORTED; {then} tries it again in a new epoch"]
        case Move.VOID if _is_done_before(change):
            return [f"{change} is VOIDED already: {change.reason}"]
        case Move.VOID:
            # Not each offset is a record's: some are those of Kafka's own marks.
            lost = f"{counted(sum(map(len, change.ranges)), 'record')} at most"
            return [f"{change} is VOIDED, gives up {lost}, and commits nothing of {', '.join(map(str, change.ranges))}"]
        case Move.ACCEPT_LOSS:
            return losses_of(outcome.pipeline, change)
        case Move.REPARTITIONED:
            return left_of(outcome.pipeline, change)
        case Move.PAUSE_AT | Move.RESUME:
            return []


def _is_done_before(change: Change) -> bool:
    return change.from_state == State.VOIDED


def _head(outcome: Outcome) -> str:
    done = f"; committed on the way: {', '.join(map(str, outcome.committed))}" if outcome.committed else ""
    why = f"; {outcome.failed} fails and is left to its own commit: {outcome.failed_why}" if outcome.failed else ""
    stops = ", where the line is paused" if outcome.pause and outcome.pause.txid == outcome.head else ""
    return f"the head is {outcome.head}{stops}{done}{why}"
