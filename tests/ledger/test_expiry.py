"""Rows of an Append that are older than it keeps them: deleted by whole transactions, which nobody revises any more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from sqlalchemy import func, select, text, update

from ratchet import Accumulate, Append, Pipeline
from ratchet.errors import IllegalMove, NotRevisable
from ratchet.ledger.schema import expired, prunes, transactions
from ratchet.ledger.work import Run
from ratchet.operate.prune import prune
from ratchet.operate.replay import ask
from ratchet.operate.verify import verify
from ratchet.protocol import compact
from ratchet.protocol.begin import begin
from ratchet.protocol.commit import commit
from tests.databases import Databases
from tests.proof.simulate.maintenance import maintain

from .grown import GROWN, Grown, copied, make_of
from .staging import always_active, do, start

DAYS = timedelta(days=90)
KEPT = GROWN.model_copy(
    update={
        "name": "kept",
        "sinks": [
            Append("every", columns="a bigint, b string not null", keep=DAYS),
            Append("for_ever", columns="a bigint"),
            Accumulate("totals", key="k string", sum="a bigint", max="a bigint", count="n"),
        ],
        "keep_deltas": timedelta(days=1000),
    }
)


def grow(line: Grown) -> None:
    """Two committed, the second revised, the third voided, two more committed."""
    line.committed()
    line.committed()
    line.voided()
    line.committed()
    line.committed()
    line.revised(2, 2)


@pytest.fixture
def line(databases: Databases) -> Iterator[Grown]:
    """A line whose rows expire."""
    with copied(databases, KEPT, grow) as line:
        yield line


def let_pass(line: Grown, until: int, age: timedelta = DAYS) -> None:
    """What was committed up to a transaction is that old now."""
    c = transactions.c
    when = {c.opened_at: func.clock_timestamp() - age, c.committed_at: func.clock_timestamp() - age}
    with line.ledger.begin() as conn:
        conn.execute(update(transactions).where(c.txid <= until, c.revision == 0).values(when))


def kept_up(line: Grown, spec: Pipeline | None = None) -> list[str]:
    """By the maintenance, which asks first whether there is anything to do."""
    said = maintain(line.ledger, spec or line.spec, always_active)
    return [line for line in said if "older than" in line]


def forget(line: Grown, until: int) -> None:
    """Readers must not see these any more, of this sink alone."""
    line.deltas["every"] = {txid: rows for txid, rows in line.deltas["every"].items() if txid > until}


@pytest.mark.parametrize("records", [1, 15, 1_000_000])
def test_rows_older_than_the_sink_keeps_them_go_by_whole_transactions_and_all_is_verified(line, monkeypatch, records):
    monkeypatch.setattr(compact, "STEP_RECORDS", records)
    assert kept_up(line) == []
    let_pass(line, 4)
    gone = sum(len(rows) for txid, rows in line.deltas["every"].items() if txid <= 4)
    said = f"kept: every: rows of transactions up to 4 are older than {DAYS} and deleted, {gone:,} rows"
    assert kept_up(line) == [said]
    forget(line, 4)
    line.is_right()
    with line.ledger.begin() as conn:
        noted = conn.execute(select(expired.c.until_txid, expired.c.rows).order_by(expired.c.until_txid)).all()
    said = verify(line.ledger, KEPT)[0].what
    assert said == "transactions 1 to 5; rows of every have expired up to 4"
    # However many steps there were on one day.
    assert noted == [(4, gone)]
    assert kept_up(line) == []
    line.committed()
    line.revised(5, 6)
    line.is_right()
    with line.ledger.begin() as conn:
        conn.execute(update(expired).values(at=expired.c.at - timedelta(days=1)))
    let_pass(line, 5)
    assert "up to 5 are" in kept_up(line)[0]
    with line.ledger.begin() as conn:
        assert conn.execute(select(expired.c.until_txid).order_by(expired.c.until_txid)).scalars().all() == [4, 5]
    forget(line, 5)
    line.is_right()


def test_what_is_unfinished_or_young_keeps_the_rows_of_all_that_come_after(line):
    let_pass(line, 5)
    c = transactions.c
    with line.ledger.begin() as conn:
        young = update(transactions).where(c.txid == 2, c.revision == 0)
        conn.execute(young.values(committed_at=func.clock_timestamp() - DAYS + timedelta(hours=1)))
    assert "up to 1 are" in kept_up(line)[0]
    forget(line, 1)
    line.is_right()


def test_a_transaction_whose_rows_have_expired_is_not_revised_also_where_that_was_begun_before(line):
    run = line.owners[2]
    begun = start(line.ledger, KEPT, line.log, run, 7)
    do(line.ledger, KEPT, begun, make_of(KEPT, 9))
    let_pass(line, 2)
    assert kept_up(line)
    forget(line, 2)
    with pytest.raises(NotRevisable, match="2 is older than an Append keeps its rows: those up to transaction 2"):
        commit(line.ledger, KEPT, begun.claim)
    with pytest.raises(NotRevisable, match="transaction 1 is older .*; the old result stays"):
        begin(line.ledger, KEPT, Run("dag", line.owners[1], 8), line.log.offsets, always_active)
    with pytest.raises(NotRevisable, match="transaction 2 is older"):
        ask(line.ledger, KEPT, 2, 5, "for the test", "me")
    line.is_right()
    # Where the rows are gone, they are so also for a spec that keeps them for ever since.
    line.migrated(KEPT.model_copy(update={"sinks": [Append("every", columns=KEPT.sinks[0].columns), *KEPT.sinks[1:]]}))
    with pytest.raises(NotRevisable, match="transaction 1 is older"):
        begin(line.ledger, line.spec, Run("dag", line.owners[1], 9), line.log.offsets, always_active)
    # And a spec without the sink has nothing that would come back.
    line.migrated(KEPT.model_copy(update={"sinks": KEPT.sinks[1:]}))
    line.revised(1, 5)
    line.is_right()


def test_rows_that_have_not_expired_hold_a_prune_up(line, monkeypatch):
    """Nothing would say when they were committed."""
    monkeypatch.setattr("ratchet.operate.prune.KEPT", 1)
    line.spec = spec = KEPT.model_copy(update={"keep_deltas": timedelta(days=30)})
    let_pass(line, 4, spec.keep_deltas)
    compact.compact(line.ledger, spec)
    with pytest.raises(IllegalMove, match="an Append still keeps their rows for a time"):
        prune(line.ledger, spec, "old", "me")
    let_pass(line, 2)
    assert "up to 2 are" in kept_up(line)[0]
    assert prune(line.ledger, spec, "old", "me").last == 2
    forget(line, 2)
    line.is_right()
    let_pass(line, 4)
    assert "up to 4 are" in kept_up(line)[0]
    forget(line, 4)
    line.is_right()
    assert prune(line.ledger, spec, "old", "me").last == 4
    assert kept_up(line) == []
    line.revised(5, 6)
    line.is_right()


@pytest.mark.parametrize(
    "at_once", [pytest.param(1, marks=pytest.mark.all), 3, pytest.param(10_000, marks=pytest.mark.all)]
)
def test_what_is_pruned_before_its_sink_keeps_rows_for_a_time_alone_expires_when_all_of_it_is_old(
    line, monkeypatch, at_once
):
    monkeypatch.setattr("ratchet.operate.prune.KEPT", 1)
    monkeypatch.setattr(compact, "STEP_TRANSACTIONS", at_once)
    for_ever = [sink.model_copy(update={"keep": None}) if sink.name == "every" else sink for sink in KEPT.sinks]
    before = KEPT.model_copy(update={"keep_deltas": timedelta(days=30), "sinks": for_ever})
    for until in (2, 4):
        let_pass(line, until, before.keep_deltas)
        compact.compact(line.ledger, before)
        assert prune(line.ledger, before, "old", "me").last == until
    assert kept_up(line) == []
    line.is_right()
    let_pass(line, 5)
    assert kept_up(line) == []
    for pruned, until in ((2, 2), (4, 5)):
        with line.ledger.begin() as conn:
            old = update(prunes).where(prunes.c.last_txid == pruned)
            conn.execute(old.values(committed_before=func.clock_timestamp() - DAYS))
        assert f"every: rows of transactions up to {until} are older" in kept_up(line)[0]
        forget(line, until)
        line.is_right()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("delete from {} where ctid = (select min(ctid) from {} where _txid = 4)", "every: transaction 4 has"),
        (
            "insert into {0} (a, b, _txid, _writer, _source, _partition, _offset, _n) "
            "select 1, 'p', 1, _writer, _source, _partition, _offset, _n from {0} where _txid = 4 limit 1",
            "every: transaction 1 has 1 rows, and they have expired",
        ),
    ],
)
def test_a_row_more_or_less_than_has_expired_is_found(line, damage, said):
    let_pass(line, 2)
    kept_up(line)
    with line.ledger.begin() as conn:
        table = 'ratchet_delta."public.every"'
        conn.execute(text(damage.format(table, table)))
    assert [fault.startswith(said) for fault in line.faults()] == [True]


def test_how_long_rows_are_kept_is_no_other_code_and_who_has_another_spec_than_was_migrated_deletes_nothing(line):
    longer = KEPT.model_copy(update={"sinks": [KEPT.sinks[0].model_copy(update={"keep": 2 * DAYS}), *KEPT.sinks[1:]]})
    assert longer.code_hash == KEPT.code_hash
    let_pass(line, 2)
    assert kept_up(line, longer) == []
    wider = Accumulate("totals", key="k string", sum="a bigint, c int", max="a bigint", count="n")
    line.migrated(KEPT.model_copy(update={"sinks": [*KEPT.sinks[:2], wider]}))
    assert kept_up(line, KEPT) == []
    assert kept_up(line)


def test_a_replay_that_waits_while_the_rows_expire_is_given_up_and_holds_nobody_up(line):
    ask(line.ledger, KEPT, 1, 4, "for the test", "me")
    let_pass(line, 2)
    assert kept_up(line)
    forget(line, 2)
    # Live transactions go first: nothing more has arrived.
    line.log.stable = {0: 25, 1: 25}
    begun = start(line.ledger, KEPT, line.log, "replays")
    assert (begun.claim.txid, begun.claim.revision) == (4, 1)
    line.finish(begun, 6)
    line.is_right()
