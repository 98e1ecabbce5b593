"""Rows of old transactions are taken out of the ledger: the line goes on as before, and the rest can be verified."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import IntegrityError

from ratchet import Append
from ratchet.errors import Fenced, IllegalMove, NotRevisable
from ratchet.ledger.schema import metadata, pipelines, transactions
from ratchet.ledger.transactions import read_line
from ratchet.ledger.work import Run
from ratchet.operate.prune import _take_away, lines_of, prune
from ratchet.operate.verify import verify
from ratchet.protocol import replays
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact
from ratchet.protocol.plan import previous_until
from ratchet.protocol.votes import cast_vote

from .staging import (
    SPEC,
    a_try,
    always_active,
    appended,
    committed,
    contents,
    moves_of,
    prepare,
    rows_of,
    start,
    vote_of,
    write_all,
)

OLD = 4
"""Transactions 1 to 4 are older than keep_deltas; 2 is voided."""
HERE = ("pipelines", "heads", "sources", "runs", "losses", "leader_epochs", "targets", "prunes")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr("ratchet.operate.prune.KEPT", 1)
    monkeypatch.setattr("ratchet.operate.prune.BATCH", 1)


@pytest.fixture
def aged(whole, log):
    """Six transactions; 3 was revised before 5 was committed, and 4 after that."""
    for run in "abc":
        settle(whole, SPEC, Run("dag", run), succeeded=True)
    committed(whole, log, "d")
    revised(whole, log, "c")
    committed(whole, log, "e")
    revised(whole, log, "d")
    committed(whole, log, "f")
    age(whole, OLD)
    compact(whole, SPEC)
    return whole


def revised(ledger, log, run: str) -> int:
    begun = start(ledger, SPEC, log, run, 1)
    assert begun.how == "revised"
    prepare(ledger, SPEC, begun)
    commit(ledger, SPEC, begun.claim)
    settle(ledger, SPEC, Run("dag", run, 1), succeeded=True)
    return begun.claim.txid


def age(ledger, until: int) -> None:
    c, month = transactions.c, timedelta(days=31)
    earlier = {"opened_at": c.opened_at - month, "committed_at": c.committed_at - month}
    with ledger.begin() as conn:
        conn.execute(update(transactions).where(c.txid <= until).values(earlier))


def faults(ledger, since: int = 1) -> list[str]:
    return [fault for check in verify(ledger, SPEC, since) for fault in check.faults]


def txids(ledger) -> dict[str, set[int]]:
    """{table: the txids of which it has rows}, of the tables that have some."""
    found = {}
    with ledger.begin() as conn:
        for table in metadata.sorted_tables:
            if "txid" in table.c and table.name not in HERE:
                found[table.name] = set(conn.execute(select(table.c.txid)).scalars())
    return {name: of for name, of in found.items() if of}


def test_a_state_that_somebody_has_changed_is_found_also_where_its_transactions_are_pruned(aged):
    prune(aged, SPEC, "old", "me")
    assert faults(aged) == []
    with aged.begin() as conn:
        conn.execute(text("insert into totals (k, a_sum, n, _txid) values ('foreign', 1, 1, 1)"))
    (fault,) = faults(aged)
    assert fault == "1 rows of the state are not what the deltas fold to"


def test_a_line_that_is_dropped_in_the_midst_of_a_prune_is_said_to_be(aged):
    with aged.begin() as conn, pytest.raises(IllegalMove, match="the line was dropped meanwhile"):
        _take_away(conn, 17)


def test_what_is_old_is_pruned_and_the_line_goes_on(aged, log):
    before = contents(aged, SPEC)
    tried = prune(aged, SPEC, "old", "me", dry_run=True)
    assert contents(aged, SPEC) == before and faults(aged) == [] and txids(aged)["events"] == set(range(1, 7))
    done = prune(aged, SPEC, "old", "me")
    # The commit of 4's revision, which 6 follows, is part of the chain that stays.
    assert {**tried.rows, "events": tried.rows["events"] - 1} == done.rows
    assert (done.first, done.last, done.rows["transactions"], done.rows["ranges"]) == (1, OLD, 6, 8)
    said = "line: transactions 1 to 4 are pruned from the ledger: 41 events, 8 ranges, 12 slices, 6 transactions"
    assert lines_of(done) == [said]
    assert contents(aged, SPEC) == before
    assert txids(aged) == {
        "transactions": {5, 6},
        "slices": {5, 6},
        "ranges": {0, 5, 6},
        "events": {4, 5, 6},
    }
    scope, *_ = verify(aged, SPEC)
    assert scope.what.startswith("transactions 5 to 6; 1 to 4 are taken as verified, up to commit ")
    assert scope.what.endswith("; 1 to 4 are pruned") and faults(aged) == faults(aged, 6) == []

    # What it was: one transaction after the other, a revision of what may be revised.
    assert committed(aged, log, "g").claim.txid == 7
    assert revised(aged, log, "e") == 5 and faults(aged) == []
    with aged.begin() as conn:
        line = read_line(conn, SPEC.name)
        assert (line.pruned, previous_until(conn, SPEC.name, 1)) == (OLD, {0: 70, 1: 70})
    with pytest.raises(IllegalMove, match="no transaction after 4 can be pruned"):
        prune(aged, SPEC, "old", "me")

    # The next one takes the rest of the chain before it along.
    age(aged, 6)
    compact(aged, SPEC)
    assert prune(aged, SPEC, "old", "me").first == 5
    assert txids(aged)["transactions"] == {7} and contents(aged, SPEC).keys() == before.keys()
    assert [move for move in moves_of(aged) if move[0] < 7] == [(5, 1, "COMMITTED")]
    assert faults(aged) == [] and committed(aged, log, "h").claim.txid == 8 and faults(aged) == []


def test_of_what_is_pruned_nothing_is_done_again_and_whoever_asks_is_told_why(aged, log):
    claim = start(aged, SPEC, log, "late").claim
    prune(aged, SPEC, "old", "me")
    for run, clear in (("a", 1), ("b", 1), ("d", 2)):
        with pytest.raises(NotRevisable, match=r"transaction \d is pruned from the ledger, so it cannot be revised"):
            begin(aged, SPEC, Run("dag", run, clear), log.offsets, always_active)
        assert str(settle(aged, SPEC, Run("dag", run, clear), succeeded=False)).endswith("has taken no transaction")
    for run, clear in (("a", 0), ("b", 0), ("c", 1)):
        found = begin(aged, SPEC, Run("dag", run, clear), log.offsets, always_active)
        assert isinstance(found, Skipped) and found.reason == Skip.PRUNED
        assert "nothing is done again; trigger a run with another id" in found.message
    old = type(claim)(SPEC.name, 1, 1, 1)
    with pytest.raises(Fenced, match="transaction 1 is pruned from the ledger, and done with for ever"):
        commit(aged, SPEC, old)
    with aged.begin() as conn:
        assert read_line(conn, SPEC.name).last_txid == claim.txid == 7


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.all), 2, pytest.param(3, marks=pytest.mark.all)])
def test_a_prune_that_was_broken_off_leaves_a_whole_line_and_the_next_one_goes_on(aged, log, steps):
    tried = prune(aged, SPEC, "old", "me", dry_run=True)
    said = []

    def die(line: str) -> None:
        said.append(line)
        if len(said) == steps:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(aged, SPEC, "old", "me", die)
    assert said[-1] == f"line: pruned up to transaction {steps} of 4"
    assert txids(aged)["transactions"] == set(range(steps + 1, 7)) and faults(aged) == []
    committed(aged, log, "g")
    with pytest.raises(NotRevisable, match="transaction 4 is pruned"):
        begin(aged, SPEC, Run("dag", "d", 2), log.offsets, always_active)
    done = prune(aged, SPEC, "another reason", "somebody")
    assert (done.first, done.last, done.rows["ranges"]) == (1, OLD, tried.rows["ranges"])
    assert txids(aged)["transactions"] == {5, 6, 7} and faults(aged) == []


FOLLOWS = "transaction 6, event 7: does not follow from the commit before it"
PLANTED = {
    "of more than is recorded": [
        ("update ratchet.pipelines set compacted = 5, merged = 5", None),
        ("update ratchet.pipelines set pruned = 5", "5 are said to be pruned, 4 are recorded"),
        ("update ratchet.prunes set last_txid = 5, reached = 5", FOLLOWS),
        ("delete from ratchet.prunes", "5 are said to be pruned, 0 are recorded"),
    ],
    "of half a transaction": [
        ("delete from ratchet.events where txid <= 4", FOLLOWS),
        ("alter table ratchet.ranges drop constraint ranges_tile", None),
        (
            "update ratchet.ranges set until_offset = 39 where txid = 0 and partition = 0",
            "transaction 5: t-0 starts at 40, the range before it ends at 39",
        ),
        ("delete from ratchet.ranges where txid = 5", "transaction 5 has no range"),
        ("delete from ratchet.slices where txid = 5", "rows: transaction 5 has 20 rows, its votes say 0"),
        ("delete from ratchet.transactions where txid = 5", "rows of transaction 5, which is not committed"),
    ],
}


@pytest.mark.parametrize("of", PLANTED)
def test_a_removal_that_is_no_prune_is_seen(aged, of):
    prune(aged, SPEC, "old", "me")
    with pytest.raises(IntegrityError, match="append-only"), aged.begin() as conn:
        conn.execute(text("delete from ratchet.events where txid = 5"))
    for statement, fault in PLANTED[of]:
        before = faults(aged)
        with aged.begin() as conn:
            conn.execute(text(statement))
        new = [found for found in faults(aged) if found not in before]
        assert any(fault in found for found in new) if fault else not new, (statement, new)


def test_what_is_not_done_with_holds_a_prune_up(aged, log, monkeypatch):
    """A revision that nobody has given up, and the newest transactions."""
    with aged.begin() as conn:
        conn.execute(update(pipelines).values(compacted=0, merged=0))
    begun = start(aged, SPEC, log, "c", 2)
    with aged.begin() as conn:
        conn.execute(update(pipelines).values(compacted=OLD, merged=OLD))
    assert begun.claim.txid == 3 and prune(aged, SPEC, "old", "me", dry_run=True).last == 2
    settle(aged, SPEC, Run("dag", "c", 2), succeeded=False)
    assert prune(aged, SPEC, "old", "me", dry_run=True).last == 2
    with aged.begin() as conn:
        replays.ask(conn, SPEC, [2], "me", "as one that has waited since before it was merged")
    assert prune(aged, SPEC, "old", "me", dry_run=True).last == 1
    with aged.begin() as conn:
        replays.forget(conn, SPEC.name, 2, 2, "me", "not any more")
    monkeypatch.setattr("ratchet.operate.prune.KEPT", 5)
    assert prune(aged, SPEC, "old", "me", dry_run=True).last == 1
    monkeypatch.setattr("ratchet.operate.prune.KEPT", 6)
    with pytest.raises(IllegalMove, match="among the newest 6"):
        prune(aged, SPEC, "old", "me", dry_run=True)


def test_where_nothing_is_merged_a_prune_decides_what_cannot_be_revised(ledger, log, monkeypatch):
    """Of uneven partitions, one of which comes later and one of which gets no more."""
    monkeypatch.setattr("ratchet.operate.prune.BATCH", 3)
    plain = SPEC.model_copy(update={"sinks": [Append("rows", columns="a bigint")]})
    log.beginning, log.stable = {0: 3, 1: 0}, {0: 17, 1: 40}
    for run in "abcde":
        if run == "d":
            log.beginning[2], log.stable[2] = 0, 25
        finish(ledger, plain, start(ledger, plain, log, run))
    age(ledger, 4)
    compact(ledger, plain)
    done = prune(ledger, plain, "old", "me")
    assert (done.first, done.last) == (1, 4) and txids(ledger)["transactions"] == {5}
    with ledger.begin() as conn:
        line = read_line(conn, plain.name)
        assert (line.compacted, line.merged, line.pruned) == (4, 4, 4)
        assert previous_until(conn, plain.name, 1) == {0: 17, 1: 40, 2: 25}
    assert [fault for check in verify(ledger, plain) for fault in check.faults] == []
    with pytest.raises(NotRevisable, match="transaction 4 is pruned"):
        begin(ledger, plain, Run("dag", "d", 1), log.offsets, always_active)
    log.stable = {0: 18, 1: 41, 2: 26}
    finish(ledger, plain, start(ledger, plain, log, "g"))
    assert appended(ledger)[0][:2] == (0, 3) and len(appended(ledger)) == 15 + 41 + 26
    assert [fault for check in verify(ledger, plain) for fault in check.faults] == []


def finish(ledger, spec, begun) -> None:
    for part in begun.slices:
        work = a_try(ledger, begun, part.number, spec)
        sinks = write_all(ledger, spec, work, {"rows": rows_of(spec, work)["rows"]})
        cast_vote(ledger, spec, work.token, vote_of(spec, work, sinks))
    commit(ledger, spec, begun.claim)
