"""What is committed goes to destinations too, each row once, whatever is killed, lost, repeated or late."""

from __future__ import annotations

from contextlib import suppress

import pytest

from ratchet import Append, Table
from ratchet.errors import DestinationUnreachable, MarkMoved, NotMigrated, SettingsError
from ratchet.ledger import steps
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.work import Run
from ratchet.operate.actions import void
from ratchet.operate.migrate import migrate
from ratchet.operate.upkeep import upkeep
from ratchet.protocol.begin import begin
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit, move_on
from ratchet.protocol.follow import follow

from ..proxy import Loss, Proxy
from ..staging import SPEC, always_active, appended, prepare, start, state
from .elsewhere import SENT, TO, Elsewhere, revise, sent
from .following import Late, at_once


@pytest.mark.invariant("I1", "I3")
def test_a_destination_has_the_rows_of_its_sink_and_says_up_to_which_step(ledger, log, elsewhere):
    for number, run in enumerate("abc", 1):
        sent(ledger, elsewhere, log, run)
        assert elsewhere.rows() == appended(ledger) and elsewhere.step == number
    mark = elsewhere.ask("select schema, name, pipeline, sink, step, txid from ratchet_marks.marks")
    assert mark == [("public", "copied", "line", "rows", 3, 3)]
    # Nothing is left to do, and nobody is asked.
    elsewhere.opened.clear()
    assert follow(ledger, SENT, elsewhere.opens) == [] and elsewhere.opened == []


@pytest.mark.invariant("I1", "I2")
def test_a_group_is_sent_in_the_order_of_the_line_and_voids_are_no_steps(ledger, log, elsewhere):
    begun = [start(ledger, SENT, log, run) for run in "abcd"]
    void(ledger, SENT, 2, "for the test", "me")
    for each in (begun[3], begun[2], begun[0]):
        prepare(ledger, SENT, each)
    outcome = commit(ledger, SENT, begun[0].claim, elsewhere.opens)
    assert isinstance(outcome, Committed) and outcome.txids == (1, 3, 4)
    assert outcome.message.endswith("; warehouse:copied is at step 3, 3 further")
    assert elsewhere.rows() == appended(ledger) and {row[3] for row in elsewhere.rows()} == {1, 3, 4}
    with ledger.begin() as conn:
        found = [steps.step_of(conn, "line", number) for number in (1, 2, 3, 4)]
    assert [(step.txid, step.revision) for step in found if step] == [(1, 0), (3, 0), (4, 0)]


@pytest.mark.invariant("I1")
def test_a_revision_takes_the_place_of_the_rows_and_one_of_a_void_comes_beside_them(ledger, log, elsewhere):
    for run in "abc":
        if run == "b":
            prepare(ledger, SENT, start(ledger, SENT, log, run))
            void(ledger, SENT, 2, "for the test", "me")
        else:
            sent(ledger, elsewhere, log, run)
        settle(ledger, SENT, Run("dag", run), succeeded=True)
    revise(ledger, elsewhere, log, "a", 1, drop=2)
    kept = [row for row in elsewhere.rows() if row[3] == 1]
    assert elsewhere.rows() == appended(ledger) and len(kept) == 20 - 2 * 2
    assert elsewhere.ask("select count(*) from copied where _txid = 1 and a > 0") == [(0,)]
    assert elsewhere.step == 3


@pytest.mark.invariant("I1", "I2", "I3")
def test_while_a_destination_does_not_answer_one_group_is_committed_and_no_more(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    with Proxy(elsewhere.url) as proxy:
        away = Elsewhere(proxy.url)
        proxy.refuse(True)
        second, third = start(ledger, SENT, log, "b"), start(ledger, SENT, log, "c")
        prepare(ledger, SENT, second)
        with pytest.raises(
            DestinationUnreachable, match="line: rows: warehouse:copied: .*; what is committed waits for"
        ):
            commit(ledger, SENT, second.claim, away.opens)
        assert state(ledger, 2) == State.COMMITTED and elsewhere.step == 1
        prepare(ledger, SENT, third)
        for _ in range(2):
            with pytest.raises(DestinationUnreachable):
                commit(ledger, SENT, third.claim, away.opens)
        with pytest.raises(SettingsError, match="no connection to it is known here"):
            commit(ledger, SENT, third.claim)
        assert move_on(ledger, SENT).committed == ()
        assert state(ledger, 3) == State.PREPARED
        proxy.refuse(False)
        # The same call again, of the one that is committed as well.
        outcome = commit(ledger, SENT, second.claim, away.opens)
        assert isinstance(outcome, Committed) and not outcome.txids and elsewhere.step == 2
        commit(ledger, SENT, third.claim, away.opens)
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 3


@pytest.mark.invariant("I1")
def test_a_revision_waits_for_a_destination_too(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    settle(ledger, SENT, Run("dag", "a"), succeeded=True)
    second = start(ledger, SENT, log, "b")
    prepare(ledger, SENT, second)
    with pytest.raises(SettingsError):
        commit(ledger, SENT, second.claim)
    assert state(ledger, 2) == State.COMMITTED and elsewhere.step == 1
    revise(ledger, elsewhere, log, "a", 1, drop=1)
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 3


@pytest.mark.parametrize("how", [Loss.BEFORE, Loss.UNANSWERED])
@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.invariant("I1", "I6")
def test_whatever_commit_is_lost_there_the_mark_tells_and_the_same_call_goes_on(ledger, log, elsewhere, how, number):
    with Proxy(elsewhere.url) as proxy:
        away = Elsewhere(proxy.url)
        plan = proxy.lose_commit(number, how)
        begun = start(ledger, SENT, log, "a")
        prepare(ledger, SENT, begun)
        failed = 0
        with suppress(DestinationUnreachable):
            commit(ledger, SENT, begun.claim, away.opens)
            failed -= 1
        failed += 1
        assert isinstance(commit(ledger, SENT, begun.claim, away.opens), Committed)
        assert failed == plan.reached.is_set()
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 1
    sent(ledger, elsewhere, log, "b")
    assert elsewhere.rows() == appended(ledger) and elsewhere.step == 2


@pytest.mark.parametrize("then", ["again", "revised"])
@pytest.mark.invariant("I1", "I6")
def test_a_follower_that_was_stopped_changes_nothing_when_others_have_gone_on(ledger, log, elsewhere, then):
    begun = start(ledger, SENT, log, "a")
    prepare(ledger, SENT, begun)
    with pytest.raises(SettingsError):
        commit(ledger, SENT, begun.claim)
    late = Late(ledger, SENT, elsewhere.opens)
    commit(ledger, SENT, begun.claim, elsewhere.opens)
    settle(ledger, SENT, Run("dag", "a"), succeeded=True)
    if then == "revised":
        revise(ledger, elsewhere, log, "a", 1, drop=3)
    before = elsewhere.ask("select * from copied order by 1, 2, 3")
    late.end()
    assert late.said == [False]
    assert elsewhere.ask("select * from copied order by 1, 2, 3") == before and elsewhere.rows() == appended(ledger)
    sent(ledger, elsewhere, log, "b")
    assert elsewhere.rows() == appended(ledger)


@pytest.mark.invariant("I1")
def test_many_that_go_on_at_once_send_each_row_once(ledger, log, elsewhere):
    begun = [start(ledger, SENT, log, run) for run in "abcd"]
    for each in begun:
        prepare(ledger, SENT, each)
    with pytest.raises(SettingsError):
        commit(ledger, SENT, begun[0].claim)
    failed = at_once(ledger, SENT, elsewhere.opens)
    assert failed == [] and elsewhere.rows() == appended(ledger) and elsewhere.step == 4


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ("update ratchet_marks.marks set step = 7", "its mark is step 7 .*no step of this ledger; the ledger has it"),
        ("update ratchet_marks.marks set token = token + 1", "no step of this ledger"),
        ("update ratchet_marks.marks set step = 1", "no step of this ledger"),
        ("delete from ratchet_marks.marks", "its mark is gone"),
        ("drop schema ratchet_marks cascade", "its mark is gone"),
    ],
)
@pytest.mark.invariant("I1")
def test_nothing_is_sent_where_somebody_has_moved_the_mark(ledger, log, elsewhere, moved, said):
    for run in "ab":
        sent(ledger, elsewhere, log, run)
    before = elsewhere.rows()
    elsewhere.ask(moved)
    with pytest.raises(MarkMoved, match=f"line: warehouse:copied: .*{said}.*ratchet detach line warehouse:copied"):
        sent(ledger, elsewhere, log, "c")
    assert state(ledger, 3) == State.COMMITTED
    with pytest.raises(MarkMoved):
        sent(ledger, elsewhere, log, "d")
    assert state(ledger, 4) == State.PREPARED and elsewhere.rows() == before


def test_an_older_copy_of_a_destination_is_told(ledger, log, elsewhere):
    sent(ledger, elsewhere, log, "a")
    mark = elsewhere.ask("select step, token from ratchet_marks.marks")[0]
    sent(ledger, elsewhere, log, "b")
    elsewhere.ask("delete from copied where _txid = 2")
    elsewhere.ask("update ratchet_marks.marks set step = %s, token = %s", *mark)
    with pytest.raises(MarkMoved, match="it was at step 2 .* before: an older copy is in its place"):
        sent(ledger, elsewhere, log, "c")


@pytest.mark.invariant("I1")
def test_a_process_with_an_older_spec_commits_and_the_rows_are_sent_all_the_same(ledger, log, elsewhere):
    assert SPEC.code_hash == SENT.code_hash
    begun = start(ledger, SPEC, log, "a")
    prepare(ledger, SPEC, begun)
    with pytest.raises(SettingsError, match="the spec does not; deploy the spec that declares it, or `ratchet detach"):
        commit(ledger, SPEC, begun.claim, elsewhere.opens)
    assert state(ledger, 1) == State.COMMITTED
    assert "warehouse:copied is at step 1, 1 further" in [*upkeep(ledger, SENT, always_active, elsewhere.opens)]
    assert elsewhere.rows() == appended(ledger) and elsewhere.rows()


@pytest.mark.invariant("I1")
def test_a_destination_that_comes_later_gets_what_is_committed_from_then_on(ledger_url, log, elsewhere):
    migrate(ledger_url, [SPEC])
    with Ledger(ledger_url) as ledger:
        begun = start(ledger, SPEC, log, "a")
        prepare(ledger, SPEC, begun)
        with pytest.raises(NotMigrated, match="the ledger does not know its destination warehouse:copied"):
            begin(ledger, SENT, Run("dag", "b"), log.offsets, always_active)
        made = [str(made) for made in migrate(ledger_url, [SENT]).sinks]
        assert "line: rows: warehouse:copied gets what is committed from now on" in made
        commit(ledger, SENT, begun.claim, elsewhere.opens)
        assert {row[3] for row in elsewhere.rows()} == {1}
        later = Append("rows", columns="a bigint", to=[TO, Table("more.copied", database="warehouse")])
        both = SENT.model_copy(update={"sinks": [later, *SENT.sinks[1:]]})
        migrate(ledger_url, [both])
        assert not any(made.is_change for made in migrate(ledger_url, [both]).sinks)
        sent(ledger, elsewhere, log, "b", both)
        assert elsewhere.rows() == appended(ledger)
        assert elsewhere.rows("more.copied") == [row for row in appended(ledger) if row[3] == 2]
