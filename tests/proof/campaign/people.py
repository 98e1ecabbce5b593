"""People: what users do in the midst of it all, by Airflow's buttons, by the command, and by what they deploy."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import psycopg

from .line import GIVEN_UP, CampaignLine
from .record import OperationRecord

PAUSE = (15.0, 45.0)
"""Seconds between two operations."""
FULL = "runs are waiting"
"""Then nobody asks for more work: what is cleared again and again is never done."""


@dataclass
class People:
    """Somebody who clears runs, active or committed, or single tasks, starts others, and marks some failed.

    By the command transactions are replayed, aborted and voided, and voided ones replayed; specs change, with and
    without columns, and back. First of all a line that is halted is retried, what is left of a deployment done, and
    what has steps of a ledger that is gone attached anew.
    """

    lines: list[CampaignLine]
    random: random.Random
    is_over: threading.Event
    clock: Callable[[], float]
    done: list[OperationRecord] = field(default_factory=list)
    error: BaseException | None = field(default=None, init=False)

    def start(self) -> threading.Thread:
        """Begin; until `is_over`."""
        thread = threading.Thread(target=self._run, name="people")
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            while not self.is_over.wait(self.random.uniform(*PAUSE)):
                for line in self.lines:
                    self._do("finish deploying", CampaignLine.finish_deploying, line)
                    self._do("retry", CampaignLine.retry_halted, line)
                    self._do("attach anew", lambda line: line.attach(), line)
                line = self.random.choice(self.lines)
                what, do = self.random.choice(
                    [
                        ("trigger", self._trigger),
                        ("clear", self._clear),
                        ("clear", self._clear),
                        ("clear one task", self._clear_task),
                        ("clear what runs", self._clear_active),
                        ("mark failed", self._mark_failed),
                        ("deploy", self._deploy),
                        ("deploy", self._deploy),
                        ("replay", self._replay),
                        ("cancel replays", self._cancel_replays),
                        ("abort", self._abort),
                        ("void", self._void),
                        ("replay what is voided", self._replay_voided),
                    ]
                )
                self._do(what, do, line)
        except BaseException as error:
            self.error = error
            self.is_over.set()

    def _do(self, what: str, do: Callable[[CampaignLine], str | None], line: CampaignLine) -> None:
        at = self.clock()
        try:
            said = do(line)
        except (httpx.HTTPError, psycopg.Error, AssertionError, subprocess.TimeoutExpired) as error:
            # A server is down, or Airflow refuses: a person would try something else.
            said = f"refused: {str(error).splitlines()[0][:120] if str(error) else type(error).__name__}"
        if said is not None:
            self.done.append(OperationRecord(at, what, line.name, said))

    def _trigger(self, line: CampaignLine) -> str:
        return FULL if _is_full(line) else line.trigger()

    def _clear(self, line: CampaignLine) -> str:
        return self._to_committed(line, line.clear)

    def _clear_task(self, line: CampaignLine) -> str:
        task, downstream = self.random.choice(["begin", "commit", "settle"]), self.random.random() < 0.5
        said = self._to_committed(line, lambda run: line.clear_task(run, task, downstream=downstream))
        return f"{task}: {said}"

    def _clear_active(self, line: CampaignLine) -> str:
        """All of its tasks are tried once more, while those that run are only being told to end."""
        return self._to_active(line, line.clear)

    def _mark_failed(self, line: CampaignLine) -> str:
        return self._to_active(line, line.mark_failed)

    def _deploy(self, line: CampaignLine) -> str:
        """The next version, or the one before; the first has columns too few once it has gone."""
        now, last = line.published, len(line.versions) - 1
        following = self.random.choice([n for n in (now - 1, now + 1) if 1 <= n <= last] or [0])
        migrate_first = self.random.random() < 0.5
        line.deploy(following, migrate_first=migrate_first)
        return f"version {following}, migrated {'first' if migrate_first else 'afterwards'}"

    def _replay(self, line: CampaignLine) -> str:
        """Of the latest fifty, one or two in a row."""
        if _is_full(line) or line.waiting_replays():
            return FULL
        return self._to_transaction(
            line, "COMMITTED", lambda txid: self._ask_for(line, txid, self.random.randint(0, 1))
        )

    def _replay_voided(self, line: CampaignLine) -> str:
        return self._to_transaction(line, "VOIDED", lambda txid: self._ask_for(line, txid, 0, "--voided"))

    def _ask_for(self, line: CampaignLine, txid: int, more: int, *said: str) -> str:
        until = str(txid + more)
        return line.command("replay", line.name, "--from", str(txid), "--to", until, "--reason", GIVEN_UP, *said)

    def _cancel_replays(self, line: CampaignLine) -> str:
        waiting = line.waiting_replays()
        if not waiting:
            return "no replay waits"
        return self._ask_for(line, waiting[0], waiting[-1] - waiting[0], "--cancel")

    def _abort(self, line: CampaignLine) -> str:
        return self._to_transaction(
            line, "unfinished", lambda txid: line.command("abort", line.name, str(txid), "--reason", GIVEN_UP)
        )

    def _void(self, line: CampaignLine) -> str:
        return self._to_transaction(
            line, "unfinished", lambda txid: line.command("void", line.name, str(txid), "--reason", GIVEN_UP)
        )

    def _to_transaction(self, line: CampaignLine, state: str, do: Callable[[int], str]) -> str:
        """To a transaction of the latest fifty whose original is in this state; and what is said, in a line."""
        txids = line.txids(state)
        if not txids:
            return f"nothing is {state}"
        txid = self.random.choice(txids[:50])
        return f"{txid}: {' '.join(do(txid).split())[:200]}"

    def _to_active(self, line: CampaignLine, do: Callable[[str], None]) -> str:
        active = line.active()
        if not active:
            return "no run is active"
        run = self.random.choice(active)
        do(run)
        return run

    def _to_committed(self, line: CampaignLine, do: Callable[[str], None]) -> str:
        """To a run whose transaction is committed, of the latest fifty."""
        if _is_full(line):
            return FULL
        rows = line._ledger.execute(
            "select run_id from ratchet.transactions where pipeline = %s and state = 'COMMITTED' and revision = 0 "
            "order by txid desc limit 50",
            [line.name],
        ).fetchall()
        if not rows:
            return "nothing is committed yet"
        run = self.random.choice(rows).run_id
        do(run)
        return run


def _is_full(line: CampaignLine) -> bool:
    """Whether runs of it wait until Airflow starts them."""
    return bool(line.active(None, "queued"))
