"""Rows that refer to another pipeline's: a commit that comes before those rows waits for them, for a stated time."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import text, update

from ratchet import Accumulate, Append, Json, Pipeline, Topic
from ratchet.errors import CommitFailed, Halted, NotRevisable, Refused
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import transactions
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.operate.actions import retry
from ratchet.operate.migrate import migrate
from ratchet.protocol.begun import Begun
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit

from .staging import contents, do, head, start, state

POSITION = "_topic text not null, _partition int not null, _offset bigint not null, _n int not null, _txid bigint"
LINE = Pipeline(
    # `state` looks at the line of this name.
    name="line",
    source=Topic("t", value=Json("a bigint")),
    sinks=[
        Append("orders", columns="customer bigint", existing=True),
        Accumulate("totals", key="customer bigint", count="n"),
    ],
    transform="tests.ledger.staging:rows_of",
    max_records=2,
    max_in_flight=4,
)
PATIENT = LINE.model_copy(update={"foreign_keys_within": timedelta(hours=1)})
DEFERRED = "deferrable initially deferred"


@pytest.fixture(params=["", DEFERRED], ids=["at once", "deferred"])
def line(ledger: Ledger, request) -> Ledger:
    refer(ledger, request.param)
    return ledger


def refer(ledger: Ledger, when: str) -> None:
    """Customers of a person's own, and orders that refer to them."""
    with ledger.begin() as conn:
        conn.execute(text("create table customers (id bigint primary key)"))
        conn.execute(text(f"create table orders (customer bigint references customers {when}, {POSITION} not null)"))
    migrate(ledger.url, [LINE])


def comes(ledger: Ledger, *customers: int) -> None:
    with ledger.begin() as conn:
        conn.execute(text("insert into customers select unnest(cast(:all as bigint[]))"), {"all": list(customers)})


def ordered(ledger: Ledger, log, run: str, customer: int, spec: Pipeline) -> Begun:
    """A prepared transaction that refers to one customer."""
    begun = start(ledger, spec, log, run)
    do(ledger, spec, begun, lambda _, __: {name: [{"customer": customer, "n": 1}] for name in ("orders", "totals")})
    return begun


def refused(ledger: Ledger, spec: Pipeline, begun: Begun) -> str:
    with pytest.raises(CommitFailed) as raised:
        commit(ledger, spec, begun.claim)
    return str(raised.value)


def test_a_commit_waits_for_the_row_that_it_refers_to_and_is_not_counted(line, log):
    begun = ordered(line, log, "a", 1, PATIENT)
    for run in "abcde":
        if run != "a":
            begun = start(line, PATIENT, log, run)
            assert (begun.how, begun.claim.txid, begun.claim.epoch) == ("adopted", 1, 1)
        said = refused(line, PATIENT, begun)
        assert "violates foreign key constraint" in said and "is tried again, and not counted, until " in said
        assert state(line, 1) == "PREPARED" and head(line) == 0
        settle(line, PATIENT, Run("dag", run), succeeded=False, reason="failed: commit")
    comes(line, 1)
    last = start(line, PATIENT, log, "f")
    assert isinstance(commit(line, PATIENT, last.claim), Committed)
    with line.begin() as conn:
        assert read_transaction(conn, "line", 1).failures == 0
    assert len(contents(line, PATIENT)["orders"]) == 2 and len(contents(line, PATIENT)["totals"]) == 1


HASTY = LINE.model_copy(update={"foreign_keys_within": timedelta(microseconds=1)})
"""For which the time is over with the second try."""


def test_when_the_stated_time_is_over_it_counts_and_halts_the_line_and_a_person_gives_it_anew(line, log):
    begun = ordered(line, log, "a", 1, HASTY)
    assert "and not counted, until" in refused(line, HASTY, begun)
    settle(line, HASTY, Run("dag", "a"), succeeded=False, reason="failed: commit")
    for run in "bcd":
        assert refused(line, HASTY, start(line, HASTY, log, run)).endswith("the next run tries it again")
        settle(line, HASTY, Run("dag", run), succeeded=False, reason="failed: commit")
    with pytest.raises(Halted, match="halted at transaction 1 .* after 3 failures"):
        start(line, HASTY, log, "e")
    retry(line, HASTY, None, "me")
    assert "and not counted, until" in refused(line, HASTY, start(line, HASTY, log, "f"))
    settle(line, HASTY, Run("dag", "f"), succeeded=False, reason="failed: commit")
    # So does who clears the run that has it.
    assert "and not counted, until" in refused(line, HASTY, start(line, HASTY, log, "f", 1))


def test_the_time_begins_with_the_turn_and_not_when_it_was_prepared(line, log):
    comes(line, 1)
    begun = [ordered(line, log, run, customer, PATIENT) for run, customer in zip("ab", (1, 2), strict=True)]
    c = transactions.c
    with line.begin() as conn:
        conn.execute(update(transactions).values({c.prepared_at: c.prepared_at - timedelta(hours=2)}))
    commit(line, PATIENT, begun[0].claim)
    assert "and not counted, until" in refused(line, PATIENT, begun[1])


@pytest.mark.parametrize("spec", [LINE, PATIENT], ids=["not stated", "stated"])
def test_that_others_refer_to_a_row_that_goes_is_no_reason_to_wait(line, log, spec):
    comes(line, 1)
    commit(line, spec, ordered(line, log, "a", 1, spec).claim)
    settle(line, spec, Run("dag", "a"), succeeded=True)
    with line.begin() as conn:
        conn.execute(text("alter table orders add unique (_partition, _offset)"))
        conn.execute(
            text("create table notes (p int, o bigint, foreign key (p, o) references orders (_partition, _offset))")
        )
        conn.execute(text("insert into notes select _partition, _offset from orders"))
    revision = start(line, spec, log, "a", 1)
    do(line, spec, revision, lambda _, __: {"totals": [{"customer": 1, "n": 1}]})
    with pytest.raises((Refused, NotRevisable), match="foreign key.*the old result stays") as raised:
        commit(line, spec, revision.claim)
    assert "foreign_keys_within" not in str(raised.value)


def test_without_a_stated_time_it_is_aborted_with_what_to_state(line, log):
    begun = ordered(line, log, "a", 1, LINE)
    with pytest.raises(Refused, match="violates foreign key constraint.*foreign_keys_within"):
        commit(line, LINE, begun.claim)
    assert state(line, 1) == "ABORTED"


@pytest.mark.parametrize("spec", [LINE, PATIENT], ids=["not stated", "stated"])
def test_one_behind_it_that_refers_to_nothing_known_is_left_to_its_own_commit(line, log, spec):
    """Also where PostgreSQL looks at the constraint only at the COMMIT, which is the whole group's."""
    comes(line, 1, 3)
    begun = [ordered(line, log, run, customer, spec) for run, customer in zip("abc", (1, 2, 3), strict=True)]
    said = commit(line, spec, begun[0].claim)
    assert isinstance(said, Committed) and said.txids == (1,)
    assert "2 fails and is left to its own commit" in said.message
    assert (state(line, 1), state(line, 2), state(line, 3), head(line)) == ("COMMITTED", "PREPARED", "PREPARED", 1)
    comes(line, 2)
    assert commit(line, spec, begun[1].claim).txids == (2, 3)


def test_rows_of_one_transaction_may_refer_to_one_another_where_the_constraint_is_deferred(ledger, log):
    refer(ledger, DEFERRED)
    both = LINE.model_copy(
        update={"sinks": [*LINE.sinks, Append("people", columns="id bigint", existing=True)], "name": "both"}
    )
    with ledger.begin() as conn:
        conn.execute(text(f"create table people (id bigint primary key references customers {DEFERRED}, {POSITION})"))
        conn.execute(text("alter table orders drop constraint orders_customer_fkey"))
        conn.execute(text(f"alter table orders add foreign key (customer) references people {DEFERRED}"))
    migrate(ledger.url, [both])
    comes(ledger, *range(50))
    begun = [start(ledger, both, log, run) for run in "ab"]
    for each in begun:
        # Orders come before the people that they are of, in the order of the sinks.
        do(
            ledger,
            both,
            each,
            lambda p, offset: {
                "orders": [{"customer": offset}],
                "people": [{"id": offset}] if p == 0 else [],
                "totals": [{"customer": offset, "n": 1}],
            },
        )
    assert commit(ledger, both, begun[0].claim).txids == (1, 2)


def test_a_revision_that_refers_to_nothing_known_is_tried_again_as_well(line, log):
    comes(line, 1)
    begun = ordered(line, log, "a", 1, PATIENT)
    commit(line, PATIENT, begun.claim)
    settle(line, PATIENT, Run("dag", "a"), succeeded=True)
    before = contents(line, PATIENT)
    revision = start(line, PATIENT, log, "a", 1)
    assert revision.claim.revision == 1
    do(line, PATIENT, revision, lambda _, __: {"orders": [{"customer": 2}], "totals": [{"customer": 2, "n": 1}]})
    with pytest.raises(CommitFailed, match="and not counted, until"):
        commit(line, PATIENT, revision.claim)
    assert contents(line, PATIENT) == before
    comes(line, 2)
    commit(line, PATIENT, revision.claim)
    assert {row[0] for row in contents(line, PATIENT)["orders"]} == {2}


def test_a_revision_is_given_its_reason_where_no_time_is_stated(line, log):
    comes(line, 1)
    commit(line, LINE, ordered(line, log, "a", 1, LINE).claim)
    settle(line, LINE, Run("dag", "a"), succeeded=True)
    revision = start(line, LINE, log, "a", 1)
    do(line, LINE, revision, lambda _, __: {"orders": [{"customer": 2}], "totals": [{"customer": 2, "n": 1}]})
    with pytest.raises((Refused, NotRevisable), match="foreign key.*the old result stays"):
        commit(line, LINE, revision.claim)
