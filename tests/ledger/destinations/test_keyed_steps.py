"""What steps have touched is put by key: what is there is the state after a step, never something between two."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text

from ratchet import Upsert
from ratchet.errors import SettingsError, StageMismatch
from ratchet.operate.destinations import How, attach, detach
from ratchet.operate.migrate import migrate
from ratchet.protocol.commit import Committed, commit
from ratchet.protocol.compact import compact
from ratchet.protocol.follow import follow

from .following import Late, at_once
from .keyed_places import KEY, KINDS, Keyed, Place, row, spec_of


@pytest.fixture(params=KINDS)
def keyed(request, bare, elsewhere, log, tmp_path) -> Keyed:
    """One to a destination of each kind."""
    return Keyed.made(bare, Place.of(request.param, elsewhere, tmp_path), log)


@pytest.fixture
def in_table(bare, elsewhere, log, tmp_path) -> Keyed:
    """One to a table of another database."""
    return Keyed.made(bare, Place.of("table", elsewhere, tmp_path), log)


@pytest.mark.invariant("I1", "I2")
def test_a_group_is_one_change_and_a_key_is_there_as_the_last_of_it_has_left_it(keyed):
    begun = [keyed.prepared(run, {0: row("x", n), 1: row(run, n)}) for n, run in enumerate("abc", 1)]
    changes: list[tuple[int, int]] = []

    @contextmanager
    def counted(destination, owner):
        with keyed.opens(destination, owner) as outside:
            apply = outside.apply
            outside.apply = lambda at, to, change: (changes.append((at.step, to.step)), apply(at, to, change))[1]
            yield outside

    for each in reversed(begun):
        outcome = commit(keyed.ledger, keyed.spec, each.claim, counted)
    assert isinstance(outcome, Committed) and outcome.txids == (1, 2, 3)
    assert changes == [(0, 3)] and keyed.mark().step == 3
    assert keyed.there() == [("a", 1, 1), ("b", 2, 2), ("c", 3, 3), ("x", 3, 3)] == keyed.state()


@pytest.mark.invariant("I1")
def test_a_key_that_a_revision_has_no_more_goes_and_one_that_a_record_deletes(keyed):
    keyed.run("a", {0: row("x", 1), 1: row("y", 2), 2: row("z", 3)})
    keyed.run("b", {0: row("y", 4, gone=True), 1: row("z", 5)})
    keyed.is_whole()
    assert keyed.there() == [("x", 1, 1), ("z", 5, 2)]
    keyed.run("a", {0: row("w", 1)}, 1)
    assert keyed.there() == [("w", 1, 1), ("z", 5, 2)] == keyed.state()
    keyed.run("b", {}, 1)
    assert keyed.there() == [("w", 1, 1)] == keyed.state()
    # Nothing is touched, and the mark moves all the same.
    keyed.run("c", {})
    assert keyed.mark().step == 5
    keyed.is_whole()


@pytest.mark.invariant("I1")
def test_what_comes_back_lacks_no_key_that_was_taken_away_meanwhile(keyed):
    keyed.run("a", {0: row("x", 1), 1: row("y", 2)})
    detach(keyed.ledger, "line", keyed.address, "for the test", "me")
    keyed.run("a", {0: row("v", 1)}, 1)
    keyed.run("a", {0: row("w", 1)}, 2)
    keyed.run("b", {0: row("y", 2)})
    assert keyed.there() == [("x", 1, 1), ("y", 2, 1)]
    attach(keyed.ledger, keyed.spec, keyed.address, How.ON, "for the test", "me", keyed.opens)
    assert keyed.there() == [("w", 1, 1), ("y", 2, 2)] == keyed.state()


@pytest.mark.invariant("I1")
def test_a_late_follower_changes_nothing_and_of_many_one_puts_the_rows(keyed):
    keyed.run("a", {0: row("x", 1)})
    keyed.decided("b", {0: row("x", 2), 1: row("y", 2)})
    late = Late(keyed.ledger, keyed.spec, keyed.opens)
    assert at_once(keyed.ledger, keyed.spec, keyed.opens) == []
    keyed.run("c", {0: row("x", 3), 1: row("y", 3, gone=True)})
    late.end()
    assert late.said == [False] and keyed.mark().step == 3
    assert keyed.there() == [("x", 3, 3)] == keyed.state()


@pytest.mark.invariant("I1")
def test_deltas_that_a_destination_has_to_hear_of_are_not_compacted(in_table):
    in_table.spec = in_table.spec.model_copy(update={"keep_deltas": timedelta(0)})
    in_table.decided("a", {0: row("x", 1)})
    assert compact(in_table.ledger, in_table.spec) is None
    follow(in_table.ledger, in_table.spec, in_table.opens)
    in_table.is_whole()
    assert compact(in_table.ledger, in_table.spec) is not None


@pytest.mark.invariant("I1")
def test_of_deltas_that_are_compacted_no_key_is_guessed_and_anew_brings_the_state(keyed):
    keyed.run("a", {0: row("x", 1), 1: row("y", 1)})
    detach(keyed.ledger, "line", keyed.address, "for the test", "me")
    keyed.run("a", {0: row("x", 2)}, 1)
    keyed.run("b", {0: row("x", 3), 1: row("z", 3)})
    keyed.spec = keyed.spec.model_copy(update={"keep_deltas": timedelta(0)})
    assert compact(keyed.ledger, keyed.spec) is not None
    with keyed.ledger.begin() as conn:
        assert conn.execute(text("select count(*) from ratchet.exchanged")).scalar_one() == 0
    with pytest.raises(StageMismatch, match="which keys transaction 1 has touched nobody knows any more: .*--anew"):
        attach(keyed.ledger, keyed.spec, keyed.address, How.ON, "for the test", "me", keyed.opens)
    assert keyed.there() == [("x", 1, 1), ("y", 1, 1)]
    attach(keyed.ledger, keyed.spec, keyed.address, How.ANEW, "for the test", "me", keyed.opens)
    assert keyed.there() == [("x", 3, 2), ("z", 3, 2)] == keyed.state()
    keyed.run("c", {0: row("x", 4)})
    keyed.is_whole()


@pytest.mark.invariant("I1")
def test_where_rows_of_a_delta_are_missing_nothing_is_put(in_table):
    in_table.run("a", {0: row("x", 1)})
    in_table.decided("b", {0: row("x", 2), 1: row("y", 2)})
    with in_table.ledger.begin() as conn:
        conn.execute(text("""delete from ratchet_delta."public.latest" where k = 'y'"""))
    with pytest.raises(StageMismatch, match="has 1 row of what it lacks, and votes say 2, as `ratchet verify` tells"):
        follow(in_table.ledger, in_table.spec, in_table.opens)
    assert in_table.there() == [("x", 1, 1)]


@pytest.mark.invariant("I1")
def test_where_a_step_is_gone_nothing_is_put(in_table):
    in_table.run("a", {0: row("x", 1)})
    detach(in_table.ledger, "line", in_table.address, "for the test", "me")
    for run in "bcd":
        in_table.run(run, {0: row(run, 2)})
    with in_table.ledger.begin() as conn:
        conn.execute(text("delete from ratchet.steps where step = 3"))
        conn.execute(
            text("update ratchet.destinations set detached_at = null, detached_by = null, detached_why = null")
        )
    with pytest.raises(StageMismatch, match="has step 1 of 4, and a later one is gone from ratchet.steps"):
        follow(in_table.ledger, in_table.spec, in_table.opens)
    assert in_table.there() == [("x", 1, 1)]


@pytest.mark.invariant("I1")
def test_a_first_destination_that_comes_while_a_revision_exchanges_rows_hears_of_its_keys(
    bare, elsewhere, log, tmp_path, monkeypatch
):
    place = Place.of("table", elsewhere, tmp_path)
    spec = spec_of(place.to)
    latest = Upsert("latest", key=KEY, columns="a bigint", order="a")
    alone = spec.model_copy(update={"sinks": [spec.sinks[0], latest]})
    migrate(bare.url, [alone])
    keyed = Keyed(bare, place, log, alone)
    keyed.run("a", {0: row("x", 1), 1: row("y", 1)})
    again = keyed.prepared("a", {0: row("y", 2)}, 1)
    replace, times = Upsert.replace, []

    def beside(self, conn, of, head):
        times.append(of.awaited_as)
        done = replace(self, conn, of, head)
        if len(times) == 1:
            migrate(bare.url, [spec])
            keyed.spec = spec
            attach(bare, spec, place.to.address, How.ANEW, "for the test", "me", keyed.opens)
        return done

    monkeypatch.setattr(Upsert, "replace", beside)
    with pytest.raises(SettingsError, match="the ledger knows warehouse:latest_there as a destination of latest, and"):
        commit(bare, alone, again.claim)
    follow(bare, spec, keyed.opens)
    assert times == [None, 1]
    assert keyed.there() == [("y", 2, 1)] == keyed.state()
