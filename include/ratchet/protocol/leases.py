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
    with mine as (
        select t.pipeline, t.txid, t.revision, w.lease_seconds
        from unnest(
            %(pipeline)s::text[], %(txid)s::bigint[], %(revision)s::int[], %(claim)s::int[], %(lease_seconds)s::int[]
        ) as w (pipeline, txid, revision, claim, lease_seconds)
        join ratchet.transactions t
            on t.pipeline = w.pipeline and t.txid = w.txid and t.revision = w.revision
            and t.claim = w.claim and not t.claim_ended
        for no key update of t skip locked
    )
    update ratchet.transactions t
    set lease_until = clock_timestamp() + make_interval(secs => mine.lease_seconds)
    from mine
    where t.pipeline = mine.pipeline and t.txid = mine.txid and t.revision = mine.revision
"""
"""What `renew` does for PREPARED transactions, which have no deadline, in one statement for an asynchronous driver.

It waits for nobody: a row that another has locked, such as a commit for as long as it folds, is left to the next time.
Else it would hold the rows of all pipelines while it waits for one of them.
"""


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
