"""The time in which a compacted topic has to be read, and what becomes of what is read too late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from sqlalchemy import select, text

from ratchet import Json, Pipeline, Topic, Upsert
from ratchet.errors import IllegalMove, NotRevisable, Repartitioned, TombstonesLost
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import transactions
from ratchet.ledger.transactions import lock_pipeline
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss, void
from ratchet.operate.repartition import repartitioned
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.revise import revise
from ratchet.protocol.tombstones import attend
from ratchet.protocol.votes import cast_vote
from ratchet.source.offsets import TopicOffsets

from .staging import Log, a_try, always_active, prepare, rows_of, start, vote_of, write_all

TOPIC = Topic("t", key="k string", value=Json("a bigint"), tombstones="delete")
UNCOMPACTED = Pipeline(name="line", source=TOPIC, sinks=[Upsert("latest", key="k string", columns="a bigint")])
SPEC = UNCOMPACTED.model_copy(update={"source": TOPIC.model_copy(update={"compacted": True})})


_EARLIER = """
update ratchet.sources set looks = (
    select jsonb_agg(jsonb_set(look, '{at}', to_jsonb((look->>'at')::timestamptz - interval '2 days')))
    from jsonb_array_elements(looks) look
)
"""


@dataclass
class Kept(Log):
    """A log of which tombstones are kept for a time."""

    tombstones: timedelta | None = timedelta(days=1)

    def offsets(self, *asked) -> TopicOffsets:
        return replace(super().offsets(*asked), kept_tombstones=self.tombstones)


@pytest.fixture
def kept() -> Kept:
    return Kept()


def do(ledger: Ledger, spec: Pipeline, log: Log, run: str) -> None:
    begun = start(ledger, spec, log, run)
    prepare(ledger, spec, begun)
    assert isinstance(commit(ledger, spec, begun.claim), Committed)
    settle(ledger, spec, Run("dag", run), succeeded=True)


def grow(log: Log) -> None:
    log.stable = {p: at + 10 for p, at in log.stable.items()}


def two_days_pass(ledger: Ledger) -> None:
    """All that the ledger has noted of times was two days earlier."""
    with ledger.begin() as conn:
        conn.execute(text("update ratchet.transactions set tombstones_since = tombstones_since - interval '2 days'"))
        conn.execute(text(_EARLIER))


@pytest.mark.invariant("I1")
def test_what_is_begun_or_read_too_late_waits_for_a_person(ledger, kept):
    do(ledger, SPEC, kept, "first")
    grow(kept)
    begun = start(ledger, SPEC, kept, "second")
    work = a_try(ledger, begun, spec=SPEC)
    vote = vote_of(SPEC, work, write_all(ledger, SPEC, work, rows_of(SPEC, work)))
    two_days_pass(ledger)
    with pytest.raises(TombstonesLost, match="had to be read before"):
        cast_vote(ledger, SPEC, work.token, vote)
    with pytest.raises(TombstonesLost, match="had to be read before"):
        prepare(ledger, SPEC, begun)
    grow(kept)
    with pytest.raises(TombstonesLost, match="was not read to its end since"):
        begin(ledger, SPEC, Run("dag", "third"), kept.offsets, always_active)
    tried = accept_loss(ledger, SPEC, kept.offsets, "no key is deleted", "somebody", dry_run=True)
    assert tried.accepted is not None and tried.changes == ()
    accept_loss(ledger, SPEC, kept.offsets, "no key is deleted", "somebody")
    prepare(ledger, SPEC, begun)
    assert commit(ledger, SPEC, begun.claim).txids == (2,)
    do(ledger, SPEC, kept, "third")
    with pytest.raises(IllegalMove, match="there is no loss to accept"):
        accept_loss(ledger, SPEC, kept.offsets, "no key is deleted", "somebody")


def test_a_look_that_finds_nothing_begins_the_time(ledger, kept):
    do(ledger, SPEC, kept, "first")
    two_days_pass(ledger)
    assert isinstance(begin(ledger, SPEC, Run("dag", "idle"), kept.offsets, always_active), Skipped)
    grow(kept)
    do(ledger, SPEC, kept, "second")


def test_a_line_that_no_run_begins_for_long_is_looked_at_by_maintenance(ledger, kept):
    asked: list[object] = []

    def offsets(*of):
        asked.append(of)
        return kept.offsets(*of)

    attend(ledger, SPEC, offsets)
    do(ledger, SPEC, kept, "first")
    attend(ledger, SPEC, offsets)
    assert not asked
    two_days_pass(ledger)
    for _ in range(2):
        attend(ledger, SPEC, offsets)
    assert len(asked) == 1
    grow(kept)
    do(ledger, SPEC, kept, "second")
    # What is unread is not passed over by a look.
    grow(kept)
    two_days_pass(ledger)
    attend(ledger, SPEC, offsets)
    with pytest.raises(TombstonesLost):
        begin(ledger, SPEC, Run("dag", "third"), kept.offsets, always_active)


def test_of_a_line_that_has_read_the_topic_otherwise_nothing_is_known(ledger, kept):
    kept.tombstones = None
    do(ledger, UNCOMPACTED, kept, "first")
    grow(kept)
    start(ledger, UNCOMPACTED, kept, "second")
    settle(ledger, UNCOMPACTED, Run("dag", "second"), succeeded=False)
    kept.tombstones = timedelta(days=1)
    begun = start(ledger, SPEC, kept, "third")
    assert begun.how == "adopted"
    with pytest.raises(TombstonesLost, match="is compacted, and was not when it was planned"):
        prepare(ledger, SPEC, begun)
    grow(kept)
    for _ in range(2):
        with pytest.raises(TombstonesLost, match="was not read to its end while it was compacted"):
            begin(ledger, SPEC, Run("dag", "fourth"), kept.offsets, always_active)
    accept_loss(ledger, SPEC, kept.offsets, "it was read every hour", "somebody")
    prepare(ledger, SPEC, begun)
    assert commit(ledger, SPEC, begun.claim).txids == (2,)
    do(ledger, SPEC, kept, "fourth")


def test_what_is_being_read_has_no_more_time_than_kafka_says_later(ledger, kept):
    start(ledger, SPEC, kept, "first")
    grow(kept)
    kept.tombstones = timedelta(hours=1)
    start(ledger, SPEC, kept, "second")
    with ledger.begin() as conn:
        found = conn.execute(select(transactions.c.txid, transactions.c.tombstones_kept))
        assert dict(found.all()) == {1: timedelta(hours=1), 2: timedelta(hours=1)}


def test_what_other_code_has_prepared_and_cannot_be_read_again_in_time_is_left_to_that_code(ledger, kept):
    begun = start(ledger, SPEC, kept, "first")
    prepare(ledger, SPEC, begun)
    settle(ledger, SPEC, Run("dag", "first"), succeeded=False)
    two_days_pass(ledger)
    other = SPEC.model_copy(update={"private": True})
    with pytest.raises(TombstonesLost, match="go back to the code of before to commit it"):
        begin(ledger, other, Run("dag", "second"), kept.offsets, always_active)
    start(ledger, SPEC, kept, "second")
    assert isinstance(commit(ledger, SPEC, begun.claim), Committed)


def test_what_is_voided_is_replayed_while_its_records_are_there_for_certain(ledger, kept):
    start(ledger, SPEC, kept, "first")
    void(ledger, SPEC, 1, "not now", "somebody")

    def revised():
        with ledger.begin() as conn:
            line = lock_pipeline(conn, SPEC.name)
            return revise(conn, SPEC, line, 1, Run("dag", "again"))

    claim = revised()
    with ledger.begin() as conn:
        of = (transactions.c.txid == 1, transactions.c.revision == claim.revision)
        assert conn.execute(select(transactions.c.tombstones_since).where(*of)).scalar_one() is not None
    two_days_pass(ledger)
    with pytest.raises(NotRevisable, match="it stays voided"):
        revised()


def test_keys_of_a_compacted_topic_stay_in_their_partitions(ledger, kept):
    do(ledger, SPEC, kept, "first")
    kept.stable, kept.beginning = {**kept.stable, 2: 5}, {**kept.beginning, 2: 0}
    with pytest.raises(Repartitioned, match="write the keys to a new topic, and read that by a new pipeline"):
        begin(ledger, SPEC, Run("dag", "second"), kept.offsets, always_active)
    with pytest.raises(IllegalMove, match="nothing would tell lost deletions"):
        repartitioned(ledger, SPEC, kept.offsets, "there are more", "somebody")
