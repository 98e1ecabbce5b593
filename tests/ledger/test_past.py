"""What a line costs does not grow with its past: each step looks at the newest rows, and finds them by an index."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from benchmarks.looked import looked_at
from benchmarks.past import grow
from ratchet.errors import IllegalMove
from ratchet.ledger import history
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss, retry, void
from ratchet.operate.effects import effects_of
from ratchet.operate.repartition import repartitioned
from ratchet.operate.snapshot.status import status
from ratchet.operate.upkeep import clean, upkeep
from ratchet.protocol.another import abandoned_work, wants_another_run
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.plan import reached, taken_by

from .staging import SPEC, always_active, committed, do_slice, fail, start

PAST, EARLY = 2_000, 50
FEW = 150
"""Rows and entries of indexes: more than any step looks at, and far fewer than there are."""
WHEN = datetime(2013, 1, 1, tzinfo=UTC)
KEPT = SPEC.model_copy(
    update={"sinks": [SPEC.sinks[0].model_copy(update={"keep": timedelta(days=90)}), *SPEC.sinks[1:]]}
)


@pytest.fixture(params=["none", pytest.param("of a short past", marks=pytest.mark.all), "of the whole past"])
def aged(request, ledger, log):
    """A line with a long past, and PostgreSQL's statistics as they may be: a restored ledger has none for a while."""
    committed(ledger, log, "first")
    with psycopg.connect(ledger.url, autocommit=True) as conn:
        for table in ("transactions", "ranges", "slices", "events", "runs"):
            conn.execute(f"alter table ratchet.{table} set (autovacuum_enabled = false)")
        grow(ledger.url, SPEC.name, EARLY)
        if request.param == "of a short past":
            conn.execute("analyze")
        grow(ledger.url, SPEC.name, PAST)
        if request.param == "of the whole past":
            conn.execute("analyze")
    # A plan for any parameters lives as long as its session, and a task is a new one.
    ledger.engine.dispose()
    log.stable = {p: 10 * PAST + 20 for p in (0, 1)}
    return ledger


def test_with_a_long_past_every_step_looks_at_few_rows(aged, log):
    def few(step):
        with looked_at(aged) as seen:
            done = step()
        assert seen.most < FEW, f"{seen.most:,} rows by {seen.by}"
        assert seen.rows < 4 * FEW
        return done

    begun = few(lambda: start(aged, SPEC, log, "next"))
    assert begun.claim.txid == PAST + 1
    assert few(lambda: wants_another_run(aged, SPEC, log.offsets, always_active)) is not None
    few(lambda: do_slice(aged, SPEC, begun, 0))
    few(lambda: settle(aged, SPEC, Run("dag", "next"), succeeded=False))
    assert few(lambda: abandoned_work(aged, SPEC, always_active)) is not None
    adopted = few(lambda: start(aged, SPEC, log, "heir"))
    assert adopted.how == "adopted"
    few(lambda: do_slice(aged, SPEC, adopted, 1))
    assert few(lambda: status(aged, SPEC.name)).unfinished[0].txid == PAST + 1
    done = few(lambda: commit(aged, SPEC, adopted.claim))
    assert len(few(lambda: effects_of(aged, adopted.claim, done.txids, besides=4)).transactions) == 1
    few(lambda: settle(aged, SPEC, Run("dag", "heir"), succeeded=True))
    few(lambda: list(upkeep(aged, KEPT, always_active)))
    few(lambda: list(clean(aged, KEPT)))
    with aged.begin() as conn:
        line = read_line(conn, SPEC.name)
    until = 10 * PAST

    def looked_up(of):
        with aged.begin() as conn:
            return of(conn)

    assert few(lambda: looked_up(lambda conn: reached(conn, line))) == (1, {0: until + 10, 1: until + 10})
    # The middle one of the past, and one whose run is repeated or cleared.
    assert few(lambda: looked_up(lambda conn: taken_by(conn, line, {0: until // 2, 1: 5}))) == PAST // 2
    assert [e.txid for e in few(lambda: looked_up(lambda conn: history.read(conn, SPEC.name, 7)))] == [7] * 8
    assert (
        few(lambda: begin(aged, SPEC, Run("dag", "first+6"), log.offsets, always_active)).reason == "committed_before"
    )
    revised = few(lambda: start(aged, SPEC, log, "first+6", 1))
    assert (revised.how, revised.claim.txid) == ("revised", 7)
    few(lambda: settle(aged, SPEC, Run("dag", "first+6", 1), succeeded=False))
    with pytest.raises(IllegalMove, match="there is no loss to accept"):
        few(lambda: accept_loss(aged, SPEC, log.offsets, "none", "me", dry_run=True))
    for run in "abcde":
        few(lambda run=run: fail(aged, log, run))
    assert few(lambda: status(aged, SPEC.name)).halt
    few(lambda: retry(aged, SPEC, None, "me"))
    few(lambda: void(aged, SPEC, PAST + 2, "none", "me", dry_run=True))
    log.beginning[2] = log.stable[2] = 0
    few(lambda: repartitioned(aged, SPEC, log.offsets, "none", "me", dry_run=True))
