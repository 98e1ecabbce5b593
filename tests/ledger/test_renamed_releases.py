"""Dead letters from before a column was renamed are released after it, beside rows that had the old name."""

from __future__ import annotations

from ratchet.ledger.work import Run
from ratchet.operate import release, replay
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import DEAD_LETTERS

from .staging import always_active, contents, do
from .test_renames import LATER, NEW, OLD, Line, line, rows_of

__all__ = ["line"]


def given_up(spec, every: int = 5):
    """What `rows_of` makes, but for one record in so many."""
    good = rows_of(spec)

    def make(partition: int, offset: int) -> dict[str, list[dict]]:
        said = {"key": b"k", "value": b"v", "headers": None, "error": "odd" if offset % 2 else "even"}
        return good(partition, offset) if offset % every else {DEAD_LETTERS: [said]}

    return make


def runs(line: Line, spec, make) -> int:
    """Let runs do all that there is; how many."""
    done = 0
    while True:
        line.runs += 1
        run = Run("dag", f"run {line.runs}")
        begun = begin(line.ledger, spec, run, line.log.offsets, always_active)
        if not isinstance(begun, Begun):
            return done
        do(line.ledger, spec, begun, make)
        commit(line.ledger, spec, begun.claim)
        settle(line.ledger, spec, run, succeeded=True)
        done += 1


def test_what_is_released_after_a_rename_is_what_a_replay_would_give(line):
    line.log.stable = {0: 10, 1: 10}
    assert runs(line, OLD, given_up(OLD)) == 1
    release.ask(line.ledger, OLD, 1, 1, "even", "asked for with the old name", "me")
    line.run("alter table mine rename column a to x")
    migrate(line.ledger.url, [NEW])
    assert runs(line, NEW, rows_of(NEW)) == 1
    assert line.faults(NEW) == []
    release.ask(line.ledger, LATER, None, None, "", "the rest", "me")
    assert runs(line, LATER, rows_of(LATER)) == 1
    assert line.faults(LATER) == []
    released = contents(line.ledger, LATER)
    assert released[DEAD_LETTERS] == []
    replay.ask(line.ledger, LATER, 1, 1, "to compare", "me")
    assert runs(line, LATER, rows_of(LATER)) == 1
    assert contents(line.ledger, LATER) == released and line.faults(LATER) == []
