"""Keys with many deltas: a commit reads as few rows as with few deltas, and so does a revision of last rows."""

from __future__ import annotations

import pytest

from benchmarks.keyed import KeyedLine
from ratchet import Accumulate, Upsert

KEYS, FEW, MANY = 8, 100, 2_000
READ = 40 * KEYS
"""What is read of deltas and state at most: each row of the transaction a few times, and a few more of its key."""
SINKS = {
    "latest": Upsert("of_keys", key="k string", columns="a bigint"),
    "newest": Upsert("of_keys", key="k string, z int", columns="at bigint, a bigint", order="at"),
    "newest of strict keys": Upsert("of_keys", key="k string", columns="at bigint not null, a bigint", order="at"),
    "sums": Accumulate("of_keys", key="k string, z int", sum="a bigint", min="a bigint", count="n"),
}


@pytest.mark.parametrize("analyze", [pytest.param(False, marks=pytest.mark.all), True], ids=["guessed", "analyzed"])
@pytest.mark.parametrize("deletes", [False, True], ids=["kept", "deleted"])
@pytest.mark.parametrize("sink", SINKS)
def test_what_a_commit_and_a_revision_read_does_not_grow_with_the_deltas_of_their_keys(
    ledger_url, sink, deletes, analyze
):
    if sink == "sums" and deletes:
        pytest.skip("nothing is deleted there")
    with KeyedLine(ledger_url, "line", SINKS[sink], KEYS, deletes) as line:
        line.commit("first")
        line.lengthen(MANY // 2, KEYS, analyze)
        line.commit("middle")
        line.lengthen(MANY, KEYS, analyze)
        for run in "ab":
            line.commit(run)
            assert line.rows_read <= READ, run
        line.commit("middle", 1)
        # Sums are folded from all deltas of their keys, before the commit lock is taken.
        assert line.rows_read <= READ + (3 * KEYS * MANY if sink == "sums" else 0)
        assert line.rows_locked <= READ
        line.check()
