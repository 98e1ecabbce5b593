"""verify and status against a real PostgreSQL: what is whole is found whole, and each kind of damage is named."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text

from ratchet import Accumulate
from ratchet.dev.demo import watch
from ratchet.errors import SettingsError
from ratchet.ledger import history
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.operate.attention import been_here
from ratchet.operate.migrate import migrate
from ratchet.operate.snapshot.status import status
from ratchet.operate.snapshot.words import unattended_of, why_of
from ratchet.operate.verify import verify
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact
from ratchet.sinks.port import Check

from .staging import SPEC, do, prepare, start


def faults(ledger) -> list[str]:
    return [fault for check in verify(ledger, SPEC) for fault in check.faults]


def test_what_is_whole_is_found_whole(whole):
    checks = verify(whole, SPEC)
    assert [check.faults for check in checks] == [()] * len(checks)
    assert {check.what: check.checked for check in checks}["rows: rows and checksums"] == 36
    with whole.begin() as conn:
        applied = read_transaction(conn, SPEC.name, 3).applied
    # Kept in the ledger: made otherwise, it would condemn all that was committed before.
    fingerprints = {sink: applied[sink].get("fingerprint") for sink in ("rows", "totals", "latest")}
    assert fingerprints == {"rows": None, "totals": "13320037593005173699", "latest": "4725877644768532765"}
    compact(whole, SPEC.model_copy(update={"keep_deltas": timedelta(0)}))
    assert faults(whole) == []


@pytest.mark.invariant("I1")
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (
            "delete from DELTA where _offset = 3 and _txid = 1",
            "rows: transaction 1 has 16 rows, its votes say 18",
        ),
        (
            "update DELTA set a = a + 1 where _offset = 3 and _txid = 1",
            "rows: transaction 1 has other contents",
        ),
        (
            "insert into DELTA select * from DELTA where _offset = 3 and _txid = 1",
            "rows: transaction 1 has 20 rows",
        ),
        (
            "update DELTA set _txid = 2 where _offset = 3 and _txid = 1",
            "rows of transaction 2, which is not committed",
        ),
        ("update totals set a_sum = a_sum + 1 where k = '0'", "1 rows of the state are not what the deltas fold to"),
        ("delete from latest where k = '0-1'", "1 rows of the state are not what the deltas fold to"),
        ('update ratchet_delta."public.totals" set n = n + 1 where _txid = 3', "transaction 3 is not the one"),
        (
            "update ratchet_delta.dead_letters set value = 'x' where _txid = 1",
            "dead_letters: transaction 1 has other",
        ),
        (
            "delete from ratchet_delta.dead_letters where _txid = 3",
            "dead_letters: transaction 3 has 0 rows, its votes say 2",
        ),
        (
            "alter table ratchet.events disable trigger append_only;"
            " update ratchet.events set who = 'nobody' where txid = 2 and seq = 1",
            "transaction 2, event 1: was changed",
        ),
        (
            "alter table ratchet.ranges drop constraint ranges_tile;"
            " update ratchet.ranges set from_offset = 12 where txid = 2 and partition = 0",
            "transaction 2: t-0 starts at 12, the range before it ends at 10",
        ),
    ],
)
def test_damage_is_named(whole, damage, named):
    with whole.begin() as conn:
        for statement in damage.replace("DELTA", 'ratchet_delta."public.rows"').split(";"):
            conn.execute(text(statement))
    assert any(named in fault for fault in faults(whole)), faults(whole)


def test_status_says_why_each_transaction_waits(ledger, log):
    log.stable = {0: 200, 1: 200}
    first, second = start(ledger, SPEC, log, "a"), start(ledger, SPEC, log, "b")
    prepare(ledger, SPEC, second)
    said = status(ledger, "line")
    assert (said.head, said.last_txid, said.halt) == (0, 2, None)
    assert [(s.txid, s.state, s.voted, s.slices) for s in said.unfinished] == [
        (1, State.OPEN, 0, 2),
        (2, State.PREPARED, 2, 2),
    ]
    assert why_of(said, said.unfinished[0]) == "2 slices have not voted; run a works on it"
    assert why_of(said, said.unfinished[1]) == "prepared; waits for 1, which run a is processing; run b works on it"
    prepare(ledger, SPEC, first)
    commit(ledger, SPEC, first.claim)
    start(ledger, SPEC, log, "a", 1)
    said = status(ledger, "line")
    assert [(s.txid, s.revision, s.state) for s in said.unfinished] == [(1, 1, State.OPEN)]
    assert status(ledger, "unknown").last_txid == 0


def test_status_says_when_nobody_keeps_the_line_going(ledger, log):
    start(ledger, SPEC, log, "a")
    assert status(ledger, "line").unattended is None, "the line is new"
    back = "update ratchet.pipelines set created_at = created_at - interval '6 min'"
    with ledger.begin() as conn:
        conn.execute(text(back))
    assert unattended_of(status(ledger, "line")).startswith("maintenance was never here; is its DAG paused?")
    with ledger.begin() as conn:
        been_here(conn, [SPEC.name])
    assert status(ledger, "line").unattended is None
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.pipelines set maintained_at = maintained_at - interval '6 min'"))
    assert unattended_of(status(ledger, "line")).startswith("maintenance was here last at 20")


def test_the_demos_table_shows_what_was_committed(whole):
    said = watch.lines(whole, SPEC.name)
    assert [(line.txid, line.records) for line in said] == [(1, 20), (3, 20)]
    assert said[0].rows == {"rows": 18, "totals": 20, "latest": 18, "dead_letters": 2}
    assert watch.overlap(whole, SPEC.name).transactions == 1


def test_since_a_transaction_what_is_before_it_is_taken_as_verified_and_what_follows_is_not(whole, log):
    """Also a revision of an older one, whose commit stands in the chain between later ones."""
    fourth = start(whole, SPEC, log, "d")
    prepare(whole, SPEC, fourth)
    commit(whole, SPEC, fourth.claim)
    revised = start(whole, SPEC, log, "c", 1)
    prepare(whole, SPEC, revised)
    commit(whole, SPEC, revised.claim)
    fifth = start(whole, SPEC, log, "e")
    prepare(whole, SPEC, fifth)
    commit(whole, SPEC, fifth.claim)

    def found(since: int) -> list[str]:
        return [fault for check in verify(whole, SPEC, since) for fault in check.faults]

    assert [found(since) for since in range(1, 6)] == [[]] * 5
    with whole.begin() as conn:
        third = history.read(conn, SPEC.name, 3)
    (before,) = [event.hash for event in third if event.move == "COMMITTED" and not event.revision]
    scope, of_history, ranges, *_ = verify(whole, SPEC, 4)
    assert scope == Check(f"transactions 4 to 5; 1 to 3 are taken as verified, up to commit {before}", 2, ())
    assert (of_history.checked, ranges.checked) == (2 * 7, 4)
    by_name = {check.what: check.checked for check in verify(whole, SPEC, 4)}
    assert by_name["rows: rows and checksums"] == by_name["totals: deltas"] == 40
    assert by_name["rows: txids"] == 2
    with pytest.raises(SettingsError, match="there is no transaction 6 yet; the last is 5"):
        verify(whole, SPEC, 6)

    damages = [
        # (what, the last `since` with which it is found): one after the other, so none may hide behind one before.
        ('update ratchet_delta."public.rows" set a = a + 1 where _offset = 3 and _txid = 1', 1),
        ("alter table ratchet.events disable trigger append_only", 1),
        ("update ratchet.events set who = 'nobody' where txid = 1 and seq = 1", 1),
        ("alter table ratchet.ranges drop constraint ranges_tile", 1),
        ("update ratchet.ranges set from_offset = 12 where txid = 2 and partition = 0", 2),
        # What the revision's commit says is part of the chain that all later ones hang on.
        ("update ratchet.events set who = 'nobody' where txid = 3 and revision = 1 and move = 'COMMITTED'", 4),
        ("update totals set a_sum = a_sum + 1 where k = '0'", 5),
        ('delete from ratchet_delta."public.latest" where _txid = 5', 5),
    ]
    for damage, last in damages:
        with whole.begin() as conn:
            conn.execute(text(damage))
        assert [since for since in range(1, 6) if found(since)] == list(range(1, last + 1)), damage
    assert "1 rows of the state are not what the deltas fold to" in " ".join(found(5))


def test_a_column_may_have_any_name_that_a_query_has(ledger, log):
    sink = Accumulate("named", key="of string, mine string", sum="merged bigint", count="unnest")
    spec = SPEC.model_copy(update={"name": "named", "sinks": [sink]})
    migrate(ledger.url, [spec])
    do(ledger, spec, begun := start(ledger, spec, log, "a"), lambda _, offset: {"named": [row_named(offset)]})
    commit(ledger, spec, begun.claim)
    assert [fault for check in verify(ledger, spec) for fault in check.faults] == []


def row_named(offset: int) -> dict[str, object]:
    return {"of": f"k{offset % 3}", "mine": None, "merged_sum": offset, "unnest": 1}


def test_what_is_checked_does_not_depend_on_how_much_is_in_memory_at_once(whole, monkeypatch):
    everything = verify(whole, SPEC)
    monkeypatch.setattr("ratchet.operate.verify._STRETCH", 2)
    monkeypatch.setattr("ratchet.operate.verify._AT_A_TIME", 1)
    monkeypatch.setattr("ratchet.ledger.history._AT_A_TIME", 1)
    monkeypatch.setattr("ratchet.sinks.kept._AT_A_TIME", 1)
    monkeypatch.setattr("ratchet.sinks.keyed._AT_ONCE", 1)
    assert verify(whole, SPEC) == everything
    said = []
    with whole.begin() as conn:
        conn.execute(text('update ratchet_delta."public.rows" set a = a + 1 where _offset in (3, 23)'))
        conn.execute(text("alter table ratchet.events disable trigger append_only"))
        conn.execute(text("update ratchet.events set previous_hash = 'x', hash = 'x'"))
    monkeypatch.setattr("ratchet.ledger.faults.MOST", 3)
    for check in verify(whole, SPEC, say=said.append):
        if check.what == "history":
            assert check.faults[0].startswith("transaction 1, event 1") and len(check.faults) == 4
            assert check.faults[3].startswith("and ") and check.faults[3].endswith(" more like these")
        if check.what == "rows: rows and checksums":
            assert [fault[:19] for fault in check.faults] == ["rows: transaction 1", "rows: transaction 3"]
    assert said[:2] == ["line: history", "line: rows"]
