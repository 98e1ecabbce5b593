"""Sends something of each transaction that is committed, in each line's order, at least once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import psycopg
import sqlalchemy.exc

from ratchet.errors import RatchetError
from ratchet.ledger.connection import Ledger
from ratchet.logs import get_logger
from ratchet.telemetry.commits import Commit, Commits

TRIES = 100
"""What a collector has refused so often is given up, and what is behind it in its line goes on."""
PASSES = (RatchetError, psycopg.Error, sqlalchemy.exc.SQLAlchemyError)
"""What may be gone the next time."""


class Following:
    """Of what is committed from now on, one collector is told; `send` says whether it has taken a commit."""

    def __init__(self, what: str, send: Callable[[Ledger, Commit], bool]):
        self._what, self._send = what, send
        self._commits = Commits()
        self._tries: Counter[int] = Counter()

    def go_on(self, ledger: Ledger) -> int:
        """Send what was committed since the last time; how many. What is not taken is sent the next time."""
        sent = 0
        refused: set[str] = set()
        try:
            for commit in self._commits.since(ledger):
                name = commit.whole.pipeline
                if name in refused:
                    # In the line's order: what comes behind is told behind.
                    continue
                about = f"{name}: the {self._what} of transaction {commit.whole.txid}"
                if self._send(ledger, commit):
                    sent += 1
                elif self._tries[commit.event] < TRIES:
                    self._tries[commit.event] += 1
                    get_logger().warning(f"{about} is not taken, tries again")
                    refused.add(name)
                    continue
                else:
                    get_logger().error(f"{about} is given up")
                self._tries.pop(commit.event, None)
                self._commits.told(commit)
        except PASSES as error:
            get_logger().warning(f"could not read what was committed, tries again: {' '.join(str(error).split())}")
        return sent
