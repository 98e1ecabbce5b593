"""Revisions of sinks with keys beside what stands around them: later transactions, and other sinks."""

from __future__ import annotations

from functools import partial

import pytest

from ratchet import Accumulate
from ratchet.errors import Fenced, Refused
from ratchet.ledger.work import Run
from ratchet.operate.actions import abort
from ratchet.operate.migrate import migrate
from ratchet.operate.verify import verify
from ratchet.protocol import commit as commit_module
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote

from .staging import (
    SPEC,
    a_try,
    committed,
    contents,
    do,
    is_whole,
    positions,
    prepare,
    rows_of,
    start,
    vote_of,
    write_all,
)


def test_a_revision_that_does_not_go_before_a_later_transaction_is_refused(ledger, log):
    """Without an order column a key must stay in its partition, also in what is revised."""
    first = committed(ledger, log, "a")
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
    said = (
        "key x is in partition 0 at offset 9 and in partition 1 at offset 19, so no order says which is the last; "
        "`ratchet repartitioned` changes nothing of what is committed; .* an order column; the old result stays"
    )
    with pytest.raises(Refused, match=said):
        commit(ledger, SPEC, again.claim)
    is_whole(ledger, first, second)


@pytest.mark.parametrize("key", ["x", None])
def test_a_revision_without_the_deletion_that_kept_two_partitions_of_a_key_apart_is_refused(ledger, log, key):
    for run, at, gone in (("a", (0, 3), False), ("b", (0, 14), True), ("c", (1, 25), False)):
        begun = start(ledger, SPEC, log, run)
        do(ledger, SPEC, begun, partial(_row_at, at, {"k": key, "a": 1, "_deleted": gone}))
        commit(ledger, SPEC, begun.claim)
        settle(ledger, SPEC, Run("dag", run), succeeded=True)
    again = start(ledger, SPEC, log, "b", 1)
    do(ledger, SPEC, again, lambda partition, offset: {})
    with pytest.raises(Refused, match=f"key {key} is in partition 0 at offset 3 and in partition 1 at offset 25"):
        commit(ledger, SPEC, again.claim)
    assert contents(ledger, SPEC)["latest"] == [(key, 1, 1, 25, 3)]
    assert [fault for check in verify(ledger, SPEC) for fault in check.faults] == []


def _row_at(at: tuple[int, int], row: dict, partition: int, offset: int) -> dict[str, list[dict]]:
    return {"latest": [row]} if (partition, offset) == at else {}


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


def test_a_revision_that_fails_does_not_abort_the_epoch_that_another_run_has_prepared_meanwhile(
    ledger, log, monkeypatch
):
    first = committed(ledger, log, "a")
    again = start(ledger, SPEC, log, "a", 1)
    prepare(ledger, SPEC, again)
    with ledger.begin() as conn:
        conn.exec_driver_sql("delete from ratchet_stage.line_1_2_0 where _offset = 3")
    whole, adopted = commit_module.lock_pipeline, []

    def meanwhile(conn, pipeline):
        # Between the attempt that fails and the word that it has: another run has begun anew, and all have voted.
        monkeypatch.setattr(commit_module, "lock_pipeline", whole)
        abort(ledger, SPEC, 1, "for the test", "me")
        settle(ledger, SPEC, Run("dag", "a", 1), succeeded=False, reason="aborted")
        adopted.append(start(ledger, SPEC, log, "b"))
        prepare(ledger, SPEC, adopted[0])
        return whole(conn, pipeline)

    monkeypatch.setattr(commit_module, "lock_pipeline", meanwhile)
    with pytest.raises(Fenced, match="run b works on it now, in epoch 3"):
        commit(ledger, SPEC, again.claim)
    assert commit(ledger, SPEC, adopted[0].claim).txids == (1,)
    is_whole(ledger, first)
