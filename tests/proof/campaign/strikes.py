"""Strikes: what happens to the stack in a campaign, fault upon fault, by several hands at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psutil
import psycopg

from tests.proof.faults.fault import Fault, NotNow, has_struck

from .record import NOT_NOW, STRUCK, FaultRecord

_NOT_NOW = (NotNow, psutil.Error, psycopg.OperationalError)
"""There is nothing to strike, or another hand has just struck what would be needed for it."""


@dataclass
class Hand:
    """Strikes one fault after the other: all kinds in turn, in an order that the seed gives, and again.

    `pause` is how many seconds lie between two of its faults, at least and at most; `clock` says how many have passed
    since the part began. Every fault is told when it is healed, also one that found nothing to strike. Nobody is struck
    while `is_held`.
    """

    name: str
    faults: list[Fault]
    pause: tuple[float, float]
    random: random.Random
    is_over: threading.Event
    clock: Callable[[], float]
    is_held: Callable[[], bool]
    tell: Callable[[FaultRecord], None]
    error: BaseException | None = field(default=None, init=False)
    """What has ended it before its time."""

    def start(self) -> threading.Thread:
        """Begin; it goes on until `is_over`, and its last fault is healed then."""
        thread = threading.Thread(target=self._run, name=self.name)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            for fault in self._in_turn():
                pause = self.random.uniform(*self.pause)
                while not self.is_over.wait(pause) and self.is_held():
                    pause = 1.0
                if self.is_over.is_set():
                    return
                self._strike(fault)
        except BaseException as error:
            self.error = error
            self.is_over.set()

    def _in_turn(self) -> Iterator[Fault]:
        while True:
            yield from self.random.sample(self.faults, len(self.faults))

    def _strike(self, fault: Fault) -> None:
        struck_at, found = self.clock(), True
        try:
            fault.strike()
            self.is_over.wait(fault.seconds)
        except _NOT_NOW:
            found = False
        finally:
            fault.heal()
        if found and has_struck(fault):
            self.tell(FaultRecord(fault.kind, struck_at, self.clock(), STRUCK, target=self.name))
        else:
            self.tell(FaultRecord(fault.kind, struck_at, None, NOT_NOW, target=self.name))
