"""detach and attach: a person lets a line go on without a destination, and brings that back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, func, update

from ratchet.destinations.port import Mark
from ratchet.errors import DestinationRefused, Fenced, IllegalMove, MarkMoved, StageMismatch
from ratchet.ledger import history, steps
from ratchet.ledger.channel import notify
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import DestinationRow, Line
from ratchet.ledger.schema import destinations
from ratchet.ledger.transactions import lock_pipeline, read_line, read_transaction
from ratchet.ledger.work import counted, utc
from ratchet.protocol.follow import Open, follow, opened
from ratchet.protocol.sending import whole
from ratchet.spec.pipeline import Pipeline


class How(StrEnum):
    """How a destination comes back."""

    ON = "on"
    """It gets the steps that it lacks, one by one."""
    ANEW = "anew"
    """Its rows give way to all that the ledger shows."""
    FROM_HERE = "from here"
    """It keeps what it has, and gets what is committed from now on."""


@dataclass(frozen=True)
class Moved:
    """What has become of a destination: up to which step it had come, which the line had, and how many it lacks."""

    pipeline: str
    destination: str
    attached: bool
    step: int
    last: int
    said: str
    dry_run: bool = False


def lines_of(done: Moved) -> list[str]:
    """What a person reads of it."""
    said = [f"{done.pipeline}: {done.destination}: {done.said}"]
    return [*said, "this was a dry run: nothing was changed"] if done.dry_run else said


def detach(ledger: Ledger, pipeline: str, address: str, reason: str, who: str, *, dry_run: bool = False) -> Moved:
    """Let a line go on without a destination, which gets nothing more until it is attached.

    Who is about to send it a step may still do so. Raises IllegalMove where there is none, or it is detached already.
    """
    with ledger.begin(dry_run=dry_run) as conn:
        line, of = _locked(conn, pipeline, address)
        if not of.is_attached:
            raise IllegalMove(
                f"{pipeline}: {address} was detached at {utc(of.detached_at)} by {of.detached_by}: {of.detached_why}"
            )
        _set(conn, of, detached_at=func.clock_timestamp(), detached_by=who, detached_why=reason)
        _record(conn, line, of, who, "detach", reason)
        last = line.step if line else of.step
        lacks = f"it lacks {counted(last - of.step, 'step')}" if last > of.step else "it lacks nothing"
        return Moved(
            pipeline,
            address,
            False,
            of.step,
            last,
            f"is detached at step {of.step}; {lacks}; `ratchet attach` brings it back",
            dry_run,
        )


def attach(
    ledger: Ledger,
    spec: Pipeline,
    address: str,
    how: How,
    reason: str,
    who: str,
    opens: Open,
    say: Callable[[str], None] = lambda _: None,
    *,
    dry_run: bool = False,
) -> Moved:
    """Bring a destination back, also one that is attached and whose mark somebody has moved.

    ON needs a mark that is a step of this ledger; the steps behind it are sent as the ledger has them now. ANEW and
    FROM_HERE take whatever mark there is, compare it in the change that replaces it, and are tried again where
    something is committed meanwhile. Raises IllegalMove, also where somebody else has detached it meanwhile, MarkMoved,
    and what destinations raise.
    """
    with ledger.begin() as conn:
        known = _known(conn, spec.name, address)
    while True:
        with ledger.begin() as conn:
            of = _known(conn, spec.name, address)
        # The mark before what the ledger shows, and that in one snapshot with its last step: else rows of a later step
        # could pass for those of an earlier one.
        with opened(spec, opens, of) as (sink, _, outside):
            at = outside.mark()
            with ledger.snapshot() as conn:
                line = read_line(conn, spec.name)
                last = line.step if line else 0
                step = steps.step_of(conn, spec.name, last)
                if how is How.ON:
                    to, since = _place_of(conn, of, at), of.since
                    if not steps.are_there(conn, spec.name, to.step, last):
                        raise MarkMoved(
                            f"{spec.name}: {address} has step {to.step} of {last}, and some of the others are pruned; "
                            "`ratchet attach --anew` makes it anew, `--from-here` leaves what it has"
                        )
                else:
                    since = line.head if line else 0
                    # Where no step was decided yet, its start has a token of its own.
                    to = Mark(last, step.token if step else steps.new_token())
                    content = whole(conn, sink, line.head if line else 0) if how is How.ANEW else None
                    if not dry_run and not outside.restart(at, to, content):
                        say(f"{address}: its mark has moved meanwhile; once more")
                        continue
        with ledger.begin(dry_run=dry_run) as conn:
            now, of = _locked(conn, spec.name, address)
            if of.detached_at != known.detached_at:
                raise IllegalMove(
                    f"{spec.name}: {address} was {'attached' if of.is_attached else 'detached'} by somebody else "
                    "meanwhile; see `ratchet status`, and say again what is to be"
                )
            if how is not How.ON and (now.step if now else 0) != last:
                say(f"{address}: something was committed meanwhile; once more")
                continue
            back = {"detached_at": None, "detached_by": None, "detached_why": None}
            reached = {"step": to.step, "token": to.token, "started": at is not None or how is not How.ON}
            _set(conn, of, **back, **reached, since=since, reached_at=func.clock_timestamp())
            _record(conn, now, of, who, "attach", f"{how}: {reason}")
        try:
            sent = [] if dry_run else follow(ledger, spec, opens)
        except (StageMismatch, DestinationRefused, MarkMoved, Fenced) as error:
            with ledger.begin() as conn:
                now, of = _locked(conn, spec.name, address)
                has_all = of.step >= (now.step if now else 0)
                if not has_all:
                    # Else the line would wait for what does not come.
                    why = f"it could not be brought on: {error}"
                    _set(conn, of, detached_at=func.clock_timestamp(), detached_by=who, detached_why=why)
                    _record(conn, now, of, who, "detach", why)
            if not has_all:
                raise
            # After a restore each of several has to be attached, and the first of them is not what has failed.
            sent = [f"another one fails: {error}"]
        lacks = last - to.step
        said = [f"is attached at step {to.step}, {how}", *([f"lacks {counted(lacks, 'step')}"] if lacks else []), *sent]
        return Moved(spec.name, address, True, to.step, last, "; ".join(said), dry_run)


def _place_of(conn: Connection, of: DestinationRow, at: Mark | None) -> Mark:
    """Where a destination goes on by its mark; MarkMoved where that is none of this ledger's."""
    if at is None and not of.started:
        return Mark(of.step, of.token)
    if at is not None:
        step = steps.step_of(conn, of.pipeline, at.step)
        if at == Mark(of.step, of.token) or (step is not None and step.token == at.token):
            return at
    raise MarkMoved(
        f"{of.pipeline}: {of.destination}: its mark is {at or 'gone'}, which is no step of this ledger, so nobody "
        "knows which rows it has; `ratchet attach --anew` makes it anew, `--from-here` leaves what it has"
    )


def _known(conn: Connection, pipeline: str, address: str, *, lock: bool = False) -> DestinationRow:
    of = steps.destination(conn, pipeline, address, lock=lock)
    if of is None:
        known = ", ".join(each.destination for each in steps.destinations_of(conn, pipeline))
        raise IllegalMove(f"{pipeline} has no destination {address!r}; it has {known or 'none'}")
    return of


def _locked(conn: Connection, pipeline: str, address: str) -> tuple[Line | None, DestinationRow]:
    line = lock_pipeline(conn, pipeline)
    return line, _known(conn, pipeline, address, lock=True)


def _set(conn: Connection, of: DestinationRow, **values: object) -> None:
    mine = (destinations.c.pipeline == of.pipeline, destinations.c.destination == of.destination)
    conn.execute(update(destinations).where(*mine).values(values))


def _record(conn: Connection, line: Line | None, of: DestinationRow, who: str, move: str, why: str) -> None:
    """Write it into the history, which is one of transactions: into that of the last; whoever waits is told."""
    if line is None or not line.last_txid:
        return
    row = read_transaction(conn, line.pipeline, line.last_txid, lock=True)
    detail = {"why": why, "destination": of.destination, "step": of.step, "of": line.step}
    history.record(conn, row, who=who, move=move, detail=detail)
    notify(conn, line.pipeline)
