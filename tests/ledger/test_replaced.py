"""What a replay would put other results in place of, as the ledger alone says it."""

from __future__ import annotations

from ratchet import MaxDeadLetters
from ratchet.operate.actions import void
from ratchet.operate.replaced import lines_of, replaced
from ratchet.protocol.commit import commit

from .staging import SPEC, committed, prepare, start

OTHER = SPEC.model_copy(update={"gates": [MaxDeadLetters(0.5)]})


def test_what_stands_is_counted_by_its_newest_revision_and_named_by_its_code(ledger, log):
    log.stable = {0: 500, 1: 500}
    for run in "abc":
        committed(ledger, log, run)
    begun = start(ledger, SPEC, log, "d")
    void(ledger, SPEC, begun.claim.txid, "bad file", "me")
    revised = start(ledger, OTHER, log, "b", 1)
    prepare(ledger, OTHER, revised)
    commit(ledger, OTHER, revised.claim)
    found = replaced(ledger, "line", (1, 2, 4))
    assert (found.records, found.rows) == (40, {"rows": 40, "totals": 40, "latest": 40, "dead_letters": 0})
    assert found.codes == {SPEC.code_hash: (1,), OTHER.code_hash: (2,)}
    assert lines_of(found, OTHER, 1, 4, voided=False) == [
        "line: what stands was made of 40 records, and is rows: 40 in latest, 40 in rows, 40 in totals",
        f"line: transaction 1: made with code {SPEC.code_hash}, and today's is {OTHER.code_hash}",
        f"line: transaction 2: made with code {OTHER.code_hash}, today's",
        "`ratchet replay line --from 1 --to 4 --dry-run` processes them now, by Spark, and says which rows and keys "
        "would be added, removed and changed",
    ]
