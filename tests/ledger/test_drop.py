"""A line is dropped wholly, by its owner, when nobody works on it; its names are free then, and others' lines stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, select, text
from sqlalchemy.exc import IntegrityError

from ratchet import Append
from ratchet.errors import Fenced, IllegalMove, Locked, NotMigrated
from ratchet.ledger.fence import hold_try
from ratchet.ledger.schema import dead_letter_deltas, drops, events, metadata
from ratchet.ledger.work import Run
from ratchet.operate.actions import accept_loss
from ratchet.operate.drop import drop, lines_of
from ratchet.operate.migrate import migrate
from ratchet.operate.verify import verify
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Skip, Skipped
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.votes import cast_vote
from ratchet.sinks.owned import rights
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.until import until

from .staging import (
    SPEC,
    Log,
    a_try,
    always_active,
    appended,
    committed,
    contents,
    expire,
    is_waiting,
    planned,
    rows_of,
    start,
    vote_of,
    write_all,
    written,
)

OTHER = SPEC.model_copy(update={"name": "other", "sinks": [Append("others", columns="a bigint")]})
RELATIONS = (
    "public.latest",
    "ratchet_delta.public.latest",
    "public.rows",
    "ratchet_delta.public.rows",
    "public.totals",
    "ratchet_delta.public.totals",
)


def left_of(ledger, pipeline: str) -> dict[str, int]:
    """{table of the ledger: rows of this pipeline}, of those that have any."""
    counts = {}
    with ledger.begin() as conn:
        for table in metadata.sorted_tables:
            if "pipeline" in table.c and table is not drops:
                counts[table.name] = len(conn.execute(select(table).where(table.c.pipeline == pipeline)).all())
        dead = select(dead_letter_deltas).where(dead_letter_deltas.c._pipeline == pipeline)
        counts["dead letters"] = len(conn.execute(dead).all())
    return {name: count for name, count in counts.items() if count}


def faults(ledger, spec) -> list[str]:
    return [fault for check in verify(ledger, spec) for fault in check.faults]


def commit_one(ledger, spec, run: str) -> None:
    begun = start(ledger, spec, Log(), run)
    for part in begun.slices:
        work = a_try(ledger, begun, part.number, spec)
        rows = [{"a": o["_offset"], **o} for o in rows_of(SPEC, work)["rows"]]
        sinks = write_all(ledger, spec, work, {spec.sinks[0].name: [{**r, "a": r["_offset"]} for r in rows]})
        cast_vote(ledger, spec, work.token, vote_of(spec, work, sinks))
    commit(ledger, spec, begun.claim)
    settle(ledger, spec, Run("dag", run), succeeded=True)


def test_a_dropped_line_leaves_nothing_but_a_word_of_it_and_its_names_are_free(whole, log):
    ledger = whole
    migrate(ledger.url, [SPEC, OTHER])
    commit_one(ledger, OTHER, "o")
    for run in "abc":
        settle(ledger, SPEC, Run("dag", run), succeeded=True)
    # A stage, writers that no vote names, and a try of a job that still runs.
    revised = start(ledger, SPEC, log, "a", 1)
    job = a_try(ledger, revised)
    write_all(ledger, SPEC, job, rows_of(SPEC, job))
    settle(ledger, SPEC, Run("dag", "a", 1), succeeded=False)
    before, others = contents(ledger, SPEC), contents(ledger, OTHER)

    done = drop(ledger, "line", "no more needed", "somebody", dry_run=True)
    assert contents(ledger, SPEC) == before and faults(ledger, SPEC) == []
    assert (done.relations, done.left, done.last_txid, done.head, done.dead_letters, done.stages, done.dry_run) == (
        *(RELATIONS, (), 3, 3, 4, 4),
        True,
    )
    assert lines_of(done)[-2:] == [
        "dropped line line: 3 transactions, the head was 3; 4 dead letters, 4 stages",
        "this was a dry run: nothing was changed",
    ]

    assert drop(ledger, "line", "no more needed", "somebody").relations == RELATIONS
    assert left_of(ledger, "line") == {}
    assert contents(ledger, OTHER) == others and faults(ledger, OTHER) == []
    with ledger.begin() as conn:
        (word,) = conn.execute(select(drops)).all()
        assert conn.execute(text("select count(*) from pg_tables where schemaname = 'ratchet_stage'")).scalar() == 0
    assert (word.pipeline, word.last_txid, word.head, word.who, word.reason) == (
        *("line", 3, 3, "somebody", "no more needed"),
    )
    assert len(word.last_commit) == 64 and word.relations == list(RELATIONS)
    with pytest.raises(IllegalMove, match="the ledger has nothing of pipeline line"):
        drop(ledger, "line", "again", "somebody")

    # The names again, by a run of a name that was there before; the old job has no part in it.
    migrate(ledger.url, [SPEC, OTHER])
    first = committed(ledger, Log(stable={0: 7, 1: 9}), "a")
    assert first.claim.txid == 1 and first.claim.revision == 0
    with pytest.raises(Fenced, match="there is no revision 1 of transaction 1"):
        cast_vote(ledger, SPEC, job.token, vote_of(SPEC, job, {}))
    assert appended(ledger) == planned(first) and faults(ledger, SPEC) == []


def test_a_line_that_is_worked_on_is_not_dropped_and_neither_is_what_others_use(ledger, log):
    committed(ledger, log, "a")
    start(ledger, SPEC, log, "b")
    with pytest.raises(IllegalMove, match="run b works on transaction 2, and its lease runs out at"):
        drop(ledger, "line", "x", "somebody")
    expire(ledger)
    with ledger.begin() as conn:
        conn.execute(text("create view mine as select a from rows"))
    before = contents(ledger, SPEC)
    with pytest.raises(IllegalMove, match=r"public.rows: view mine depends on view rows; drop that first"):
        drop(ledger, "line", "x", "somebody")
    assert contents(ledger, SPEC) == before and faults(ledger, SPEC) == []


def test_what_a_job_is_about_to_commit_goes_with_the_line(ledger, log):
    begun = start(ledger, SPEC, log, "a")
    job = a_try(ledger, begun)
    expire(ledger)
    letter = {
        "_partition": 0,
        "_offset": 1,
        "timestamp": None,
        "key": None,
        "value": b"?",
        "headers": None,
        "error": "no",
    }
    with ThreadPoolExecutor(1) as pool:
        with ledger.begin() as conn:
            written(conn, SPEC, job, DEAD_LETTERS, [letter])
            hold_try(conn, job.token)
            dropping = pool.submit(drop, ledger, "line", "x", "somebody")
            until("the drop waits for the job", lambda: is_waiting(ledger))
        assert dropping.result(60).dead_letters == 1
    assert left_of(ledger, "line") == {}


class Overtaken(Log):
    """A log whose first answer comes when the line was dropped meanwhile, and another one has planned as much."""

    def __init__(self, ledger, **ends):
        super().__init__(**ends)
        self._ledger, self.answers = ledger, 0

    def offsets(self, before=None, known=None):
        said = super().offsets(before, known)
        self.answers += 1
        if self.answers == 1:
            drop(self._ledger, "line", "x", "somebody")
            migrate(self._ledger.url, [SPEC])
            committed(self._ledger, Log(stable={0: 10, 1: 3}), "of the line after")
            self.stable = {0: 10, 1: 3}
        return said


def test_an_answer_of_kafka_from_before_the_drop_is_none_to_the_line_after(ledger):
    """Both have one transaction."""
    committed(ledger, Log(stable={0: 10, 1: 0}), "a")
    log = Overtaken(ledger, stable={0: 10, 1: 0})
    found = begin(ledger, SPEC, Run("dag", "b"), log.offsets, always_active)
    assert isinstance(found, Skipped) and found.reason is Skip.NO_RECORDS and log.answers == 2


def test_no_loss_is_accepted_by_an_answer_from_before_the_drop(ledger):
    committed(ledger, Log(stable={0: 10, 1: 0}), "a")
    log = Overtaken(ledger, stable={0: 10, 1: 0})
    with pytest.raises(IllegalMove, match="a run has planned meanwhile; nothing was accepted"):
        accept_loss(ledger, SPEC, log.offsets, "x", "somebody")
    assert faults(ledger, SPEC) == []


def test_a_table_of_the_users_own_stays_and_a_name_that_was_only_migrated_goes(ledger, log):
    mine = OTHER.model_copy(update={"sinks": [Append("mine", columns="a bigint", existing=True)]})
    with ledger.begin() as conn:
        conn.execute(
            text(
                "create table mine (a bigint, _topic text not null, _partition int not null, _offset bigint not null, "
                "_n int not null, _txid bigint not null)"
            )
        )
    migrate(ledger.url, [SPEC, mine])
    commit_one(ledger, mine, "o")
    done = drop(ledger, "other", "x", "somebody")
    assert (done.relations, done.left) == ((), ("public.mine",))
    assert "left public.mine, a table of your own; before its name is used again" in lines_of(done)[0]
    with ledger.begin() as conn:
        assert conn.execute(text("select count(*) from mine")).scalar_one() == 20
    assert left_of(ledger, "other") == {}
    assert drop(ledger, "line", "x", "somebody").relations == RELATIONS


def test_what_a_person_has_made_in_place_of_a_sink_is_no_part_of_the_line(ledger):
    """Neither dropped, nor given to a role: a table where a view was, and one that took a table's name."""
    with ledger.begin() as conn:
        conn.execute(text("drop view rows; drop table totals"))
        conn.execute(text("create table rows (salary int); create table totals (salary int)"))
        assert set(rights(conn)[0]) == {("public", "latest")}
    done = drop(ledger, "line", "x", "somebody")
    assert done.left == ("public.rows", "public.totals")
    assert {"public.latest", "ratchet_delta.public.rows", "ratchet_delta.public.totals"} <= set(done.relations)
    with ledger.begin() as conn:
        assert conn.execute(text("select count(*) from rows, totals")).scalar_one() == 0


def test_a_begin_that_asks_kafka_while_its_line_is_dropped_does_not_bring_it_back(ledger, log):
    def dropped_meanwhile(*asked):
        drop(ledger, "line", "x", "somebody")
        return log.offsets(*asked)

    with pytest.raises(NotMigrated):
        begin(ledger, SPEC, Run("dag", "a"), dropped_meanwhile, always_active)
    assert left_of(ledger, "line") == {}


def test_the_history_of_a_line_goes_only_with_that_line(ledger, log):
    committed(ledger, log, "a")
    for setting in ("", "other"):
        with pytest.raises(IntegrityError, match="append-only"), ledger.begin() as conn:
            conn.execute(text("select set_config('ratchet.dropped', :to, true)"), {"to": setting})
            conn.execute(delete(events))


def test_who_holds_what_is_to_be_dropped_is_said(ledger, log, monkeypatch):
    committed(ledger, log, "a")
    monkeypatch.setattr("ratchet.operate.locks.TRIES", 2)
    said: list[str] = []
    with ledger.begin() as conn:
        conn.execute(text("select count(*) from rows"))
        with pytest.raises(Locked, match=r"stays locked by session \d+ \(ratchet, idle in transaction"):
            drop(ledger, "line", "x", "somebody", said.append)
    assert len(said) == 2 and "a table is locked by session" in said[0]
    assert drop(ledger, "line", "x", "somebody").relations == RELATIONS
