"""A line goes on without a destination, and the destination comes back: on, anew, or from here."""

from __future__ import annotations

from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import delete, select

from ratchet import Append, Table
from ratchet.errors import DestinationRefused, Fenced, IllegalMove, MarkMoved, SettingsError, StageMismatch
from ratchet.ledger import steps as numbered
from ratchet.ledger.connection import Ledger
from ratchet.ledger.schema import steps
from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.operate.destinations import How, attach, detach, lines_of
from ratchet.operate.erase import erase
from ratchet.operate.migrate import migrate
from ratchet.operate.prune import prune
from ratchet.operate.snapshot.status import status
from ratchet.operate.snapshot.words import lines_of as status_lines
from ratchet.operate.verify import verify
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.compact import compact
from ratchet.protocol.follow import follow

from ..staging import appended, prepare, start, state
from ..test_prune import age
from .elsewhere import SENT, Elsewhere, revise, sent, without

ADDRESS = "warehouse:copied"


def back(ledger: Ledger, there: Elsewhere, how: How = How.ON, **more):
    return attach(ledger, SENT, ADDRESS, how, "it is back", "me", there.opens, **more)


def said(ledger: Ledger) -> str:
    return "\n".join(status_lines(status(ledger, "line")))


def faults(ledger: Ledger) -> list[str]:
    return [fault for check in verify(ledger, SENT) for fault in check.faults]


@pytest.mark.invariant("I1", "I3")
def test_a_line_goes_on_without_a_destination_that_gets_the_rest_when_it_is_back(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    waiting = start(ledger, SENT, log, "b")
    prepare(ledger, SENT, waiting)
    with pytest.raises(SettingsError):
        commit(ledger, SENT, waiting.claim)
    assert "  warehouse:copied, of rows: BEHIND, at step 1 of 2, since " in "\n".join(
        status_lines(status(ledger, "line"))
    )
    assert faults(ledger) == ["warehouse:copied has step 1 of 2; the maintenance sends it the rest"]
    tried = detach(ledger, "line", ADDRESS, "moved house", "me", dry_run=True)
    assert lines_of(tried)[1] == "this was a dry run: nothing was changed"
    done = detach(ledger, "line", ADDRESS, "moved house", "me")
    assert (done.attached, done.step, done.last) == (False, 1, 2) and "it lacks 1 step" in done.said
    assert "DETACHED since" in said(ledger) and "by me: moved house; it has step 1, and lacks 1 step" in said(ledger)
    with pytest.raises(IllegalMove, match="was detached at .* by me: moved house"):
        detach(ledger, "line", ADDRESS, "again", "me")
    without(ledger, log, "c")
    assert state(ledger, 3) == State.COMMITTED and elsewhere.step == 1 and faults(ledger) == []
    assert (
        back(ledger, elsewhere).said
        == "is attached at step 1, on; lacks 2 steps; warehouse:copied is at step 3, 2 further"
    )
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 3
    sent(ledger, elsewhere, log, "d")
    assert elsewhere.rows() == appended(ledger)
    assert "warehouse:copied, of rows: has all, step 4" in said(ledger)
    with ledger.begin() as conn:
        conn.execute(delete(steps).where(steps.c.step == 3))
    assert faults(ledger) == ["transaction 3 is committed, and no step of destinations"]


@pytest.mark.invariant("I1")
def test_what_was_revised_while_it_was_detached_comes_as_it_is_now(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    settle(ledger, SENT, Run("dag", "a"), succeeded=True)
    detach(ledger, "line", ADDRESS, "for the test", "me")
    without(ledger, log, "b")
    revise(ledger, elsewhere, log, "b", 1, drop=3)
    revise(ledger, elsewhere, log, "a", 1, drop=1)
    revise(ledger, elsewhere, log, "b", 2, drop=2)
    back(ledger, elsewhere)
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 5
    assert elsewhere.ask("select count(*) from copied where a > 0") == [(0,)]


@pytest.mark.invariant("I1")
def test_rows_that_are_gone_meanwhile_are_missed_and_it_is_made_anew(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    detach(ledger, "line", ADDRESS, "for the test", "me")
    without(ledger, log, "b")
    erase(ledger, SENT, "rows", {"_offset": "12"}, "asked for", "me")
    with pytest.raises(StageMismatch, match="has 18 rows of it, and its votes say 20: rows have expired, were erased"):
        back(ledger, elsewhere)
    assert elsewhere.step == 1 and "DETACHED since" in said(ledger)
    done = back(ledger, elsewhere, How.ANEW)
    assert done.step == 2 and elsewhere.rows() == appended(ledger) and elsewhere.step == 2
    sent(ledger, elsewhere, log, "c")
    assert elsewhere.rows() == appended(ledger)


@pytest.mark.parametrize("how", [How.ANEW, How.FROM_HERE])
@pytest.mark.parametrize("mark", ["update ratchet_marks.marks set token = 5", "drop schema ratchet_marks cascade"])
@pytest.mark.invariant("I1")
def test_a_mark_that_somebody_has_moved_is_set_again_by_a_person(ledger, log, elsewhere, how, mark):
    sent(ledger, elsewhere, log, "a")
    elsewhere.ask("delete from copied where _offset < 5")
    elsewhere.ask(mark)
    left = elsewhere.rows()
    with pytest.raises(MarkMoved, match="so nobody knows which rows it has; `ratchet attach --anew`"):
        back(ledger, elsewhere)
    assert back(ledger, elsewhere, how, dry_run=True).dry_run and elsewhere.rows() == left
    back(ledger, elsewhere, how)
    assert elsewhere.rows() == (appended(ledger) if how is How.ANEW else left)
    begun = sent(ledger, elsewhere, log, "b")
    assert [row for row in elsewhere.rows() if row[3] == begun.claim.txid] == [r for r in appended(ledger) if r[3] == 2]


@pytest.mark.invariant("I1")
def test_one_that_is_new_is_made_anew_with_all_that_was_there_before(ledger, log, elsewhere):
    for run in "ab":
        sent(ledger, elsewhere, log, run)
    to = [Table("copied", database="warehouse"), Table("more.second", database="warehouse")]
    spec = SENT.model_copy(update={"sinks": [Append("rows", columns="a bigint", to=to), *SENT.sinks[1:]]})
    migrate(ledger.url, [spec])
    attach(ledger, spec, "warehouse:more.second", How.ANEW, "all of it", "me", elsewhere.opens)
    assert elsewhere.rows("more.second") == appended(ledger)
    sent(ledger, elsewhere, log, "c", spec)
    assert elsewhere.rows("more.second") == elsewhere.rows() == appended(ledger)


@pytest.mark.invariant("I1")
def test_what_is_committed_while_it_is_made_anew_is_not_lost(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    detach(ledger, "line", ADDRESS, "for the test", "me")
    told: list[str] = []

    @contextmanager
    def busy(destination, owner):
        with elsewhere.opens(destination, owner) as outside:
            restart = outside.restart

            def late(*given) -> bool:
                # Between the look at the ledger and the change.
                if not told:
                    without(ledger, log, f"during {len(elsewhere.opened)}")
                return restart(*given)

            outside.restart = late
            yield outside

    attach(ledger, SENT, ADDRESS, How.ANEW, "it is back", "me", busy, told.append)
    assert told == [f"{ADDRESS}: something was committed meanwhile; once more"]
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == status(ledger, "line").head == 2


def test_there_must_be_such_a_destination(ledger, log, elsewhere):
    with pytest.raises(IllegalMove, match="line has no destination 'x'; it has warehouse:copied"):
        detach(ledger, "line", "x", "for the test", "me")
    with pytest.raises(IllegalMove, match="line has no destination 'x'"):
        attach(ledger, SENT, "x", How.ON, "for the test", "me", elsewhere.opens)
    # Before the first run.
    detach(ledger, "line", ADDRESS, "for the test", "me")
    back(ledger, elsewhere)
    sent(ledger, elsewhere, log, "a")
    assert elsewhere.rows() == appended(ledger)


@pytest.mark.invariant("I1")
def test_rows_are_not_erased_before_a_destination_has_them(ledger, log, elsewhere):
    without(ledger, log, "a")
    with pytest.raises(IllegalMove, match="a destination has still to get some of the rows"):
        erase(ledger, SENT, "rows", {"_offset": "12"}, "asked for", "me")
    follow(ledger, SENT, elsewhere.opens)
    assert erase(ledger, SENT, "rows", {"_offset": "5"}, "asked for", "me").rows and len(elsewhere.rows()) == 20


@pytest.mark.invariant("I1")
def test_whoever_is_late_does_not_send_what_a_revision_has_brought_since(ledger, log, elsewhere):
    """It has read the mark, and is stopped before it reads the step."""
    sent(ledger, elsewhere, log, "a")
    without(ledger, log, "b")
    applied: list[tuple] = []

    @contextmanager
    def stopped(destination, owner):
        with elsewhere.opens(destination, owner) as outside:
            mark, apply = outside.mark, outside.apply

            def late_mark():
                found = mark()
                detach(ledger, "line", ADDRESS, "for the test", "me")
                revise(ledger, elsewhere, log, "b", 1, drop=3)
                return found

            outside.mark = late_mark
            outside.apply = lambda *given: applied.append(given) or apply(*given)
            yield outside

    assert follow(ledger, SENT, stopped) == [] and applied == []
    assert elsewhere.step == 1
    back(ledger, elsewhere)
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 3


def test_a_step_that_a_restored_ledger_has_lost_is_not_noted(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    with ledger.begin() as conn:
        (of,) = numbered.destinations_of(conn, "line")
        numbered.reached(conn, of, 2, 7)
        assert numbered.destinations_of(conn, "line") == [of]


@pytest.mark.invariant("I1")
def test_a_prune_leaves_the_steps_that_tell_where_destinations_are(ledger, log, elsewhere, monkeypatch):
    monkeypatch.setattr("ratchet.operate.prune.KEPT", 1)
    for run in "ab":
        sent(ledger, elsewhere, log, run)
    detach(ledger, "line", ADDRESS, "for the test", "me")
    for run in "cde":
        without(ledger, log, run)
    for run in "ab":
        settle(ledger, SENT, Run("dag", run), succeeded=True)
    age(ledger, 4)
    compact(ledger, SENT)
    assert prune(ledger, SENT, "old", "me").last == 4
    with ledger.begin() as conn:
        assert list(conn.execute(select(steps.c.step).order_by(steps.c.step)).scalars()) == [2, 3, 4, 5]
    assert faults(ledger) == []
    with pytest.raises(Fenced, match="transaction 3 is pruned"):
        back(ledger, elsewhere)
    assert "DETACHED since" in said(ledger) and "it could not be brought on" in said(ledger)
    back(ledger, elsewhere, How.ANEW)
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 5
    sent(ledger, elsewhere, log, "f")
    assert elsewhere.rows() == appended(ledger) and faults(ledger) == []


@pytest.mark.invariant("I1")
def test_a_destination_that_fails_holds_up_no_other(ledger, log, elsewhere):
    to = [Table("copied", database="warehouse"), Table("more.second", database="warehouse")]
    spec = SENT.model_copy(update={"sinks": [Append("rows", columns="a bigint", to=to), *SENT.sinks[1:]]})
    migrate(ledger.url, [spec])
    sent(ledger, elsewhere, log, "a", spec)
    elsewhere.ask("drop table copied")
    with pytest.raises(DestinationRefused, match="warehouse:copied does not exist"):
        sent(ledger, elsewhere, log, "b", spec)
    assert elsewhere.rows("more.second") == appended(ledger)
    assert elsewhere.ask("select name, step from ratchet_marks.marks order by 1") == [("copied", 1), ("second", 2)]
    attach(ledger, spec, ADDRESS, How.ANEW, "for the test", "me", elsewhere.opens)
    assert elsewhere.rows() == appended(ledger)


@pytest.mark.invariant("I1")
def test_each_of_several_that_do_not_know_the_ledger_is_attached_though_others_still_fail(ledger, log, elsewhere):
    to = [Table("copied", database="warehouse"), Table("more.second", database="warehouse")]
    spec = SENT.model_copy(update={"sinks": [Append("rows", columns="a bigint", to=to), *SENT.sinks[1:]]})
    migrate(ledger.url, [spec])
    sent(ledger, elsewhere, log, "a", spec)
    elsewhere.ask("update ratchet_marks.marks set token = 5")
    with pytest.raises(MarkMoved):
        sent(ledger, elsewhere, log, "b", spec)
    anew = How.ANEW, "for the test", "me", elsewhere.opens
    first = attach(ledger, spec, "warehouse:more.second", *anew)
    assert first.attached and "another one fails: line: warehouse:copied: its mark is step 1" in first.said
    assert "fails" not in attach(ledger, spec, ADDRESS, *anew).said
    assert elsewhere.rows() == elsewhere.rows("more.second") == appended(ledger) and len(appended(ledger)) > 0


def test_a_step_that_is_gone_from_the_ledger_is_told_and_not_waited_for(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    without(ledger, log, "b")
    with ledger.begin() as conn:
        conn.execute(delete(steps).where(steps.c.step == 2))
    begun = start(ledger, SENT, log, "c")
    prepare(ledger, SENT, begun)
    with pytest.raises(StageMismatch, match="warehouse:copied has step 1 of 2, and a later one is gone"):
        commit(ledger, SENT, begun.claim, elsewhere.opens)
    assert state(ledger, 3) == State.PREPARED


@pytest.mark.parametrize("how", How)
def test_a_destination_that_is_detached_while_it_is_attached_stays_so(ledger, log, elsewhere, how):
    sent(ledger, elsewhere, log, "a")
    without(ledger, log, "b")

    def opens(destination, owner):
        with suppress(IllegalMove):
            detach(ledger, "line", ADDRESS, "let the line go on", "somebody else")
            # What is committed then does not have it begin again.
            without(ledger, log, "c")
        return elsewhere.opens(destination, owner)

    with pytest.raises(IllegalMove, match="was detached by somebody else meanwhile"):
        attach(ledger, SENT, ADDRESS, how, "made anew", "me", opens)
    assert "DETACHED since" in said(ledger) and "by somebody else: let the line go on" in said(ledger)
    back(ledger, elsewhere)
    assert elsewhere.step == 3
    if how is not How.FROM_HERE:
        assert elsewhere.rows() == appended(ledger)


@pytest.mark.invariant("I1")
def test_a_revision_by_a_spec_without_the_sink_takes_nothing_away(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    detach(ledger, "line", ADDRESS, "moved house", "me")
    other = SENT.model_copy(update={"sinks": SENT.sinks[1:]})
    begun = start(ledger, other, log, "a", 1)
    prepare(ledger, other, begun)
    commit(ledger, other, begun.claim)
    settle(ledger, other, Run("dag", "a", 1), succeeded=True)
    back(ledger, elsewhere)
    assert len(appended(ledger)) == len(elsewhere.rows()) == 20
