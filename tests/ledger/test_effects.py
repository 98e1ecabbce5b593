"""What a commit tells others: of each transaction that is committed, its ranges and its rows."""

from __future__ import annotations

from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.operate.effects import Effects, effects_of
from ratchet.protocol.begin import begin
from ratchet.protocol.commit import commit

from .staging import SPEC, always_active, prepare, start


def told(effects: Effects) -> list[tuple[int, int, list[str], int]]:
    return [(e.txid, e.revision, [str(r) for r in e.ranges], e.rows["rows"]) for e in effects.transactions]


def test_a_commit_tells_of_all_that_it_took_along_and_the_others_again_of_themselves(ledger, log):
    first, second, third = (start(ledger, SPEC, log, run) for run in "abc")
    for begun in (first, second):
        prepare(ledger, SPEC, begun)
    done = commit(ledger, SPEC, first.claim)
    one = (1, 0, ["t-0[0,10)", "t-1[0,10)"], 20)
    two = (2, 0, ["t-0[10,20)", "t-1[10,20)"], 20)
    effects = effects_of(ledger, first.claim, done.txids)
    assert told(effects) == [one, two]
    assert effects.watermark == {"0": 20, "1": 20}
    assert set(effects.transactions[0].rows) == {"rows", "totals", "latest", "dead_letters"}
    # The second one's own commit finds it committed; so does a try of the first that is repeated.
    again = commit(ledger, SPEC, second.claim)
    assert (again.txids, told(effects_of(ledger, second.claim, again.txids))) == ((), [two])
    again = commit(ledger, SPEC, first.claim)
    assert told(effects_of(ledger, first.claim, again.txids, besides=SPEC.max_in_flight)) == [one, two]
    assert told(effects_of(ledger, third.claim, ())) == [], "it is not committed"


def test_what_is_voided_is_not_told_and_a_revision_is_told_as_one(ledger, log):
    first = start(ledger, SPEC, log, "a")
    second = start(ledger, SPEC, log, "b")
    void(ledger, SPEC, 2, "nobody needs it", "somebody")
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    assert told(effects_of(ledger, second.claim, commit(ledger, SPEC, second.claim).txids)) == []
    assert [txid for txid, *_ in told(effects_of(ledger, first.claim, (1,), besides=4))] == [1]
    cleared = begin(ledger, SPEC, Run("dag", "a", 1), log.offsets, always_active)
    prepare(ledger, SPEC, cleared)
    done = commit(ledger, SPEC, cleared.claim)
    revised = (1, 1, ["t-0[0,10)", "t-1[0,10)"], 20)
    assert told(effects_of(ledger, cleared.claim, done.txids, besides=4)) == [revised]
