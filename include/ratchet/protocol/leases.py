"""Leases: how long a claim holds without a word, by the database's clock; given, renewed and measured here alone."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, update

from ratchet.errors import Fenced, Refused
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import transactions
from ratchet.ledger.transactions import is_row, read_transaction
from ratchet.ledger.work import Claim
from ratchet.protocol.deadlines import abort_if_overdue

RENEW = """
    update ratchet.transactions
    set lease_until = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
    where pipeline = %(pipeline)s and txid = %(txid)s and revision = %(revision)s
      and claim = %(claim)s and not claim_ended
"""
"""What `renew` does for a PREPARED transaction, which has no deadline, as one statement for an asynchronous driver."""


def lease(seconds: int) -> ColumnElement[datetime]:
    """When a lease that is given now runs out."""
    return func.clock_timestamp() + timedelta(seconds=seconds)


def holds(seconds: int) -> ColumnElement[bool]:
    """The condition that a transaction's lease has not run out.

    A lease that reaches further than one given now was given while the database's clock was ahead, and counts as run
    out: it would hold for as long as the clock was wrong.
    """
    return transactions.c.lease_until.between(func.clock_timestamp(), lease(seconds))


def renew(ledger: Ledger, claim: Claim, lease_seconds: int) -> None:
    """Lengthen the lease from now.

    Raises Fenced when another run holds the claim or settle has ended it, Refused when the epoch's deadline has
    passed, with the transaction aborted.
    """
    with ledger.begin() as conn:
        row = read_transaction(conn, claim.pipeline, claim.txid, claim.revision, lock=True)
        if row.claim != claim.number or row.claim_ended:
            raise Fenced(f"{claim.pipeline}: claim {claim.number} of {claim} is not held any more")
        overdue = abort_if_overdue(conn, row)
        if overdue is None:
            conn.execute(update(transactions).where(is_row(row)).values(lease_until=lease(lease_seconds)))
    if overdue is not None:
        raise Refused(f"{claim.pipeline}: {claim} is aborted: {overdue.reason}")
