"""Dead letters: how many there are by reason and by transaction, and the letters themselves, a page at a time."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select

from ratchet.errors import SettingsError
from ratchet.ledger import letters as kept
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import dead_letters, heads, replays, transactions
from ratchet.ledger.topics import PER_TOPIC
from ratchet.ledger.transactions import is_newest, is_unfinished

PAGE = 100
"""So many letters are on a page where nobody says how many."""
SCANNED = 20_000
"""Where a reason is asked for, so many letters are looked at for a page."""
COUNTED = 100_000
"""So many letters are counted, the newest ones."""
GROUPS = 100
"""So many reasons, and so many transactions, are told of."""

# The view, which the readers' role may read as well.
_c = dead_letters.c
_AT = (_c.topic_number * PER_TOPIC + _c.partition).label("at")
"""The partition of the line."""
_ORDER = (_c.txid.desc(), _AT, _c.offset)


@dataclass(frozen=True)
class ByReason:
    """How many letters have a reason, and the first and last transaction of them."""

    reason: str
    letters: int
    first_txid: int
    last_txid: int


@dataclass(frozen=True)
class ByTransaction:
    """How many letters a transaction has."""

    txid: int
    letters: int


@dataclass(frozen=True)
class Asked:
    """Releases that a person has asked for and no run has begun: of so many transactions, from the first to the last.

    `error` is the text that the reasons of their letters contain, empty for all.
    """

    who: str
    reason: str
    error: str
    transactions: int
    first_txid: int
    last_txid: int
    at: datetime


@dataclass(frozen=True)
class Counts:
    """The newest dead letters of a pipeline, counted; `is_all` where there are no older ones.

    `asked` are the releases that wait for a run, `going_on` the transactions of those that runs work on.
    """

    pipeline: str
    counted: int
    is_all: bool
    reasons: tuple[ByReason, ...]
    transactions: tuple[ByTransaction, ...]
    asked: tuple[Asked, ...]
    going_on: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """A header of a record, whose key may have a U+0000; `text` where its value is UTF-8."""

    key: str
    text: str | None
    base64: str | None


@dataclass(frozen=True)
class Letter:
    """A record that gave no row, where it stands, why, and its bytes, as base64 and, where they are UTF-8, as text.

    `is_json` says whether the value is one JSON document. Of a value with more bytes than were asked for, `value_size`,
    only the first are here.
    """

    txid: int
    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    reason: str
    key_text: str | None
    key_base64: str | None
    value_text: str | None
    value_base64: str | None
    value_size: int | None
    is_json: bool
    headers: tuple[Header, ...]


@dataclass(frozen=True)
class Letters:
    """A page of dead letters, the newest transaction first; `next` asks for the one behind it, None at the end."""

    pipeline: str
    letters: tuple[Letter, ...]
    next: str | None


def counts(ledger: Ledger, pipeline: str) -> Counts:
    """How many dead letters there are by reason and by transaction."""
    with ledger.snapshot() as conn:
        of = select(_c.error, _c.txid).where(*_mine(conn, pipeline)).order_by(_c.txid.desc())
        newest = of.limit(COUNTED + 1).subquery("newest")
        # One more is read, to know whether there are more.
        number = func.count().label("letters")
        n = newest.c
        reasons = select(n.error, number, func.min(n.txid), func.max(n.txid)).group_by(n.error)
        by_txid = select(n.txid, number).group_by(n.txid)
        counted = conn.execute(select(func.count()).select_from(newest)).scalar_one()
        return Counts(
            pipeline,
            min(counted, COUNTED),
            counted <= COUNTED,
            tuple(ByReason(*r) for r in conn.execute(reasons.order_by(number.desc(), n.error).limit(GROUPS))),
            tuple(ByTransaction(*r) for r in conn.execute(by_txid.order_by(n.txid.desc()).limit(GROUPS))),
            _asked(conn, pipeline),
            _going_on(conn, pipeline),
        )


def _asked(conn: Connection, pipeline: str) -> tuple[Asked, ...]:
    c = replays.c
    of = (c.who, c.reason, c.releases)
    query = select(*of, func.count(), func.min(c.txid), func.max(c.txid), func.max(c.at)).group_by(*of)
    mine = query.where(c.pipeline == pipeline, c.given_up.is_(None), c.releases.is_not(None))
    return tuple(Asked(*row) for row in conn.execute(mine.order_by(func.min(c.id)).limit(GROUPS)))


def _going_on(conn: Connection, pipeline: str) -> tuple[int, ...]:
    c = transactions.c
    mine = (c.pipeline == pipeline, is_unfinished(), is_newest(), c.releases.is_not(None), c.halted_at.is_(None))
    return tuple(conn.execute(select(c.txid).where(*mine).order_by(c.txid)).scalars())


def letters(
    ledger: Ledger,
    pipeline: str,
    reason: str | None = None,
    txid: int | None = None,
    after: str | None = None,
    most: int = PAGE,
    most_bytes: int | None = None,
) -> Letters:
    """A page of dead letters, of one reason or of one transaction if these are given; `after` is what a page says.

    Where a reason is rare a page may have fewer than `most`, or none, and yet not be the last one.
    """
    with ledger.snapshot() as conn:
        mine = [*_mine(conn, pipeline), *([_c.txid == txid] if txid is not None else []), *_behind(after)]
        wanted = mine if reason is None else [*mine, _c.error == reason, *_within(conn, mine)]
        rows = conn.execute(_picked(most_bytes).where(*wanted).order_by(*_ORDER).limit(most + 1)).all()
        last = _place(rows[most - 1]) if len(rows) > most else None
        if last is None and reason is not None:
            last = _scanned(conn, mine)
        return Letters(pipeline, tuple(map(_letter, rows[:most])), last)


def each(ledger: Ledger, pipeline: str, reason: str | None, txid: int | None, most: int) -> Iterator[Letter]:
    """The letters one after the other, at most so many; a page at a time is in memory."""
    after, left = None, most
    while left > 0:
        page = letters(ledger, pipeline, reason, txid, after, min(PAGE, left))
        yield from page.letters
        left -= len(page.letters)
        after = page.next
        if after is None:
            return


def _mine(conn: Connection, pipeline: str) -> list[ColumnElement[bool]]:
    """The condition for the letters that readers see; the head is named, so that an index is used up to it."""
    head = conn.execute(select(heads.c.txid).where(heads.c.pipeline == pipeline)).scalar_one_or_none()
    return [_c.pipeline == pipeline, _c.txid <= (head or 0)]


def _behind(after: str | None) -> list[ColumnElement[bool]]:
    if after is None:
        return []
    try:
        txid, partition, offset = map(int, after.split("."))
    except ValueError:
        raise SettingsError(f"{after!r} is no place among dead letters; give what a page says is next") from None
    further = or_(_AT > partition, and_(_AT == partition, _c.offset > offset))
    return [_c.txid <= txid, or_(_c.txid < txid, further)]


def _scanned(conn: Connection, mine: Sequence[ColumnElement[bool]]) -> str | None:
    """The last of so many letters as are looked at for a page; None where there are no more than that."""
    query = select(_c.txid, _AT, _c.offset).where(*mine).order_by(*_ORDER).offset(SCANNED - 1).limit(1)
    row = conn.execute(query).one_or_none()
    return None if row is None else _place(row)


def _within(conn: Connection, mine: Sequence[ColumnElement[bool]]) -> list[ColumnElement[bool]]:
    """The condition for the letters that are looked at."""
    last = _scanned(conn, mine)
    if last is None:
        return []
    txid, partition, offset = map(int, last.split("."))
    before = or_(_AT < partition, and_(_AT == partition, _c.offset <= offset))
    return [_c.txid >= txid, or_(_c.txid > txid, before)]


def _place(row: Row[*tuple[Any, ...]]) -> str:
    """Of a row that begins with txid, partition and offset."""
    return ".".join(map(str, row[:3]))


def _picked(most_bytes: int | None) -> Select[*tuple[Any, ...]]:
    value = _c.value if most_bytes is None else func.substring(_c.value, 1, most_bytes)
    return select(
        _c.txid,
        _AT,
        _c.offset,
        _c.partition,
        _c.topic,
        _c.timestamp,
        _c.error,
        _c.key,
        value.label("value"),
        func.octet_length(_c.value).label("size"),
        _c.headers,
    )


def _letter(row: Row[*tuple[Any, ...]]) -> Letter:
    value, value_base64 = _both(row.value)
    return Letter(
        row.txid,
        row.topic,
        row.partition,
        row.offset,
        row.timestamp,
        row.error,
        *_both(row.key),
        value,
        value_base64,
        row.size,
        _is_json(value),
        tuple(_headers(row.headers)),
    )


def _both(held: bytes | None) -> tuple[str | None, str | None]:
    """(text where it is UTF-8, base64); two Nones of a null."""
    if held is None:
        return None, None
    try:
        said = held.decode()
    except UnicodeDecodeError:
        said = None
    return said, b64encode(held).decode()


def _is_json(said: str | None) -> bool:
    try:
        json.loads(said or "")
    except (ValueError, RecursionError):
        return False
    return True


def _headers(stored: list[dict[str, Any]] | None) -> Iterator[Header]:
    for key, value in kept.headers(stored or ()):
        yield Header(key, *_both(value))
