"""Arrivals: whether the records that wait for a run are enough for one, or have waited for long enough."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.ledger.work import counted
from ratchet.spec.subscription import Subscription

Ends = Mapping[tuple[str, int], int]
"""{(topic, partition): an offset}."""

LOOK_ANYHOW_SECONDS = 15.0
"""A line whose topic has not grown is looked at again after so long: a person may have moved it."""
FIRST_SECONDS, MOST_SECONDS = 10.0, 60.0
"""A run that was started and changed nothing is started again after so long at first, and after so long at most."""
REST_SECONDS = 3.0
"""A line whose records nobody can take now, as where it is halted, is looked at again after so long."""
HELD_SECONDS = 60.0
"""So long a run that is there and does not begin is waited for: it may be for tomorrow."""
_SAMPLES = 100
"""How finely the ages of waiting records are known: to that part of the longest wait."""


@dataclass(frozen=True)
class Arriving:
    """A pipeline whose runs records start; `max_wait` is in seconds. `source` are its topics.

    If its line `begins_late`, it begins where the logs end when its first run does, so no record has to wait for that.
    """

    pipeline: str
    source: Subscription
    max_in_flight: int
    min_records: int
    max_wait: float
    begins_late: bool = False


class Arrived:
    """What has been seen of a pipeline's records, by a clock of the caller's, in seconds.

    Nobody knows how long what is there at the first look has waited; it counts as waiting for long enough.
    """

    def __init__(self, of: Arriving):
        self.of = of
        self._ends: Ends | None = None
        self._grown: deque[tuple[float, Ends]] = deque()
        """When the topic was first seen to reach so far, in order."""
        self._look_at, self._ask_at, self._pause = 0.0, 0.0, FIRST_SECONDS
        self._asked: object = ()
        self._held_since: float | None = None

    def sees(self, now: float, ends: Ends) -> bool:
        """Note how far the topics reach; whether the line has to be looked at."""
        if ends != self._ends:
            first = self._ends is None
            if not first and self._grown and now - self._grown[-1][0] < self.of.max_wait / _SAMPLES:
                # These count as older than they are, by no more than that.
                self._grown[-1] = self._grown[-1][0], ends
            else:
                self._grown.append((float("-inf") if first else now, ends))
            if len(self._grown) > 2 * _SAMPLES:
                # All of these have waited for long enough.
                since, _ = self._grown.popleft()
                self._grown[0] = since, self._grown[0][1]
            self._ends, self._look_at = ends, now
        return now >= self._look_at

    def waiting(self, now: float, planned: Ends) -> int:
        """How many offsets wait beyond the plans; without any, the line is looked at again when the topic grows."""
        assert self._ends is not None, "it was seen before"
        while self._grown and all(planned.get(p, 0) >= at for p, at in self._grown[0][1].items()):
            self._grown.popleft()
        found = sum(max(0, at - planned.get(p, 0)) for p, at in self._ends.items())
        self._look_at = now if found else now + LOOK_ANYHOW_SECONDS
        return found

    def why(self, now: float, records: int) -> str | None:
        """Why so many records are a reason for a run, in a line; None if they are none yet."""
        if records >= self.of.min_records:
            return counted(records, "record waits", "records wait")
        since = self._grown[0][0] if self._grown else now
        if records and now - since >= self.of.max_wait:
            waited = f"have waited for {now - since:.0f} s" if since > float("-inf") else "wait since before this watch"
            return f"{counted(records, 'record')} {waited}"
        return None

    def may_ask(self, now: float, at: object) -> bool:
        """Whether a run may be asked for while the line stands there; not again at once, if nothing has come of it."""
        return at != self._asked or now >= self._ask_at

    def asked(self, now: float, at: object) -> None:
        """Note that a run was asked for."""
        self._pause = min(2 * self._pause, MOST_SECONDS) if at == self._asked else FIRST_SECONDS
        self._asked, self._ask_at = at, now + self._pause

    def forgets_asking(self) -> None:
        """Nothing can be begun now; once it can, as after a pause, a run that came to nothing before says nothing."""
        self._asked = ()

    def holds(self, now: float, is_coming: bool) -> bool:
        """Whether to wait for a run that is there and is still to begin, if one is."""
        if not is_coming:
            self._held_since = None
            return False
        self._held_since = now if self._held_since is None else self._held_since
        return now - self._held_since < HELD_SECONDS

    def rests(self, now: float) -> None:
        """Look again a little later, unless the topic grows: nothing can be begun now, whatever waits."""
        self._look_at = now + REST_SECONDS
