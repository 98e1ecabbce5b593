"""Transactions of many keys: what they take grows with their rows, and not with the square of them."""

from __future__ import annotations

import time

import pytest

from ratchet import Accumulate, Json, Pipeline, Topic, Upsert
from ratchet.commit import Committed, commit
from ratchet.ledger import Ledger
from ratchet.migrate import migrate
from ratchet.verify import verify
from ratchet.votes import cast_vote, take_try

from .staging import positions, start, vote_of, write

KEYS = 20_000
SECONDS = 10.0
"""Twenty times what a commit takes, and a third of what it took when all keys were compared with all."""

SPEC = Pipeline(
    name="many",
    source=Topic("t", key="k string", value=Json("a bigint")),
    transform="tests.integration.staging:rows_of",
    sinks=[
        Upsert("last_of_key", key="k string", columns="a bigint"),
        Upsert("last_of_two", key="k string, z int", columns="a bigint", order="a"),
        Accumulate("sum_of_two", key="k string, z int", sum="a bigint", count="n"),
    ],
    max_records=KEYS,
    slice_records=KEYS,
)


@pytest.fixture
def ledger(ledger_url):
    migrate(ledger_url, [SPEC])
    with Ledger(ledger_url) as opened:
        yield opened


def test_keys_with_and_without_nulls_are_committed_and_revised_in_time(ledger, log):
    log.stable = {0: KEYS, 1: KEYS}
    for run, clear_number in (("a", 0), ("b", 0), ("a", 1)):
        begun = start(ledger, SPEC, log, run, clear_number)
        for part in begun.slices:
            work = take_try(ledger, SPEC, begun.claim, part.number)
            staged = rows(work)
            sinks = {name: write(ledger, SPEC, work, name, of) for name, of in staged.items()}
            cast_vote(ledger, SPEC, work.token, vote_of(SPEC, KEYS, sinks))
        began = time.monotonic()
        done = commit(ledger, SPEC, begun.claim)
        took = time.monotonic() - began
        assert isinstance(done, Committed) and took < SECONDS
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []


def rows(work) -> dict[str, list[dict]]:
    """Every key once in a transaction, of two columns one without a value; every seventh is a deletion."""
    at = [{"_partition": p, "_offset": o, "_n": 0} for p, o in positions(work)]
    one = [{"k": f"{r['_partition']}-{r['_offset'] % (KEYS // 2)}", "a": r["_offset"], **r} for r in at]
    one = [{**row, "_deleted": row["_offset"] % 7 == 0} for row in one]
    summed = [{"k": row["k"], "z": None, "a_sum": row["a"], "n": 1} for row in one]
    return {"last_of_key": one, "last_of_two": [{**row, "z": None} for row in one], "sum_of_two": summed}
