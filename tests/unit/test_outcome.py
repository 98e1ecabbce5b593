"""What people read of a person's move."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from ratchet.ledger.rows import Pause
from ratchet.ledger.states import State
from ratchet.ledger.work import OffsetRange
from ratchet.operate.outcome import Change, Move, Outcome, lines_of

LOST = (OffsetRange("t", 0, 10, 15), OffsetRange("t", 1, 0, 4))
VOID = Change(2, 0, None, State.OPEN, State.VOIDED, LOST, "broken")


def test_a_void_says_what_it_gives_up_where_the_head_stands_and_who_could_not_follow():
    outcome = Outcome(Move.VOID, "line", (VOID,), 3, (3,), 4, "a key is too long")
    assert lines_of(outcome) == [
        "transaction 2 is VOIDED, gives up 9 records at most, and commits nothing of t-0[10,15), t-1[0,4)",
        "the head is 3; committed on the way: 3; 4 fails and is left to its own commit: a key is too long",
    ]


def test_a_void_that_was_made_before_says_so_and_no_more():
    before = replace(VOID, from_state=State.VOIDED, ranges=())
    assert lines_of(Outcome(Move.VOID, "line", (before,), 3)) == ["transaction 2 is VOIDED already: broken"]


def test_a_pause_that_was_only_tried_is_said_as_what_would_be():
    pause = Pause(2, "amy", "dry run", datetime(2013, 1, 1, 5, tzinfo=UTC))
    resumes = "`ratchet resume line --reason …` would let it go on"
    said, *_ = lines_of(Outcome(Move.PAUSE_AT, "line", (), 2, pause=pause, dry_run=True))
    assert said == f"line would be paused behind transaction 2: nothing later is begun or committed; {resumes}"
    tried = lines_of(Outcome(Move.RESUME, "line", (), 2, lifted=pause, dry_run=True))
    assert tried[:2] == [
        "line would go on",
        "it is paused behind transaction 2 by amy since 2013-01-01 05:00:00 UTC: dry run",
    ]


def test_a_revision_that_is_aborted_leaves_the_old_result():
    change = Change(2, 1, None, State.PREPARED, State.ABORTED, (), "wrong day")
    said = ["line: revision 1 of transaction 2 is ABORTED; the old result stays"]
    assert lines_of(Outcome(Move.ABORT, "line", (change,), 3)) == said


def test_losses_are_said_range_by_range_and_a_dry_run_at_the_end():
    part = Change(1, 0, 0, State.OPEN, State.OPEN, LOST[1:], "deleted")
    whole = replace(VOID, from_state=None)
    assert lines_of(Outcome(Move.ACCEPT_LOSS, "line", (part, whole), 0, dry_run=True)) == [
        "line: transaction 1, slice 0: t-1[0,4), 4 offsets, are accepted as lost",
        "transaction 2 is VOIDED: t-0[10,15), 5 offsets, are accepted as lost",
        "transaction 2 is VOIDED: t-1[0,4), 4 offsets, are accepted as lost",
        "the head is 0",
        "this was a dry run: nothing was changed",
    ]
