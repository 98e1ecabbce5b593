"""Attending a job: it works in a thread of its own while this one keeps the lease alive."""

from __future__ import annotations

from concurrent.futures import Future
from contextvars import copy_context
from threading import Thread
from typing import Protocol

from ratchet.errors import LedgerUnreachable
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Claim
from ratchet.logs import get_logger
from ratchet.protocol import leases


class Job(Protocol):
    """One try at a slice on some engine."""

    def run(self) -> str:
        """Work until the vote is cast; the line that says so."""
        ...

    def stop(self) -> None:
        """End the work wherever it runs; harmless at any time, from any thread but that of `run`."""
        ...


def attend(job: Job, ledger: Ledger, claim: Claim, lease_seconds: int) -> str:
    """Run the job and renew the claim's lease every third of it; return what the job says.

    The caller's thread stays free for signals, so that Airflow's on_kill can stop the job. Raises what the job
    raises, and Fenced, with the job stopped, when the claim is lost.
    """
    done: Future[str] = Future()
    Thread(target=copy_context().run, args=(_into, done, job), daemon=True, name=f"slice of {claim.txid}").start()
    try:
        while True:
            try:
                return done.result(timeout=lease_seconds / 3)
            except TimeoutError:
                if done.done():
                    return done.result()
            try:
                leases.renew(ledger, claim, lease_seconds)
            except LedgerUnreachable as error:
                # The lease outlives a short loss; the vote will tell whether the ledger came back.
                get_logger().warning(f"the lease was not renewed: {error}")
    finally:
        if not done.done():
            job.stop()


def _into(done: Future[str], job: Job) -> None:
    try:
        done.set_result(job.run())
    except BaseException as error:
        done.set_exception(error)
