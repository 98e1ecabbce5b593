"""Transactions of many keys: what they take grows with their rows, and not with the square of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from ratchet import Accumulate, Json, Pipeline, Topic, Upsert
from ratchet.errors import NotMigrated
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import SliceWork
from ratchet.operate.verify import verify
from ratchet.protocol.begun import Begun
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.votes import cast_vote, take_try

from .staging import Log, positions, start, vote_of, write_all

KEYS = 20_000
SECONDS = 10.0
"""Twenty times what a commit takes, and a third of what it took when all keys were compared with all."""

SPEC = Pipeline(
    name="many",
    source=Topic("t", key="k string", value=Json("a bigint")),
    transform="tests.ledger.staging:rows_of",
    sinks=[
        Upsert("last_of_key", key="k string", columns="a bigint"),
        Upsert("last_of_two", key="k string, z int", columns="a bigint", order="a"),
        Accumulate("sum_of_two", key="k string, z int", sum="a bigint", count="n"),
    ],
    max_records=KEYS,
    slice_records=KEYS,
)


@pytest.fixture
def migrated():
    return [SPEC], ""


@pytest.mark.all
def test_keys_with_and_without_nulls_are_committed_and_revised_in_time(ledger, log):
    log.stable = {0: KEYS, 1: KEYS}
    for run, clear_number in (("a", 0), ("b", 0), ("a", 1)):
        begun = prepare(ledger, log, run, clear_number, every_key)
        began = time.monotonic()
        done = commit(ledger, SPEC, begun.claim)
        took = time.monotonic() - began
        assert isinstance(done, Committed) and took < SECONDS
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []


def test_a_key_column_that_somebody_has_made_wider_is_told_before_anything_is_begun(ledger, ledger_url, log):
    with psycopg.connect(ledger_url) as conn:
        conn.execute("alter table last_of_two alter column z type numeric")
    with pytest.raises(NotMigrated, match="last_of_two.z is NUMERIC, the spec declares INTEGER.*put the old type back"):
        start(ledger, SPEC, log, "a")


def prepare(
    ledger: Ledger, log: Log, run: str, clear_number: int, make: Callable[[SliceWork], dict[str, list[dict]]]
) -> Begun:
    """Begin, stage and vote what `make` gives for each slice."""
    begun = start(ledger, SPEC, log, run, clear_number)
    for part in begun.slices:
        work = take_try(ledger, SPEC, begun.claim, part.number)
        sinks = write_all(ledger, SPEC, work, make(work))
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, sinks))
    return begun


def every_key(work: SliceWork) -> dict[str, list[dict]]:
    """Every key once in a transaction, of two columns one without a value; every seventh is a deletion."""
    at = [{"_partition": p, "_offset": o, "_n": 0} for p, o in positions(work)]
    one = [{"k": f"{r['_partition']}-{r['_offset'] % (KEYS // 2)}", "a": r["_offset"], **r} for r in at]
    one = [{**row, "_deleted": row["_offset"] % 7 == 0} for row in one]
    summed = [{"k": row["k"], "z": None, "a_sum": row["a"], "n": 1} for row in one]
    return {"last_of_key": one, "last_of_two": [{**row, "z": None} for row in one], "sum_of_two": summed}
