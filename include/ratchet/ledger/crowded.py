"""A crowded database: one that answers, and gives no further connection until others end theirs."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

WAIT_SECONDS = 300.0
"""So long a task waits for a connection; then whoever set the limit must decide."""
FIRST_SECONDS, MOST_SECONDS = 0.2, 5.0
"""Between two attempts a random time of at most so much passes, twice as much after each."""

_LIMITS = re.compile(
    # PostgreSQL's max_connections, and what of it is reserved.
    r"too many clients already|remaining connection slots are reserved"
    # CONNECTION LIMIT of a role or a database.
    r"|too many connections for "
    # PgBouncer's max_client_conn; who waits there for a session is connected, and waits for it with a statement.
    r"|no more connections allowed"
)
"""libpq tells no SQLSTATE of a connection that was refused, so its words must do."""


def is_crowded(said: str) -> bool:
    """Whether a server or a pooler refused a connection because all that a limit allows are in use."""
    return _LIMITS.search(said) is not None


def connect(dialect: Any, _record: object, args: Any, settings: Any) -> Any:
    """A connection for SQLAlchemy's pool; where all are in use, ask again until WAIT_SECONDS are over.

    Each of Spark's tasks needs one while it writes, and ends it then, so those that wait come to theirs.
    """
    asks = Retrying(
        retry=retry_if_exception(lambda e: isinstance(e, psycopg.OperationalError) and is_crowded(str(e))),
        stop=stop_after_delay(WAIT_SECONDS),
        wait=wait_random_exponential(multiplier=FIRST_SECONDS, max=MOST_SECONDS),
        before_sleep=_say,
        reraise=True,
    )
    return asks(dialect.connect, *args, **settings)


def _say(state: RetryCallState) -> None:
    if state.attempt_number == 1 and state.outcome is not None:
        why = " ".join(str(state.outcome.exception()).split())
        log = structlog.get_logger("ratchet")
        log.warning(f"waits up to {WAIT_SECONDS:g} s for a connection to the ledger: {why}")
