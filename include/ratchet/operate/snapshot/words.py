"""What a person reads of where a line stands: the text to each value and code of `status`."""

from __future__ import annotations

from collections.abc import Iterator

from ratchet.ledger.states import State
from ratchet.ledger.work import counted, name_of, utc
from ratchet.operate.replay import spans
from ratchet.operate.snapshot.status import Reached, Standing, Status, Waits
from ratchet.operate.snapshot.timeline import Bar
from ratchet.operate.snapshot.transaction import Revision
from ratchet.protocol.halt import why_halted
from ratchet.protocol.pause import behind_of, why_paused
from ratchet.protocol.turns import behind


def lines_of(of: Status) -> list[str]:
    """A pipeline in lines: where the head is, what a person should know, and each unfinished transaction."""
    said = [f"{of.pipeline}: the head is {of.head} of {of.last_txid}, the last commit was {utc(of.committed_at)}"]
    if not of.has_tables:
        said.append(f"  its tables are missing: `ratchet migrate {of.pipeline}` makes them")
    halt = halt_of(of)
    said += [f"  HALTED: {halt}"] if halt else []
    pause = pause_of(of)
    said += [f"  PAUSED: {pause}"] if pause else []
    said += [f"  {line}" for line in (unattended_of(of),) if line]
    asked = asked_of(of)
    said += [f"  {asked}"] if asked else []
    said += [f"  {line}" for line in (*notices_of(of), next_source_of(of)) if line]
    said += [f"  {destination_of(of.pipeline, each)}" for each in of.destinations]
    for t in of.unfinished:
        named = name_of(t.txid, t.revision)
        said.append(f"  {named}: {t.state}, {t.voted} of {counted(t.slices, 'slice')} voted; {why_of(of, t)}")
    return said


def halt_of(of: Status) -> str | None:
    """Why a line is halted, and the ways out."""
    return next((halt_at(t) for t in of.unfinished if t.txid == of.halt and not t.revision), None)


def halt_at(row: Standing) -> str | None:
    """Why a line is halted at this transaction, and the ways out; None where it is not."""
    return why_halted(row) if row.waits == Waits.PERSON else None


def pause_of(of: Status) -> str | None:
    """Where a person has paused a line, why, and how it goes on."""
    return why_paused(of.pipeline, of.pause) if of.pause else None


def asked_of(of: Status) -> str | None:
    """How many replays and releases are asked for and wait for a run."""
    kinds = ((of.replays - of.releases, "replay"), (of.releases, "release"))
    said = " and ".join(counted(number, kind) for number, kind in kinds if number)
    if not said:
        return None
    return f"{said} {'is asked for and waits' if of.replays == 1 else 'are asked for and wait'} for a run"


def what_of(of: Revision | Bar) -> str:
    """What a revision is of its transaction."""
    if not of.revision:
        return "the first result"
    if of.releases is None:
        return "replay"
    which = f" whose errors contain {of.releases!r}" if of.releases else ""
    some = "" if of.records is None else f"{of.records:,} of "
    return f"release of {some}{counted(of.letters or 0, 'dead letter')}{which}"


def unattended_of(of: Status) -> str | None:
    """Since when the maintenance was not here."""
    if of.unattended is None:
        return None
    last = f"maintenance was here last at {utc(of.maintained_at)}" if of.maintained_at else "maintenance was never here"
    return f"{last}; is its DAG paused? without it lost work waits for the next run"


def next_source_of(of: Status) -> str | None:
    """What has to be planned before keys in other partitions are."""
    waits = of.next_source
    if waits is None:
        return None
    left = [f"{part.topic}-{part.partition} from {part.from_offset} to {part.until_offset}" for part in waits.left]
    begins = f"source {waits.source} begins when source {waits.present} is planned to its end"
    return f"{begins}: {', '.join(left) or 'it is'}"


def destination_of(pipeline: str, of: Reached) -> str:
    """How far a destination has come, and what a person can do about it."""
    if of.detached_at is not None:
        lacks = f", and lacks {counted(of.last - of.step, 'step')}" if of.last > of.step else ""
        return (
            f"{of.destination}, of {of.sink}: DETACHED since {utc(of.detached_at)} by {of.detached_by}: "
            f"{of.detached_why}; it has step {of.step}{lacks}; `ratchet attach {pipeline} {of.destination}` brings it "
            "back"
        )
    if of.last > of.step:
        return (
            f"{of.destination}, of {of.sink}: BEHIND, at step {of.step} of {of.last}, since {utc(of.waits_since)}; "
            "nothing more is committed until it has the rest"
        )
    return f"{of.destination}, of {of.sink}: has all, step {of.step}"


def notices_of(of: Status) -> Iterator[str]:
    """Of revisions that were asked for: which were given up, and which were done with other code."""
    for asked in of.given_up:
        what = f"the revision of transaction {asked.txid} that {asked.who} has asked for is given up: {asked.given_up}"
        yield f"{what}; `ratchet replay {of.pipeline} --from {asked.txid} --cancel --reason …` forgets it"
    done: dict[tuple[str | None, str], list[int]] = {}
    for row in of.otherwise:
        done.setdefault((row.asked_code, row.code), []).append(row.txid)
    for (asked_code, code), txids in done.items():
        what = f"the revision of {spans(txids)} was asked for with code {asked_code} and done with code {code}"
        yield f"{what}; where that was the older one, ask for it again"


def why_of(of: Status, row: Standing) -> str:
    """What has to happen next to an unfinished transaction, and who does it."""
    if row.claim_ended:
        when = f"after `ratchet resume {of.pipeline}` " if of.is_paused_before(row) else ""
        by = f"its run {row.run_id} has ended; {when}the next run of any kind adopts it"
    else:
        by = f"run {row.run_id} works on it"
    match row.waits:
        case Waits.PERSON:
            return "it has failed, and halts the line until a person decides"
        case Waits.CLEAR:
            retry = f"`ratchet retry {row.pipeline} {row.txid}`"
            return f"given up: {row.reason}; the old result stays, and the line goes on; {retry} tries it once more"
        case Waits.VOTES:
            return f"{counted(row.slices - row.voted, 'slice has not voted', 'slices have not voted')}; {by}"
        case Waits.RETRY:
            return f"aborted: {row.reason}; {by}"
        case Waits.COMMIT:
            return f"prepared, and waits for no turn; {by}" if row.revision else f"prepared; it is its turn; {by}"
        case Waits.PAUSE:
            return f"prepared; the line is paused {behind_of(of.pause) if of.pause else 'before it'}; {by}"
        case Waits.TURN:
            first = next((t for t in of.unfinished if t.txid == row.before and not t.revision), None)
            # What is not among the unfinished ones, and has the head before it, is a void that the head passes next.
            waits = behind(first) if first else f"waits for {row.before}, which is {State.VOIDED}"
            return f"prepared; {waits}; {by}"
