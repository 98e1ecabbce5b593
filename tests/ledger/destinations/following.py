"""Followers that tests hold up, or let go on at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ratchet.destinations.port import Destination, Outside, Owner
from ratchet.ledger.connection import Ledger
from ratchet.protocol.follow import Open, follow
from ratchet.spec.pipeline import Pipeline


@dataclass
class Late:
    """A follower that has taken a step's rows, and is stopped before the destination is asked to apply them."""

    ledger: Ledger
    spec: Pipeline
    opens: Open
    said: list[bool] = field(default_factory=list)
    """What the destination answers it in the end."""

    def __post_init__(self) -> None:
        self._is_there, self._go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=follow, args=(self.ledger, self.spec, self._stopped))
        self._thread.start()
        assert self._is_there.wait(60)

    def end(self) -> None:
        """Let it go on, to its end."""
        self._go_on.set()
        self._thread.join(60)

    @contextmanager
    def _stopped(self, destination: Destination, owner: Owner) -> Iterator[Outside]:
        with self.opens(destination, owner) as outside:
            apply = outside.apply

            def late(*given) -> bool:
                self._is_there.set()
                assert self._go_on.wait(60)
                self.said.append(apply(*given))
                return self.said[-1]

            outside.apply = late
            yield outside


def at_once(ledger: Ledger, spec: Pipeline, opens: Open, followers: int = 4) -> list[Exception]:
    """So many go on at the same time, each with connections of its own; what has failed."""
    gate, failed = threading.Barrier(followers), []

    def going() -> None:
        with Ledger(ledger.url) as own:
            gate.wait()
            try:
                follow(own, spec, opens)
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=going) for _ in range(followers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return failed
