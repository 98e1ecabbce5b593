"""Each change of a spec, on a line that has a history: what comes of it, what readers see, and that all is verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

from ratchet import Pipeline
from ratchet.errors import NotMigrated, SpecError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.operate.migrate import differences, migrate
from ratchet.protocol.begin import begin

from .changes import CHANGES, Change
from .grown import GROWN, Grown, grow
from .staging import always_active

NAMED = {change.name: change for change in CHANGES}
CARRIED_OUT = [change for change in CHANGES if not change.refused]

GROUPS = [
    ("append: column added", "own: column added", "accumulate: measure added", "sink added: append"),
    ("append: column renamed", "own: column dropped", "accumulate: count added", "upsert: column may be null"),
    (
        "append: not null column dropped",
        "append: index added",
        "upsert: column added",
        "accumulate: key may be null",
        "upsert by order: order may not be null",
    ),
    ("append: column may be null", "own: column retyped", "upsert by order: column added", "gate added"),
    ("sink dropped: accumulate", "sink added: upsert"),
]


@pytest.fixture(scope="module")
def histories(postgres) -> dict[str, tuple[str, Grown]]:
    """{plan hash: the database of a line with such a spec and a history, and that line}; made once."""
    return {}


@pytest.fixture
def grown(postgres, histories) -> Iterator[Callable[[Pipeline], Grown]]:
    """A line with that spec and a history, in a database of its own."""
    copies: list[str] = []
    with psycopg.connect(postgres.ledger_url, autocommit=True) as admin, ExitStack() as opened:

        def database(template: str | None = None) -> str:
            name, like = f"grown_{uuid4().hex[:12]}", sql.Identifier(template or "template1")
            admin.execute(sql.SQL("create database {} template {}").format(sql.Identifier(name), like))
            return name

        def of(spec: Pipeline) -> Grown:
            if spec.plan_hash not in histories:
                name = database()
                with Ledger(postgres.database_url(name)) as ledger:
                    made = grow(ledger, spec)
                made.ledger = None
                histories[spec.plan_hash] = name, made
            template, made = histories[spec.plan_hash]
            copies.append(database(template))
            mine = deepcopy(made)
            mine.ledger = opened.enter_context(Ledger(postgres.database_url(copies[-1])))
            return mine

        yield of
        opened.close()
        for name in copies:
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def change_to(line: Grown, *changes: Change) -> None:
    """Carry changes out: a begin of the new spec says so where nobody has migrated, and nothing is begun."""
    before, spec = line.spec, line.spec
    for change in changes:
        spec = change.of(spec)
        if change.alters:
            with line.ledger.begin() as conn:
                conn.execute(text(change.alters))
    if not all(change.begins for change in changes):
        with pytest.raises(NotMigrated, match="nothing was begun; `ratchet migrate`"):
            begin(line.ledger, spec, Run("dag", "early"), line.log.offsets, always_active)
    line.migrated(spec)
    line.is_right()
    line.go_on(before)


def refuse(line: Grown, change: Change) -> None:
    """A change that is refused changes nothing, and neither does a begin of the new spec."""
    if change.alters:
        with line.ledger.begin() as conn:
            conn.execute(text(change.alters))
    spec = change.of(line.spec)
    with pytest.raises(NotMigrated, match="nothing was begun; `ratchet migrate`"):
        begin(line.ledger, spec, Run("dag", "early"), line.log.offsets, always_active)
    with pytest.raises(NotMigrated, match=change.refused), line.ledger.snapshot() as conn:
        differences(conn, spec)
    with pytest.raises(NotMigrated, match=change.refused):
        migrate(line.ledger.url, [spec])


@pytest.mark.all
def test_changes_one_after_the_other_are_carried_out_on_a_line_with_a_history(grown):
    line = grown(GROWN)
    for group in GROUPS:
        change_to(line, *(NAMED[name] for name in group))
        line.leave()
    line.compacted(8)
    line.is_right()


def test_a_change_that_is_refused_says_what_to_do_and_changes_nothing(grown):
    line = grown(GROWN)
    for change in CHANGES:
        if change.refused and not change.alters:
            refuse(line, change)
    line.go_on(line.spec)


@pytest.mark.all
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_whatever_is_changed_the_line_goes_on(grown, change):
    line = grown(change.spec)
    if change.refused:
        refuse(line, change)
    else:
        change_to(line, change)
        line.leave()
    line.go_on(line.spec)
    line.compacted(5)
    line.is_right()


@pytest.mark.all
@pytest.mark.parametrize("change", [change for change in CARRIED_OUT if not change.alters], ids=str)
def test_a_change_that_nothing_was_written_with_is_taken_back(grown, change):
    line = grown(change.spec)
    line.migrated(change.of(change.spec))
    line.migrated(change.spec)
    line.is_right()
    line.go_on(change.spec)


def can_be_declared(spec: Pipeline) -> bool:
    """Whether nobody is told so before there is a spec."""
    try:
        for sink in spec.sinks:
            type(sink).model_validate(sink.model_dump())
    except SpecError:
        return False
    return True


PAIRS = [
    (first, second)
    for first in CARRIED_OUT
    for second in CHANGES
    if first.of_what == second.of_what and first.spec == second.spec and not second.alters
    if can_be_declared(second.of(first.of(first.spec)))
]


LEFT = (
    "its column",
    "has rows, which have no",
    # Each change is one of GROWN's declarations, so it takes back the type that the first has given a column.
    "the spec declares",
)
"""What is said of a spec that does not fit what the change before it has left."""


@pytest.mark.all
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
def test_of_any_two_changes_of_one_sink_the_second_is_carried_out_or_refused(grown, first, second):
    line = grown(first.spec)
    change_to(line, first)
    line.leave()
    before, spec = line.spec, second.of(line.spec)
    try:
        line.migrated(spec)
    except NotMigrated as refused:
        # Said of what the first has left, where not of the second itself.
        assert second.refused or any(said in str(refused) for said in LEFT), refused
    line.is_right()
    line.go_on(before)
    line.compacted(5)
    line.is_right()


TAKEN_BACK = [
    ("accumulate: measure added", "its column c_sum is not in the spec"),
    pytest.param("upsert: column added", "its column c is not in the spec", marks=pytest.mark.all),
    pytest.param("append: column added", None, marks=pytest.mark.all),
    pytest.param("append: not null column dropped", None, marks=pytest.mark.all),
    pytest.param("accumulate: key may be null", None, marks=pytest.mark.all),
    pytest.param("sink dropped: accumulate", None, marks=pytest.mark.all),
]


@pytest.mark.parametrize(("name", "refused"), TAKEN_BACK)
def test_a_change_is_taken_back_until_rows_bear_it_out(grown, name, refused):
    line, changed = grown(GROWN), NAMED[name].of(GROWN)
    line.migrated(changed)
    if refused:
        with pytest.raises(NotMigrated, match=f"{refused}.*; where it was run for a newer spec than this one, deploy"):
            begin(line.ledger, GROWN, Run("dag", "rolled back"), line.log.offsets, always_active)
    line.migrated(GROWN)
    line.is_right()
    line.migrated(changed)
    line.go_on(GROWN)
    line.leave()
    with pytest.raises(NotMigrated, match=refused) if refused else nullcontext():
        line.migrated(GROWN)
    line.is_right()
    line.go_on(changed)


def test_a_compaction_by_a_spec_of_before_loses_no_column_that_it_does_not_know(grown):
    line = grown(GROWN)
    line.migrated(NAMED["accumulate: measure added"].of(GROWN))
    line.go_on(GROWN)
    wider, line.spec = line.spec, GROWN
    line.compacted(6)
    line.spec = wider
    line.is_right()
    line.compacted(6)
    line.is_right()


def test_a_column_that_a_person_drops_from_a_table_of_their_own_is_told_by_verify(grown):
    line = grown(GROWN)
    line.migrated(NAMED["own: column dropped"].of(GROWN))
    with line.ledger.begin() as conn:
        conn.execute(text("alter table mine drop column b"))
    told = [f"mine: transaction {txid} was written with column b, which is gone" for txid in (1, 2, 4)]
    assert line.faults() == told
