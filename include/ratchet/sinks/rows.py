"""Sinks that keep each row as it was staged: how rows are counted into their table, and held against the votes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection
from sqlalchemy.sql.dml import Insert

from ratchet.errors import StageMismatch
from ratchet.sinks.checksum import MODULUS
from ratchet.sinks.port import Applied, Check, Delta, Tagged, Voted


def insert_rows(conn: Connection, of: Delta, name: str, inserting: Insert, votes: Tagged) -> Applied:
    """INSERT … SELECT of the rows that the votes name; StageMismatch where there are more or fewer than voted."""
    written = conn.execute(inserting.execution_options(preserve_rowcount=True)).rowcount
    return counted(of, name, written, votes)


def counted(of: Delta, name: str, found: int, votes: Tagged) -> Applied:
    """What the commit notes; StageMismatch where the stage holds more or fewer rows than the votes say."""
    expected = sum(vote.rows for _, _, vote in votes)
    if found != expected:
        raise StageMismatch(
            f"{of.pipeline}: transaction {of.txid}, {name}: {found:,} rows are staged, the votes say {expected:,}"
        )
    return {"rows": found}


def check_rows(name: str, hashes: Iterable[tuple[int, int]], voted: Sequence[Voted]) -> Check:
    """Rows and checksum of each transaction as they stand, (txid, hash) each, against the sum of its votes."""
    found: dict[int, tuple[int, int]] = {}
    for txid, hashed in hashes:
        rows, checksum = found.get(txid, (0, 0))
        found[txid] = (rows + 1, (checksum + hashed) % MODULUS)
    faults: list[str] = []
    for of in voted:
        rows, checksum = found.get(of.txid, (0, 0))
        if rows != of.rows:
            faults.append(f"{name}: transaction {of.txid} has {rows:,} rows, its votes say {of.rows:,}")
        elif checksum != of.checksum:
            faults.append(f"{name}: transaction {of.txid} has other contents than its votes say")
    return Check(f"{name}: rows and checksums", sum(rows for rows, _ in found.values()), tuple(faults))
