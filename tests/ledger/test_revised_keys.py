"""Revisions of sinks with keys beside what stands around them: later transactions, and other sinks."""

from __future__ import annotations

import pytest

from ratchet import Accumulate
from ratchet.errors import Refused
from ratchet.operate.migrate import migrate
from ratchet.operate.verify import verify
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote

from .staging import SPEC, a_try, is_whole, positions, prepare, rows_of, start, vote_of, write_all


def test_a_revision_that_does_not_go_before_a_later_transaction_is_refused(ledger, log):
    """Without an order column a key must stay in its partition, also in what is revised."""
    first = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    second = start(ledger, SPEC, log, "b")
    for part in second.slices:
        work = a_try(ledger, second, part.number)
        rows = rows_of(SPEC, work)
        rows["latest"] = [{**row, "k": "x"} for row in rows["latest"] if row["_partition"] == 1]
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, write_all(ledger, SPEC, work, rows)))
    commit(ledger, SPEC, second.claim)
    again = start(ledger, SPEC, log, "a", 1)
    for part in again.slices:
        work = a_try(ledger, again, part.number)
        rows = rows_of(SPEC, work)
        rows["latest"] = [{**row, "k": "x"} for row in rows["latest"] if row["_partition"] == 0]
        cast_vote(ledger, SPEC, work.token, vote_of(SPEC, work, write_all(ledger, SPEC, work, rows)))
    with pytest.raises(Refused, match="key x is in partition 0 at offset 9 and in partition 1 at offset 19"):
        commit(ledger, SPEC, again.claim)
    is_whole(ledger, first, second)


def test_two_sinks_of_one_name_in_two_schemas_can_be_revised(ledger, log):
    sinks = [Accumulate(f"{schema}.x", key="k string", count="n") for schema in ("one", "two")]
    spec = SPEC.model_copy(update={"name": "twins", "sinks": sinks})
    migrate(ledger.url, [spec])
    for clear_number in (0, 1):
        begun = start(ledger, spec, log, "a", clear_number)
        for part in begun.slices:
            work = a_try(ledger, begun, part.number, spec)
            rows = [{"k": str(p), "n": 1} for p, _ in positions(work)]
            made = write_all(ledger, spec, work, {sink.name: rows for sink in sinks})
            cast_vote(ledger, spec, work.token, vote_of(spec, work, made))
        assert commit(ledger, spec, begun.claim).txids == (1,)
    assert [fault for check in verify(ledger, spec) for fault in check.faults] == []
