"""`ratchet replay`: ask for revisions of a range of transactions, also of voided ones, or take that back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, select

from ratchet.errors import IllegalMove, NotRevisable
from ratchet.ledger.connection import Ledger
from ratchet.ledger.rows import Line
from ratchet.ledger.schema import transactions
from ratchet.ledger.states import State
from ratchet.ledger.transactions import lock_pipeline, newest_revision
from ratchet.ledger.work import counted
from ratchet.protocol import replays
from ratchet.protocol.revise import check_cut, check_place, check_sent, erased_of
from ratchet.spec.pipeline import Pipeline

STEP = 200
"""So many transactions are asked for under the commit lock at once."""


@dataclass(frozen=True)
class Asked:
    """Which revisions were asked for, or taken back; those that waited before, and those that are left out, and why.

    `waiting` is how many wait now, of whatever was asked for.
    """

    pipeline: str
    txids: tuple[int, ...]
    before: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...]
    waiting: int
    is_taken_back: bool = False
    code: str | None = None
    """That of the process which has asked; None where something was taken back."""
    dry_run: bool = False


def lines_of(done: Asked) -> list[str]:
    """What a person reads of it."""
    said = _lines_of(done)
    return [*said, "this was a dry run: nothing was changed"] if done.dry_run else said


def _lines_of(done: Asked) -> list[str]:
    named = f"{done.pipeline}: {spans(done.txids)}"
    if done.is_taken_back:
        return [f"{named}: no revision is asked for any more; {done.waiting:,} wait"]
    said = [f"{done.pipeline}: transaction {txid} is left out: {why}" for txid, why in done.left_out]
    if done.before:
        said.append(f"{done.pipeline}: {spans(done.before)}: a revision was asked for before, and waits")
    if done.txids:
        said.append(f"{named}: a revision is asked for, with code {done.code}")
    how = "runs do them one at a time, live transactions first; the old results stay until then"
    return [*said, f"{done.pipeline}: {counted(done.waiting, 'revision waits', 'revisions wait')}; {how}"]


def spans(txids: Iterable[int]) -> str:
    """How people read txids: `transaction 3`, `transactions 3, 5 to 9`."""
    found: list[list[int]] = []
    for txid in sorted(txids):
        if found and found[-1][1] == txid - 1:
            found[-1][1] = txid
        else:
            found.append([txid, txid])
    said = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in found)
    return f"transaction {said}" if said.isdigit() else f"transactions {said}"


def ask(
    ledger: Ledger,
    spec: Pipeline,
    first: int,
    last: int,
    reason: str,
    who: str,
    *,
    voided: bool = False,
    dry_run: bool = False,
) -> Asked:
    """Ask for a revision of each of the transactions `first` to `last`; runs begin them, one at a time.

    A voided one is left out unless `voided`: whoever voided it did not want its records. Raises NotRevisable, and asks
    for nothing, where the range goes beyond the head or into what is merged or expired, or nothing of it is left.
    """
    txids: list[int] = []
    before: list[int] = []
    left_out: list[tuple[int, str]] = []
    waiting = 0
    for part in _parts(first, last):
        with ledger.begin(dry_run=dry_run) as conn:
            line = _lock(conn, spec)
            check_place(conn, spec, line, first)
            check_place(conn, spec, line, last)
            wanted, refused = _revisable(conn, spec, part, voided=voided)
            asked = replays.ask(conn, spec, wanted, who, reason)
            waiting = replays.waiting(conn, spec.name)
        txids += asked
        before += sorted(set(wanted) - set(asked))
        left_out += refused
    if not txids and not before:
        why = "; ".join(f"transaction {txid} is left out: {why}" for txid, why in left_out[:3])
        raise NotRevisable(f"{spec.name}: nothing is asked for: {why}")
    return Asked(spec.name, tuple(txids), tuple(before), tuple(left_out), waiting, code=spec.code_hash, dry_run=dry_run)


def take_back(
    ledger: Ledger, spec: Pipeline, first: int, last: int, reason: str, who: str, *, dry_run: bool = False
) -> Asked:
    """Take back what was asked for of the transactions `first` to `last` and is not begun."""
    gone: list[int] = []
    waiting = 0
    for part in _parts(first, last):
        with ledger.begin(dry_run=dry_run) as conn:
            _lock(conn, spec)
            gone += replays.forget(conn, spec.name, part[0], part[-1], who, reason)
            waiting = replays.waiting(conn, spec.name)
    if not gone:
        raise IllegalMove(f"{spec.name}: of transactions {first} to {last} no revision waits")
    return Asked(spec.name, tuple(gone), (), (), waiting, is_taken_back=True, dry_run=dry_run)


def revisable(
    conn: Connection, spec: Pipeline, line: Line, first: int, last: int, *, voided: bool = False
) -> tuple[list[int], list[tuple[int, str]]]:
    """The transactions of a range that can be revised, and those that are left out, and why.

    Raises NotRevisable where the range goes beyond the head or into what is merged.
    """
    check_place(conn, spec, line, first)
    check_place(conn, spec, line, last)
    return _revisable(conn, spec, range(first, last + 1), voided=voided)


def _revisable(
    conn: Connection, spec: Pipeline, part: range, *, voided: bool
) -> tuple[list[int], list[tuple[int, str]]]:
    c = transactions.c
    erased = erased_of(conn, spec, part[0], part[-1])
    query = select(c.txid, c.state, c.reason).where(
        c.pipeline == spec.name, c.revision == 0, c.txid.between(part[0], part[-1])
    )
    wanted: list[int] = []
    left_out: list[tuple[int, str]] = []
    for txid, state, reason in conn.execute(query.order_by(c.txid)).all():
        if txid in erased:
            left_out.append((txid, erased[txid]))
            continue
        try:
            check_sent(conn, spec, txid)
            check_cut(conn, newest_revision(conn, spec.name, txid))
        except NotRevisable as error:
            left_out.append((txid, str(error).partition(": ")[2]))
            continue
        if state == State.VOIDED and not voided:
            left_out.append((txid, f"it is voided: {reason}; with --voided it is replayed as well"))
        else:
            wanted.append(txid)
    return wanted, left_out


def _parts(first: int, last: int) -> Iterator[range]:
    for start in range(first, last + 1, STEP):
        yield range(start, min(start + STEP, last + 1))


def _lock(conn: Connection, spec: Pipeline) -> Line:
    line = lock_pipeline(conn, spec.name)
    if line is None:
        raise IllegalMove(f"the ledger has nothing of pipeline {spec.name} yet")
    return line
