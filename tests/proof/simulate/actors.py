"""Actors: threads that run the ledger's code, and stand before each statement until the schedule lets them go on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from ratchet.ledger.connection import Ledger
from tests.proof.simulate.statements import listening

FOREVER = 10**9
SECONDS = 60
"""So long nobody may pass a statement or a COMMIT while somebody goes; a deadlock that PostgreSQL does not see would
take longer. A machine that has other things to do may be slow, and still each statement is passed."""
AT_A_STRETCH = 5_000
"""So many statements all together may pass before all stand still; who goes round in circles passes more."""
A_STATEMENT = 0.004
"""Seconds: after so long it is asked whether somebody waits for a lock."""
COMMIT = "COMMIT"
_IMPATIENT = "set local lock_timeout = '200ms'"
_SOONER = "set local lock_timeout = '2ms'"


class Killed(BaseException):
    """The process of the actor has died; no code of it may go on."""


class End(StrEnum):
    """How an actor's step is cut off."""

    KILLED = "is killed"
    LOST = "loses its connection"
    UNHEARD = "loses its connection when the COMMIT is done and before it hears of it"


class Place(StrEnum):
    """Where an actor is."""

    IDLE = "idle"
    GOES = "goes"
    STANDS = "stands before a statement"
    COMMITTED = "waits for the reader, who looks after every COMMIT"
    WAITS = "waits for a lock"


class Actor:
    """A thread with connections of its own. `said` is what its last step gave, or the error that it raised."""

    def __init__(self, troupe: Troupe, name: str, url: str):
        self.name, self.ledger = name, Ledger(url)
        self.place, self.at, self.doing = Place.IDLE, "", ""
        self.said: Any = None
        self.lost_at: str | None = None
        """The statement or COMMIT at which its connection was cut in this step."""
        self.pid: int | None = None
        self.is_impatient = False
        self.is_between = False
        """Whether it stands between two database transactions."""
        self._troupe, self._budget, self._end = troupe, 0, None
        self._job: Callable[[Ledger], Any] | None = None
        self._is_dead = False
        # Connects now, and not in the midst of a schedule.
        with self.ledger.begin():
            pass
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._thread.start()

    def start(self, doing: str, job: Callable[[Ledger], Any], steps: int) -> None:
        """Begin a step, and go on until it stands before its statement number `steps`."""
        assert self.place is Place.IDLE
        with self._troupe.changed:
            self.doing, self._job, self._is_dead, self.pid, self.lost_at = doing, job, False, None, None
            self._budget, self._end, self.place = steps, None, Place.GOES
            self._troupe.changed.notify_all()

    def go(self, steps: int, end: End | None = None) -> None:
        """Let it pass the statement before which it stands, and as many more; or let it end there."""
        assert self.place is Place.STANDS
        with self._troupe.changed:
            self._budget, self._end, self.place = steps, end, Place.GOES
            self._troupe.changed.notify_all()

    def is_in_commit(self) -> bool:
        """Whether it stands before a COMMIT."""
        return self.at == COMMIT

    # In the actor's own thread.

    def statement(self, connection: psycopg.Connection, query: Any) -> Any:
        text = _text(query)
        if self._is_dead and not text.lower().startswith("rollback"):
            raise Killed
        self.pid = connection.info.backend_pid
        self._troupe.passed += 1
        self._stand(text, connection)
        if self._end is End.LOST:
            self._lose(connection)
        if text == _IMPATIENT:
            self.is_impatient = True
            return _SOONER
        return query

    def commit(self, connection: psycopg.Connection, do: Callable[[], None]) -> None:
        if self._is_dead:
            raise Killed
        self._troupe.passed += 1
        self._stand(COMMIT, connection)
        if self._end is End.LOST:
            self._lose(connection)
        do()
        self.is_impatient = False
        with self._troupe.changed:
            self.place = Place.COMMITTED
            self._troupe.changed.notify_all()
            self._troupe.changed.wait_for(lambda: self.place is Place.GOES)
        if self._end is End.UNHEARD:
            self._lose(connection)

    def _lose(self, connection: psycopg.Connection) -> None:
        # Once: whoever goes on after it has another connection.
        self._end, self.lost_at = None, self.at
        self._drop(connection)
        raise psycopg.OperationalError("the schedule has cut the connection")

    def _drop(self, connection: psycopg.Connection) -> None:
        self._troupe.lost(connection.info.backend_pid)
        connection.pgconn.finish()

    def _stand(self, at: str, connection: psycopg.Connection) -> None:
        if self._budget > 0:
            self._budget -= 1
            return
        with self._troupe.changed:
            self.at, self.place = at, Place.STANDS
            self.is_between = connection.info.transaction_status is TransactionStatus.IDLE
            self._troupe.changed.notify_all()
            self._troupe.changed.wait_for(lambda: self.place is Place.GOES)
        self._budget -= 1
        if self._end is End.KILLED:
            self._is_dead = True
            self._drop(connection)
            raise Killed

    def _run(self) -> None:
        while True:
            with self._troupe.changed:
                self._troupe.changed.wait_for(lambda: self._job is not None)
                job = self._job
            said: Any
            try:
                with listening(self):
                    said = job(self.ledger)
            except Killed as killed:
                said = killed
            except Exception as error:
                said = error
            if self._is_dead:
                said = Killed()
            with self._troupe.changed:
                self.said, self._job, self.place, self.is_impatient = said, None, Place.IDLE, False
                self._troupe.changed.notify_all()


class Troupe:
    """The actors of a schedule: one goes at a time; the others stand, or wait for a lock of one that stands."""

    def __init__(self, url: str, actors: int):
        self.changed = threading.Condition()
        self.waiting: list[Actor] = []
        """Who waits for a lock, the longest first."""
        self.passed = 0
        """So many statements and COMMITs all actors together came to."""
        self._lost: set[int] = set()
        self._observer = psycopg.connect(url, autocommit=True)
        self.actors = [Actor(self, f"actor {number}", url) for number in range(actors)]

    def lost(self, pid: int) -> None:
        """A session whose connection is cut, or whose process is dead: PostgreSQL is still to notice it."""
        self._lost.add(pid)

    def settle(self, look: Callable[[], object] = lambda: None) -> None:
        """Wait until every actor is idle, stands before a statement, or waits for a lock of one that stands.

        After every COMMIT on the way `look` is called, before anybody goes on.
        One that waits has its session stopped: of two that wait for the same lock, PostgreSQL would let either go on
        first, and the schedule would not be the same the next time.
        """
        first = passed = self.passed
        deadline = time.monotonic() + SECONDS
        while True:
            assert self.passed - first < AT_A_STRETCH, f"somebody goes round in circles: {self.places()}"
            if passed != self.passed:
                passed, deadline = self.passed, time.monotonic() + SECONDS
            for actor in self._gone_on():
                self._continue(actor)
            with self.changed:
                self.changed.wait_for(lambda: not self._going(), timeout=A_STATEMENT)
                going = self._going()
                committed = next((a for a in self.actors if a.place is Place.COMMITTED), None)
            if committed:
                look()
                with self.changed:
                    committed.place = Place.GOES
                    self.changed.notify_all()
                continue
            assert time.monotonic() < deadline, f"nothing moves any more: {self.places()}"
            if self._lost and self._are_there(self._lost):
                continue
            blockers = self._blockers([*going, *self.waiting])
            if going:
                if any(a.is_impatient or not blockers[a] for a in going):
                    continue
                for actor in going:
                    self._stop(actor)
            free = next((a for a in self.waiting if not blockers[a]), None)
            if free is not None:
                self._continue(free)
            elif self.waiting and not self.standing():
                # They wait for one another, which PostgreSQL finds out.
                self.release()
            else:
                return

    def release(self) -> None:
        """Let all that wait go on as they can."""
        for actor in list(self.waiting):
            self._continue(actor)

    def places(self) -> list[str]:
        """Where each actor is, a line each."""
        return [f"{a.name}: {a.doing}: {a.place}: {a.at}" for a in self.actors if a.place is not Place.IDLE]

    def standing(self) -> list[Actor]:
        return [a for a in self.actors if a.place is Place.STANDS]

    def idle(self) -> list[Actor]:
        return [a for a in self.actors if a.place is Place.IDLE]

    def _going(self) -> list[Actor]:
        return [a for a in self.actors if a.place is Place.GOES]

    def _blockers(self, actors: list[Actor]) -> dict[Actor, set[int]]:
        """The sessions of other actors for whose locks each actor waits; nobody else, as autovacuum, holds one long."""
        if not actors:
            return {}
        pids = {actor: actor.pid or 0 for actor in actors}
        own = {actor.pid for actor in self.actors if actor.place is not Place.IDLE}
        rows = self._observer.execute(
            "select pid, pg_blocking_pids(pid) from unnest(%s::int[]) pid", [list(pids.values())]
        )
        found = {pid: own.intersection(by) for pid, by in rows}
        return {actor: found[pid] for actor, pid in pids.items()}

    def _stop(self, actor: Actor) -> None:
        with self.changed:
            if actor.place is Place.GOES:
                os.kill(actor.pid, signal.SIGSTOP)
                actor.place = Place.WAITS
                self.waiting.append(actor)

    def _continue(self, actor: Actor) -> None:
        with self.changed:
            self.waiting.remove(actor)
            if actor.place is Place.WAITS:
                actor.place = Place.GOES
            os.kill(actor.pid, signal.SIGCONT)

    def _gone_on(self) -> list[Actor]:
        """Those whose wait was over, by a deadlock that PostgreSQL found, just before their sessions were stopped."""
        return [actor for actor in self.waiting if actor.place is not Place.WAITS]

    def _are_there(self, pids: set[int]) -> bool:
        """Whether PostgreSQL still has one of these sessions; those that are gone are forgotten."""
        found = self._observer.execute("select pid from pg_stat_activity where pid = any(%s)", [list(pids)]).fetchall()
        pids &= {pid for (pid,) in found}
        return bool(pids)


def _text(query: Any) -> str:
    return " ".join(str(query.decode() if isinstance(query, bytes) else query).split())
