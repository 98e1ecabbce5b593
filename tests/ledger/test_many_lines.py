"""Two hundred lines, one of a hundred thousand transactions: what each thing that a person sees takes, and looks at."""

from __future__ import annotations

import time

import pytest

from benchmarks.looked import looked_at
from ratchet.operate.snapshot import letters, places, timeline, transaction
from ratchet.operate.snapshot.lag import lags
from ratchet.operate.snapshot.status import statuses
from ratchet.source.topics import Ends

from .crowd import LONG, crowd, names_of
from .staging import SPEC, committed


@pytest.fixture
def many(ledger, log):
    """The lines; half of the short ones are halted, with a transaction prepared behind."""
    log.stable = {p: 2_000_000 for p in (0, 1)}
    committed(ledger, log, "first")
    crowd(ledger.url, SPEC.name)
    ledger.engine.dispose()
    return ledger


@pytest.mark.all
@pytest.mark.timeout(900)
def test_everything_is_seen_within_a_second_whatever_came_before(many, log):
    names = names_of("line")
    ends = {"t": Ends("t", "first", log.beginning, log.stable, 3_600_000, None, {})}

    def within(look):
        def step():
            with many.snapshot() as conn:
                return look(conn)

        return step

    steps = {
        "all pipelines": (within(lambda conn: statuses(conn, names)), 150_000),
        "lag of all": (within(lambda conn: lags(conn, names, ends)), 150_000),
        "timeline, newest": (lambda: timeline.timeline(many, "line"), 3_000),
        "timeline, middle": (lambda: timeline.timeline(many, "line", LONG // 2), 3_000),
        "one transaction": (lambda: transaction.transaction(many, "line", LONG // 2), 3_000),
        "where": (lambda: places.where(many, SPEC, 0, 5 * LONG), 3_000),
        "origin": (lambda: places.origins(many, SPEC, "totals", {"k": "0"}), 3_000),
        "dead letters": (lambda: letters.counts(many, "line"), 3_000),
        "letters": (lambda: letters.letters(many, "line"), 3_000),
    }
    for name, (step, most) in steps.items():
        step()
        started = time.monotonic()
        step()
        took = time.monotonic() - started
        with looked_at(many) as seen:
            step()
        print(f"{name}: {1_000 * took:.0f} ms, {len(seen.statements)} statements, {seen.rows:,} rows")
        assert seen.rows < most, f"{name}: {seen.rows:,} rows, of which {seen.most:,} by {seen.by}"
        assert took < 1, f"{name} took {took:.2f} s"
    found = steps["all pipelines"][0]()
    assert [name for name, of in found.items() if of.halt == 299] == names[101:]
    assert (found["line"].last_txid, found["line150"].head, found["line050"].head) == (LONG, 298, 300)
