"""`ratchet release`: ask that dead letters be processed once more, or try what today's code makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from ratchet.errors import IllegalMove, NotRevisable, Refused, TransformError
from ratchet.ledger import letters
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line
from ratchet.ledger.transactions import lock_pipeline, read_line
from ratchet.ledger.work import SliceWork, counted
from ratchet.operate.replay import spans
from ratchet.protocol import replays
from ratchet.protocol.revise import check_release
from ratchet.protocol.votes import work_of
from ratchet.sinks import layout
from ratchet.spec.pipeline import Pipeline

STEP = 50
"""So many transactions are asked for under the commit lock at once."""

Failing = Callable[[Sequence[SliceWork]], Mapping[str, int]]
"""{error: number} of the dead letters of slices that today's code would give up again."""


@dataclass(frozen=True)
class Released:
    """Of which transactions dead letters are to be released; those that waited before, and those that are left out.

    `letters` counts the dead letters of each transaction that was asked for. `waiting` is how many revisions and
    releases wait now.
    """

    pipeline: str
    letters: Mapping[int, int]
    before: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...]
    waiting: int
    code: str
    """That of the process which has asked."""
    dry_run: bool = False


@dataclass(frozen=True)
class Trial:
    """What today's code makes of a transaction's dead letters: of so many, how many it would give up again, and why.

    `fails` says why there would be no result.
    """

    txid: int
    letters: int
    again: Mapping[str, int]
    """{error: number}."""
    fails: str | None = None

    @property
    def good(self) -> int:
        """How many would take effect."""
        return self.letters - sum(self.again.values())


def lines_of(done: Released) -> list[str]:
    """What a person reads of it."""
    said = left_out_lines(done.pipeline, done.left_out)
    if done.before:
        said.append(f"{done.pipeline}: {spans(done.before)}: a revision or a release was asked for before, and waits")
    if done.letters:
        of = f"{counted(sum(done.letters.values()), 'dead letter')} of {spans(done.letters)}"
        said.append(f"{done.pipeline}: a release of {of} is asked for, with code {done.code}")
    how = "runs do them one at a time, live transactions first; what is committed stays as it is until then"
    said.append(
        f"{done.pipeline}: {counted(done.waiting, 'revision or release waits', 'revisions and releases wait')}; {how}"
    )
    return [*said, "this was a dry run: nothing was changed"] if done.dry_run else said


def trial_lines(found: Trial) -> list[str]:
    """What a person reads of it."""
    where = f"transaction {found.txid}"
    if found.fails:
        return [f"{where}: a release would fail: {found.fails}"]
    said = f"{where}: of {counted(found.letters, 'dead letter')} {found.good:,} would take effect"
    return [
        said,
        *(
            f"    {counted(number, 'would be a dead letter', 'would be dead letters')} again: {error}"
            for error, number in found.again.items()
        ),
    ]


def left_out_lines(pipeline: str, left_out: Sequence[tuple[int, str]]) -> list[str]:
    """Which transactions are left out, a line for each reason."""
    reasons: dict[str, list[int]] = {}
    for txid, why in left_out:
        reasons.setdefault(why, []).append(txid)
    return [f"{pipeline}: {spans(txids)}: left out: {why}" for why, txids in reasons.items()]


def ask(
    ledger: Ledger,
    spec: Pipeline,
    first: int | None,
    last: int | None,
    errors: str,
    reason: str,
    who: str,
    *,
    dry_run: bool = False,
) -> Released:
    """Ask for a release of the dead letters of the transactions `first` to `last` whose errors contain a text.

    Runs begin them, one at a time. Raises NotRevisable, and asks for nothing, where no dead letter is left to be
    released.
    """
    released: dict[int, int] = {}
    before: list[int] = []
    left_out: list[tuple[int, str]] = []
    waiting = 0
    found = _with_letters(ledger, spec, first, last, errors)
    for part in (found[start : start + STEP] for start in range(0, len(found), STEP)):
        with ledger.begin(dry_run=dry_run) as conn:
            line = lock_pipeline(conn, spec.name)
            assert line is not None, "it has dead letters"
            wanted, refused = _releasable(conn, spec, line, part, errors)
            asked = replays.ask(conn, spec, wanted, who, reason, errors)
            waiting = replays.waiting(conn, spec.name)
        released |= {txid: wanted[txid] for txid in asked}
        before += [txid for txid in wanted if txid not in released]
        left_out += refused
    if not released and not before:
        raise NotRevisable("; ".join(left_out_lines(spec.name, left_out)))
    return Released(spec.name, released, tuple(before), tuple(left_out), waiting, spec.code_hash, dry_run)


def trials(
    ledger: Ledger, spec: Pipeline, failing: Failing, first: int | None, last: int | None, errors: str
) -> Iterator[Trial | tuple[int, str]]:
    """What today's code makes of the dead letters that a release would take, one transaction after the other.

    Nothing is written. Those that a release would leave out are given as (txid, why). Raises NotRevisable, as a release
    would, where no dead letter is there.
    """
    for txid in _with_letters(ledger, spec, first, last, errors):
        try:
            with ledger.snapshot() as conn:
                line = read_line(conn, spec.name)
                assert line is not None, "it has dead letters"
                applied, number = check_release(conn, spec, line, txid, errors)
                works = [replace(work, releases=errors) for work in work_of(conn, spec, applied)]
        except NotRevisable as error:
            yield txid, _why(spec, txid, error)
            continue
        try:
            found = Trial(txid, number, failing(works))
        except (Refused, TransformError) as error:
            found = Trial(txid, number, {}, str(error))
        yield found


def _with_letters(ledger: Ledger, spec: Pipeline, first: int | None, last: int | None, errors: str) -> list[int]:
    """The committed transactions of a range that have such dead letters, in order."""
    with ledger.begin() as conn:
        layout.probe(conn, spec)
        line = read_line(conn, spec.name)
        if line is None:
            raise IllegalMove(f"the ledger has nothing of pipeline {spec.name} yet")
        until = line.head if last is None else min(last, line.head)
        found = letters.txids(conn, spec.name, first or 1, until, errors)
    if not found:
        of_which = f" whose errors contain {errors!r}" if errors else ""
        raise NotRevisable(
            f"{spec.name}: no transaction from {first or 1} to {until} has dead letters{of_which}; there is nothing to "
            "release"
        )
    return found


def _releasable(
    conn: Connection, spec: Pipeline, line: Line, txids: Sequence[int], errors: str
) -> tuple[dict[int, int], list[tuple[int, str]]]:
    """{txid: its dead letters} of those that can be released, and those that are left out, and why."""
    wanted: dict[int, int] = {}
    left_out: list[tuple[int, str]] = []
    for txid in txids:
        try:
            _, wanted[txid] = check_release(conn, spec, line, txid, errors)
        except NotRevisable as error:
            left_out.append((txid, _why(spec, txid, error)))
    return wanted, left_out


def _why(spec: Pipeline, txid: int, error: NotRevisable) -> str:
    return str(error).removeprefix(f"{spec.name}: transaction {txid}").lstrip(" :")
