"""Watching topics: all pipelines of a triggerer whose runs records start share a thread, a client and a session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowRuntimeError

from ratchet.airflow import connections
from ratchet.airflow.started import begins_to_come
from ratchet.errors import BrokerUnreachable, LedgerUnreachable, RatchetError, UnknownTopic
from ratchet.ledger.work import counted
from ratchet.logs import about, get_logger, quiet_clients
from ratchet.protocol.arrivals import Arrived, Arriving
from ratchet.spec.subscription import Subscription

if TYPE_CHECKING:
    from ratchet.ledger.connection import Ledger
    from ratchet.operate.attention import Standing
    from ratchet.source.kafka import Kafka

LOOK_SECONDS, BUSY_SECONDS = 0.5, 2.0
"""How long until Kafka is asked again how far the topics reach; if longer, five times as long as the answer took, so
that a thousand topics do not take a core, but at most so long."""
MOST_SECONDS = 15.0
"""After a loss it is asked again after twice as long each time, at most after so long."""
FRESH_SECONDS = 600.0
"""How long connections are used before they are looked up anew: a watch outlives a password."""


@dataclass(eq=False)
class _Watch:
    arrived: Arrived
    told: asyncio.Queue[str] = field(default_factory=asyncio.Queue[str])
    has_said: str | None = None
    """What was last said of it, so that it is said once."""

    @property
    def of(self) -> Arriving:
        return self.arrived.of

    def say(self, line: str | None) -> None:
        """Say it if it is news; None where all is well."""
        if line is not None and line != self.has_said:
            with about(self.of.pipeline):
                get_logger().warning(line)
        self.has_said = line


class Watching:
    """The pipelines that are watched in one event loop, by one pair of Airflow connections to Kafka and a ledger.

    What they need is asked in a thread: the clients would block the loop. A loss of Kafka, the ledger or Airflow is
    said once, and ends no watch.
    """

    def __init__(self, kafka: str, ledger: str, is_over: Callable[[], object] = lambda: None):
        self._connections, self._is_over = (kafka, ledger), is_over
        self._watches: set[_Watch] = set()
        self._serving: asyncio.Task[None] | None = None

    async def watch(self, arriving: Arriving) -> AsyncIterator[str]:
        """Why a run should be started, each time that one should."""
        watch = _Watch(Arrived(arriving))
        self._watches.add(watch)
        if self._serving is None or self._serving.done():
            # In a context of its own: what it says is no part of the log of the watch that happens to be the first.
            self._serving = asyncio.get_running_loop().create_task(self._serve(), context=Context())
        try:
            while True:
                yield await watch.told.get()
        finally:
            self._watches.discard(watch)

    async def _serve(self) -> None:
        quiet_clients()
        loop, look = asyncio.get_running_loop(), _Look(*self._connections)
        # One thread of its own, so that a server that does not answer takes none from others.
        thread = ThreadPoolExecutor(1, "ratchet-watch")
        pause, lost = LOOK_SECONDS, False
        try:
            while self._watches:
                began = time.monotonic()
                try:
                    found, error = await loop.run_in_executor(thread, look.look, list(self._watches))
                    for watch, why in found:
                        watch.told.put_nowait(why)
                    if error is not None:
                        raise error
                    if lost:
                        get_logger().info("the servers answer again, pipelines are watched")
                    took = time.monotonic() - began
                    pause, lost = max(LOOK_SECONDS, min(5 * took, BUSY_SECONDS)), False
                except Exception as error:
                    if not lost:
                        get_logger().warning(
                            f"{counted(len(self._watches), 'pipeline is', 'pipelines are')} not watched, "
                            f"tries again: {_said(error)}"
                        )
                    pause, lost = min(2 * pause, MOST_SECONDS), True
                    with suppress(Exception):
                        await loop.run_in_executor(thread, look.close)
                await asyncio.sleep(pause)
        finally:
            self._is_over()
            with suppress(RuntimeError):
                thread.submit(look.close)
            thread.shutdown(wait=False)


def _ends_of(
    source: Subscription, stable: Mapping[str, Mapping[int, int]]
) -> tuple[dict[tuple[str, int], int], str | None]:
    """({(topic, partition): its end}, what of the topics is not there, as people read it)."""
    names = [name for name in source.names if name not in stable]
    wanted = [name for name in stable if source.wants(name)]
    missing = f"topic {names[0]!r}" if names else None
    if not wanted and source.pattern is not None:
        missing = f"a topic that matches {source.pattern!r}"
    return {(name, p): at for name in wanted for p, at in stable[name].items()}, missing


def _said(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if isinstance(error, RatchetError) else f"{type(error).__name__}: {line}"


class _Look:
    """One look at many pipelines after another, over connections that are kept."""

    def __init__(self, kafka: str, ledger: str):
        self._names = kafka, ledger
        self._open = ExitStack()
        self._servers: tuple[Kafka, Ledger] | None = None
        self._until = 0.0

    def close(self) -> None:
        """Close the connections; the next look makes others."""
        self._servers = None
        self._open.close()

    def _connected(self) -> tuple[Kafka, Ledger]:
        from ratchet.ledger.connection import Ledger
        from ratchet.source.kafka import Kafka

        if self._servers is None or time.monotonic() > self._until:
            self.close()
            kafka, ledger = self._names
            brokers = self._open.enter_context(Kafka(connections.kafka_properties(kafka)))
            book = self._open.enter_context(Ledger(connections.ledger_url(ledger), "ratchet watch", waits=False))
            self._servers, self._until = (brokers, book), time.monotonic() + FRESH_SECONDS
        return self._servers

    def look(self, watches: list[_Watch]) -> tuple[list[tuple[_Watch, str]], Exception | None]:
        """Of which pipelines a run should be started now, and why; and what has ended the look too early."""
        from ratchet.operate import attention

        brokers, ledger = self._connected()
        patterns = [watch.of.source for watch in watches if watch.of.source.pattern is not None]
        stable = brokers.stable_of({name for watch in watches for name in watch.of.source.names}, patterns)
        now = time.monotonic()
        grown: list[_Watch] = []
        for watch in watches:
            found, missing = _ends_of(watch.of.source, stable)
            if missing is not None:
                watch.say(f"{missing} is not there, or a partition of it has no leader; watches for it")
            elif watch.arrived.sees(now, found):
                grown.append(watch)
        if not grown:
            return [], None
        with ledger.begin() as conn:
            standings = attention.standings(conn, [watch.of.pipeline for watch in grown])
        reasons: list[tuple[_Watch, str]] = []
        for watch in grown:
            try:
                why = self._why(watch, standings.get(watch.of.pipeline), now)
            except Exception as error:
                # What was found for others is noted as asked for, and so it is.
                return reasons, error
            if why is not None:
                reasons.append((watch, why))
        return reasons, None

    def _why(self, watch: _Watch, standing: Standing | None, now: float) -> str | None:
        """Why a run should be started now, which its begin will find as well; None if none should."""
        arrived, of = watch.arrived, watch.of
        if standing is None and of.begins_late:
            # Records that came before its first run would be no part of the line.
            if not arrived.may_ask(now, None) or arrived.holds(now, self._is_begun_soon(of)):
                return None
            arrived.asked(now, None)
            return "the line begins with this run, at the last stable offsets"
        records = arrived.waiting(now, standing.line.topics.places(standing.planned) if standing else {})
        is_between = standing is not None and standing.is_between
        if not is_between and arrived.why(now, records) is None:
            return None
        at = (standing.line.last_txid, standing.line.head) if standing else None
        if standing and not standing.line.has_room(of.max_in_flight):
            arrived.forgets_asking()
            return None
        if not arrived.may_ask(now, at):
            return None
        why = self._certainly(watch, now)
        if why is None or arrived.holds(now, self._is_begun_soon(of)):
            return None
        arrived.asked(now, at)
        return why

    def _certainly(self, watch: _Watch, now: float) -> str | None:
        """The same by all that begin goes by. What stops a begin is a reason too: its run tells people."""
        from ratchet.protocol.another import arrived_records

        brokers, ledger = self._connected()
        of = watch.of
        try:
            found = arrived_records(ledger, of.pipeline, of.max_in_flight, partial(brokers.offsets, of.source))
        except (BrokerUnreachable, LedgerUnreachable):
            raise
        except UnknownTopic as error:
            watch.say(str(error))
            return None
        except RatchetError as error:
            watch.say(str(error))
            return f"what waits cannot be taken: {error}"
        watch.say(None)
        if found is None:
            watch.arrived.rests(now)
            return None
        return watch.arrived.why(now, found.records)

    @staticmethod
    def _is_begun_soon(of: Arriving) -> bool:
        """Whether a run of the pipeline is there that is still to begin, also one of a DAG that is paused."""
        try:
            return begins_to_come(of.pipeline) > 0
        except AirflowRuntimeError as error:
            get_logger().warning(f"{of.pipeline}: Airflow does not say whether a run is about to begin: {error}")
            return True


_OF: dict[tuple[asyncio.AbstractEventLoop, str, str], Watching] = {}
"""By event loop and names of the Airflow connections, while anything is watched."""


async def watch(kafka: str, ledger: str, arriving: Arriving) -> AsyncIterator[str]:
    """Why a run should be started, each time; together with whatever else this event loop watches there."""
    key = asyncio.get_running_loop(), kafka, ledger
    if key not in _OF:
        _OF[key] = Watching(kafka, ledger, is_over=lambda: _OF.pop(key, None))
    async for why in _OF[key].watch(arriving):
        yield why
