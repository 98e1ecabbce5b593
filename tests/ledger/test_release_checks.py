"""What a release checks, what it refuses, and what `verify` finds of a transaction that was released."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import delete, func, text, update

from ratchet import Append, MaxDeadLetters, Upsert
from ratchet.errors import IllegalMove, NotRevisable, Refused
from ratchet.ledger.schema import dead_letter_deltas, transactions
from ratchet.operate.actions import void
from ratchet.operate.erase import erase
from ratchet.operate.migrate import migrate
from ratchet.operate.verify import recompute
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact
from ratchet.protocol.expire import expire as expire_rows
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.lookup import sink_of
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import ROWS, TOTALS, Made

from .releasing import OTHER, SPEC, Line, bad, copy_of_three, first, good, letters, released, second
from .staging import a_try, contents, do, made_vote, records_of


@pytest.fixture
def line(databases, log):
    with copy_of_three(databases, log) as line:
        yield line


def test_a_released_key_that_is_in_another_partition_too_is_refused(rich_ledger, log):
    spec = SPEC.model_copy(update={"sinks": [Upsert("rich_latest", key="k string", columns="a bigint")]})

    def record(partition: int, offset: int) -> Made:
        return {"rich_latest": [{"k": "x", "a": offset, "_deleted": False}]}

    line = Line(rich_ledger, log, spec)
    line.commit(lambda p, o: bad("no", p, o) if p else record(p, o))
    line.ask(1, 1)
    begun = line.begin()
    do(rich_ledger, spec, begun, record)
    with pytest.raises(Refused, match="key x is in partition 0 at offset .* and in partition 1 at offset"):
        commit(rich_ledger, spec, begun.claim)
    line.is_whole()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("another record", f"{ROWS}: partition ., offset .* is none of the dead letters that are released"),
        ("another letter", f"{DEAD_LETTERS}: partition ., offset .* is none of the dead letters that are released"),
        ("not all of them", "[0-9] dead letters? (was|were) read, and [0-9] are there"),
    ],
)
@pytest.mark.invariant("I1")
def test_a_vote_of_a_release_is_of_its_dead_letters_and_no_other_record(line, wrong, said):
    line.ask(1, 1)
    begun = line.begin()
    work = a_try(line.ledger, begun, begun.slices[0].number, SPEC)
    (partition, offset), *_ = records_of(line.ledger, work)
    taken = letters(line, 1)
    other = next(o for p, o in line.places[1] if p == partition and (p, o) not in taken)

    def moved(p: int, o: int) -> Made:
        """The first of the letters passes for another record."""
        if (p, o) != (partition, offset):
            return good("second", p, o)
        if wrong == "another record":
            return {ROWS: [{"a": 1, "_offset": other}]}
        return {DEAD_LETTERS: [{**bad("no", p, o)[DEAD_LETTERS][0], "_offset": other}]}

    make = second if wrong == "not all of them" else moved
    vote = made_vote(line.ledger, SPEC, work, make)
    if wrong == "not all of them":
        vote = replace(vote, records=vote.records - 1)
    with pytest.raises(Refused, match=said):
        cast_vote(line.ledger, SPEC, work.token, vote)
    line.is_whole()


@pytest.mark.parametrize("what", ["a row", "a letter that stays", "a letter that is released", "a delta"])
@pytest.mark.invariant("I1")
def test_what_was_changed_before_or_after_a_release_is_found(line, what):
    tables = {sink.name: sink_of(SPEC, sink.name) for sink in SPEC.sinks}
    rows, totals, dead = tables[ROWS].rows_table, tables[TOTALS].delta, dead_letter_deltas
    p, o = next(at for at in letters(line, 1) if (at[1] % 2 == 1) == (what == "a letter that stays"))
    changed = {
        "a row": update(rows).where(rows.c._txid == 1).values(a=77),
        "a letter that stays": update(dead).where(dead.c._partition == p, dead.c._offset == o).values(value=b"other"),
        "a letter that is released": update(dead).where(dead.c._partition == p, dead.c._offset == o).values(key=b"?"),
        "a delta": update(totals).where(totals.c._txid == 1).values(n=totals.c.n + 1),
    }[what]
    with line.ledger.begin() as conn:
        conn.execute(changed)
    assert line.faults()
    line.ask(1, 1, "date")
    begun = line.begin()
    do(line.ledger, SPEC, begun, second)
    if what == "a delta":
        with pytest.raises(Refused, match="the delta of transaction 1 is not the one that was committed"):
            commit(line.ledger, SPEC, begun.claim)
    else:
        commit(line.ledger, SPEC, begun.claim)
    assert [fault for fault in line.faults() if "transaction 1" in fault]


@pytest.mark.invariant("I1")
def test_what_is_changed_after_a_release_is_found(line):
    line.release(second)
    for txid in (1, 2, 3):
        line.shows(txid, released)
    line.is_whole()
    tables = [sink.working.rows_table if hasattr(sink.working, "rows_table") else sink.delta for sink in SPEC.sinks]
    for table in (*tables, dead_letter_deltas):
        with line.ledger.begin() as conn, conn.begin_nested() as inside:
            conn.execute(delete(table).where(table.c._txid == 2))
            inside.rollback()
        with line.ledger.begin() as conn:
            gone = conn.execute(delete(table).where(table.c._txid == 2).returning(table)).mappings().all()
            assert gone
        assert [fault for fault in line.faults() if "transaction 2" in fault]
        with line.ledger.begin() as conn:
            conn.execute(table.insert(), [dict(row) for row in gone])
        assert line.faults() == []


def test_letters_that_went_meanwhile_leave_the_old_result(line):
    line.ask(1, 1)
    begun = line.begin()
    do(line.ledger, SPEC, begun, second)
    (p, o), *_ = letters(line, 1)
    dead = dead_letter_deltas.c
    with line.ledger.begin() as conn:
        conn.execute(delete(dead_letter_deltas).where(dead._txid == 1, dead._partition == p, dead._offset == o))
    with pytest.raises(Refused, match=r"dead letters would be taken away, the release's votes say"):
        commit(line.ledger, SPEC, begun.claim)
    shown, wanted = contents(line.ledger, SPEC), line.fold.contents(SPEC.sinks)
    assert {name: of for name, of in shown.items() if name != DEAD_LETTERS} == {
        name: of for name, of in wanted.items() if name != DEAD_LETTERS
    }


def test_a_released_transaction_is_recomputed_as_a_whole_where_its_code_is_todays(line):
    line.release(second, 1, 1)
    asked: list[tuple[int, bool]] = []

    def again(works):
        asked.append((works[0].token.txid, any(work.releases is not None for work in works)))
        assert {(r.partition, o) for w in works for r in w.ranges for o in range(r.from_offset, r.until_offset)} == set(
            line.places[works[0].token.txid]
        )
        return {}

    recompute(line.ledger, SPEC, again)
    assert asked == [(1, False), (2, False), (3, False)]
    line.spec = OTHER
    line.release(second, 2, 2)
    said: list[str] = []
    asked.clear()
    recompute(line.ledger, SPEC, again, say=said.append)
    assert [txid for txid, _ in asked] == [1, 3]
    assert f"transaction 2 was committed with code {line.spec.code_hash}, today's is {SPEC.code_hash}" in said[1]


@pytest.mark.parametrize("ratio", [0.2, 0.5])
def test_gates_look_at_the_transaction_as_a_release_leaves_it(rich_ledger, log, ratio):
    line = Line(rich_ledger, log)
    line.commit(first)
    line.spec = SPEC.model_copy(update={"gates": [MaxDeadLetters(ratio)]})
    # All of what is released fails again: as many of the transaction's records are dead letters as before.
    again = partial(bad, "still")
    if ratio < 1 / 3:
        line.ask(1, 1)
        begun = line.begin()
        do(rich_ledger, line.spec, begun, again)
        with pytest.raises(Refused, match="4 of 12 records are dead letters, 0.3333; the limit is 0.2"):
            commit(rich_ledger, line.spec, begun.claim)
    else:
        line.release(again, 1, 1)
        line.shows(1, lambda p, o: again(p, o) if DEAD_LETTERS in first(p, o) else first(p, o))
    line.is_whole()


def test_what_cannot_be_released_is_refused_with_the_reason(rich_ledger, log):
    with pytest.raises(IllegalMove, match="nothing of pipeline rich yet"):
        Line(rich_ledger, log).ask()
    line = Line(rich_ledger, log)
    begun = line.begin()
    do(rich_ledger, SPEC, begun, first)
    with pytest.raises(NotRevisable, match="no transaction from 1 to 0 has dead letters; there is nothing to release"):
        line.ask()
    commit(rich_ledger, SPEC, begun.claim)
    void(rich_ledger, SPEC, line.begin().claim.txid, "for the test", "me")
    line.commit(first)
    assert line.ask(dry_run=True).letters == {1: 4, 3: 4} and line.ask().waiting == 2
    with pytest.raises(NotRevisable, match="no transaction from 2 to 2 has dead letters"):
        line.ask(2, 2)
    erase(rich_ledger, SPEC, ROWS, {"_txid": "1"}, "they have asked for it", "me")
    said = dict(line.ask().left_out)
    assert said == {1: "rows of it were erased by a person, and would come back; the old result stays"}
    # What was asked for before that is given up when its turn comes.
    begun = line.begin()
    assert begun.claim.txid == 3 and "is given up: rich: transaction 1: rows of it were erased" in begun.message
    line.finish(begun, second)
    compact(rich_ledger, SPEC.model_copy(update={"keep_deltas": timedelta(0)}))
    with pytest.raises(NotRevisable, match="transaction 1: left out: is older than the spec's keep_deltas"):
        line.ask()


def test_rows_of_other_columns_are_not_added_to(line):
    sinks = [Append(ROWS, columns="a bigint, b string"), *SPEC.sinks[1:]]
    line.spec = SPEC.model_copy(update={"sinks": sinks})
    migrate(line.ledger.url, [line.spec])
    said = f"{ROWS} was written with columns a bigint, and has a bigint, b string today; replay the transaction instead"
    with pytest.raises(NotRevisable, match=f"transactions 1 to 3: left out: {said}; the dead letters stay"):
        line.ask()


def test_expired_rows_are_not_added_to(rich_ledger, log):
    spec = SPEC.model_copy(
        update={"sinks": [Append(ROWS, columns="a bigint", keep=timedelta(hours=1)), *SPEC.sinks[1:]]}
    )
    line = Line(rich_ledger, log, spec)
    line.commit(first)
    with rich_ledger.begin() as conn:
        old = func.clock_timestamp() - text("interval '2 hours'")
        conn.execute(update(transactions).where(transactions.c.txid == 1).values(committed_at=old))
    assert list(expire_rows(rich_ledger, spec))
    said = "is older than an Append keeps its rows: those up to transaction 1 are deleted, and would come back"
    assert said in dict(line.ask().left_out)[1]


def test_letters_of_no_record_of_their_transaction_are_not_released(line):
    dead = dead_letter_deltas.c
    (p, o), *_ = letters(line, 1)
    with line.ledger.begin() as conn:
        moved = update(dead_letter_deltas).where(dead._txid == 1, dead._partition == p, dead._offset == o)
        conn.execute(moved.values(_offset=1000))
    said = "left out: has dead letters that are none of its records, as `ratchet verify` tells"
    with pytest.raises(NotRevisable, match=said):
        line.ask(1, 1)
