"""More Spark tasks than PostgreSQL gives connections wait for one, for so long, and then say which limit it is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from structlog.testing import capture_logs

from ratchet.errors import WORTH_ANOTHER_TRY, ConnectionsTaken
from ratchet.ledger import crowded
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run, SinkVote, SliceWork, Tag
from ratchet.operate.migrate import migrate
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.failures import errors_recorded
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.writer import Into, Writer, Written
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.until import until

from .staging import SPEC, a_try, is_whole, start, vote_of
from .task import needed_rows

WRITERS, CONNECTIONS = 8, 2
SINKS = tuple(sink for sink in sinks_of(SPEC) if sink.name != DEAD_LETTERS)


@pytest.fixture
def limited(ledger: Ledger) -> Iterator[str]:
    """The ledger's URL for a role that PostgreSQL gives two connections."""
    role = f"limited_{uuid4().hex[:8]}"
    with psycopg.connect(ledger.url, autocommit=True) as conn:
        name = sql.Identifier(role)
        conn.execute(sql.SQL("create role {} login password 'x' connection limit 2").format(name))
        migrate(ledger.url, [SPEC], role)
        url = ledger.engine.url.set(drivername="postgresql", username=role, password="x")
        yield url.render_as_string(hide_password=False)
        conn.execute(sql.SQL("drop owned by {}").format(name))
        conn.execute(sql.SQL("drop role {}").format(name))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines of those that wait; they ask often."""
    monkeypatch.setattr(crowded, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(crowded, "MOST_SECONDS", 0.05)
    lines: list[str] = []
    with capture_logs([lambda _logger, _name, event: lines.append(event["event"]) or event]):
        yield lines


def write(work: SliceWork, url: str, number: int, then: Event) -> dict[str, Written]:
    """One of the slice's tasks; it has a connection while it waits for `then`."""
    into = Into(url, work.token, work.ranges, work.relations, work.source)
    with Writer(into, Tag(number, 0), SINKS) as writer:
        for sink in SINKS:
            rows = needed_rows(sink, work)
            writer.write(sink, rows[number::WRITERS])
            writer._flush(sink)
        assert then.wait(30)
        return writer.finish()


def whole(tasks: list[dict[str, Written]]) -> dict[str, SinkVote]:
    """What a vote says of what all tasks have written."""
    by_sink = {sink.name: [task[sink.name] for task in tasks if task[sink.name].writer] for sink in SINKS}
    return {
        name: SinkVote(
            tuple(of.writer for of in parts), sum(of.rows for of in parts), sum(of.checksum for of in parts) % 2**64
        )
        for name, parts in by_sink.items()
    }


def test_more_tasks_than_connections_wait_for_their_turn_and_say_so_once(ledger, log, limited, said):
    begun = start(ledger, SPEC, log, "a")
    for part in begun.slices:
        work, then = a_try(ledger, begun, part.number), Event()
        said.clear()
        with ThreadPoolExecutor(WRITERS) as pool:
            tasks: list[Future] = [pool.submit(write, work, limited, n, then) for n in range(WRITERS)]
            until("all others wait", lambda: len(said) == WRITERS - CONNECTIONS)
            assert not any(task.done() for task in tasks)
            then.set()
        sinks = whole([task.result() for task in tasks])
        # Each that waits says it in one line, with the limit, however often it asks.
        assert len(said) == WRITERS - CONNECTIONS
        for line in said:
            assert line.startswith("waits up to 300 s for a connection to the ledger: ")
            assert "too many connections for role" in line
        with Ledger(limited) as driver:
            cast_vote(driver, SPEC, work.token, vote_of(SPEC, work, sinks))
    assert isinstance(commit(ledger, SPEC, begun.claim), Committed)
    is_whole(ledger, begun)


def test_a_limit_that_stays_reached_is_named_in_time_and_counted(ledger, log, limited, said, monkeypatch):
    monkeypatch.setattr(crowded, "WAIT_SECONDS", 0.2)
    holders = [psycopg.connect(limited) for _ in range(CONNECTIONS)]
    for failures in range(1, SPEC.max_failures + 1):
        run = f"run {failures}"
        begun = start(ledger, SPEC, log, run)
        work = a_try(ledger, begun)
        with pytest.raises(
            ConnectionsTaken, match=f"slice 0, try {failures}: .*too many connections for role .*raise that limit"
        ):
            with errors_recorded(ledger, work.token):
                write(work, limited, 0, Event())
        left = settle(ledger, SPEC, Run("dag", run), succeeded=False, reason="failed")
        # It is neither tried for ever without being counted, nor given up at once.
        assert left.row is not None and left.row.failures == failures
        assert (left.row.halted_at is not None) == (failures == SPEC.max_failures)
    # Where the first refusal takes as long as there is to wait, there is nothing to say.
    assert len(said) <= SPEC.max_failures and issubclass(ConnectionsTaken, WORTH_ANOTHER_TRY)
    for holder in holders:
        holder.close()


def test_a_person_is_told_at_once(limited, said):
    holders = [psycopg.connect(limited) for _ in range(CONNECTIONS)]
    with pytest.raises(ConnectionsTaken, match="too many connections for role"):
        with Ledger(limited, waits=False) as ledger, ledger.begin():
            pass
    assert said == []
    for holder in holders:
        holder.close()


@pytest.mark.parametrize(
    "line",
    [
        "FATAL:  sorry, too many clients already",
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'FATAL:  too many connections for role "etl"',
        'FATAL:  too many connections for database "warehouse"',
        "FATAL:  no more connections allowed (max_client_conn)",
    ],
)
def test_the_limits_of_servers_and_poolers_are_told_from_outages(line):
    assert crowded.is_crowded(line)
    assert not crowded.is_crowded("FATAL:  the database system is starting up")
    # Of a statement, whose connection PgBouncer has already.
    assert not crowded.is_crowded("FATAL:  query_wait_timeout")
