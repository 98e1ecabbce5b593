"""The dead letters of a transaction that a release takes, said here for all that ask, and how headers are kept."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence

from sqlalchemy import BigInteger, ColumnElement, Connection, Integer, and_, column, false, func, or_, select

from ratchet.ledger.schema import dead_letter_deltas
from ratchet.ledger.work import OffsetRange


def taken(pipeline: str, txid: int, errors: str) -> tuple[ColumnElement[bool], ...]:
    """The conditions for the dead letters of a committed transaction whose errors contain this text."""
    has_text = func.strpos(column("error"), errors) > 0
    return column("_pipeline") == pipeline, column("_txid") == txid, has_text


def within(ranges: Sequence[OffsetRange]) -> ColumnElement[bool]:
    """The condition for the dead letters that are of these ranges."""
    partition, offset = column("_partition", Integer), column("_offset", BigInteger)
    of_each = (and_(partition == r.partition, offset >= r.from_offset, offset < r.until_offset) for r in ranges)
    return or_(false(), *of_each)


def count(conn: Connection, pipeline: str, txid: int, errors: str, ranges: Sequence[OffsetRange] | None = None) -> int:
    """How many a release takes of a transaction, or of some of its ranges."""
    query = select(func.count()).select_from(dead_letter_deltas).where(*taken(pipeline, txid, errors))
    return conn.execute(query if ranges is None else query.where(within(ranges))).scalar_one()


def txids(conn: Connection, pipeline: str, first: int, last: int, errors: str) -> list[int]:
    """The transactions from `first` to `last` that have dead letters whose errors contain a text, in order."""
    c = dead_letter_deltas.c
    mine = (c._pipeline == pipeline, c._txid.between(first, last), func.strpos(c.error, errors) > 0)
    return list(conn.execute(select(c._txid).where(*mine).distinct().order_by(c._txid)).scalars())


def headers(kept: Sequence[Mapping[str, str | None]]) -> Iterator[tuple[str, bytes | None]]:
    """(key, value) of each header, from the form in which dead letters keep them."""
    for header in kept:
        key, value = header.get("key"), header["value"]
        if key is None:
            # One with U+0000, which PostgreSQL's JSON lacks.
            key = b64decode(header["key_base64"] or "").decode()
        yield key, None if value is None else b64decode(value)
