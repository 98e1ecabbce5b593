"""What readers see of a transaction with its releases and replays, as `show` and the page say it."""

from __future__ import annotations

from ratchet.operate.replay import ask
from ratchet.operate.snapshot.letters import counts
from ratchet.operate.snapshot.status import status
from ratchet.operate.snapshot.timeline import timeline
from ratchet.operate.snapshot.transaction import transaction
from ratchet.operate.snapshot.words import lines_of, what_of
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.traces import _whole

from .releasing import Line, letters, second, three


def dead_of(line: Line, txid: int) -> int:
    return len(letters(line, txid))


def said_of(line: Line, txid: int) -> str:
    return "\n".join(said for said in _whole(transaction(line.ledger, line.spec.name, txid)) if isinstance(said, str))


def test_a_transaction_has_what_it_was_made_of_and_what_a_release_has_added(rich_ledger, log):
    line = three(rich_ledger, log)
    before = transaction(rich_ledger, line.spec.name, 2)
    had = dead_of(line, 2)
    assert before.result and (before.result.revision, before.result.releases) == (0, ())
    assert before.result.rows[DEAD_LETTERS] == had and before.revisions[0].letters is None
    line.release(second, 2, 2)
    after = transaction(rich_ledger, line.spec.name, 2)
    assert after.result and (after.result.revision, after.result.releases) == (0, (1,))
    assert after.result.records == before.result.records == len(line.places[2])
    left = sum(DEAD_LETTERS in second(*place) for place in letters(line, 2))
    assert after.result.rows[DEAD_LETTERS] == left < had
    assert after.result.rows["own"] == before.result.rows["own"] + had - left
    assert what_of(after.revisions[1]) == f"release of {had} of {had} dead letters"
    bars = {(bar.txid, bar.revision): bar for bar in timeline(rich_ledger, line.spec.name).bars}
    assert bars[2, 0].result == after.result and not bars[2, 0].is_replaced
    assert bars[2, 1].result is None and what_of(bars[2, 1]) == what_of(after.revisions[1])
    said = said_of(line, 2)
    assert f"transaction 2, with 1 release: {len(line.places[2])} records; rows: " in said
    assert (
        f"revision 1 of transaction 2, release of {had} of {had} dead letters, is COMMITTED, which sinks show" in said
    )
    assert "transaction 2 is COMMITTED, which sinks show" in said and f"  {had} records released; rows: " in said


def test_a_replay_replaces_the_result_and_its_releases(rich_ledger, log):
    line = three(rich_ledger, log)
    line.release(second, 2, 2, "no number")
    some = transaction(rich_ledger, line.spec.name, 2).revisions[1]
    assert (
        what_of(some)
        == f"release of {some.records} of {dead_of(line, 2)} dead letters whose errors contain 'no number'"
    )
    ask(rich_ledger, line.spec, 2, 2, "all of it", "me")
    line.one(second)
    whole = transaction(rich_ledger, line.spec.name, 2)
    assert whole.result and (whole.result.revision, whole.result.releases) == (2, ())
    assert what_of(whole.revisions[2]) == "replay"
    replaced = {bar.revision: bar.is_replaced for bar in timeline(rich_ledger, line.spec.name).bars if bar.txid == 2}
    assert replaced == {2: False, 1: True, 0: True}


def test_releases_and_replays_that_wait_are_told_apart(rich_ledger, log):
    line = three(rich_ledger, log)
    line.ask(2, 3)
    ask(rich_ledger, line.spec, 1, 1, "its code was wrong", "me")
    assert "  1 replay and 2 releases are asked for and wait for a run" in lines_of(status(rich_ledger, line.spec.name))
    (asked,) = counts(rich_ledger, line.spec.name).asked
    assert (asked.who, asked.transactions, asked.first_txid, asked.last_txid, asked.error) == ("amy", 2, 2, 3, "")
    begun = line.begin()
    found = counts(rich_ledger, line.spec.name)
    assert begun.claim.txid == 2 and found.going_on == (2,) and found.asked[0].transactions == 1
    (standing,) = status(rich_ledger, line.spec.name).unfinished
    assert (standing.txid, standing.revision, standing.releases) == (2, 1, "")
