"""The moves of the Transactions page in a real Chromium, by its buttons and by keyboard alone, and commands to copy."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from ratchet.ledger import history
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.operate.pauses import pause_at
from ratchet.operate.snapshot.status import status
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, Waits, commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.ledger.staging import SPEC, Log, appended, do, is_whole, prepare, start, state

from .browsing import SIZES, axe_of, settled, shot
from .conftest import made_anew

pytestmark = pytest.mark.all


def test_a_blocked_transaction_is_found_and_voided_by_keyboard_alone(open_, line):
    page = settled(open_("/ratchet/"))
    expect(page.get_by_text("halted at 4")).to_be_visible()
    page.get_by_role("link", name="line", exact=True).focus()
    page.keyboard.press("Enter")
    void = page.get_by_role("button", name="Void", exact=True)
    void.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Void transaction 4 of line")
    expect(dialog.get_by_role("heading", name="What it would do")).to_be_visible()
    expect(dialog.get_by_text("gives up 20 records at most")).to_be_visible()
    # What gives up records looks different from what does not.
    colours = [
        dialog.get_by_role("button", name=name, exact=True).evaluate("of => getComputedStyle(of).borderColor")
        for name in ("Void", "Cancel")
    ]
    assert colours[0] != colours[1]
    shot(page, "void")
    assert axe_of(page) == 0
    page.get_by_label("Reason, which").focus()
    page.keyboard.type("its records are of no use")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("status")).to_contain_text("4")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    with line.begin() as conn:
        assert read_transaction(conn, "line", 4).state == State.VOIDED
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_halted_transactions_own_page_says_so_and_has_the_ways_out(open_, line):
    page = settled(open_("/ratchet/#/line/4"))
    why = page.get_by_role("alert")
    expect(why).to_contain_text("line is halted at transaction 4 since")
    expect(page.get_by_text("halted, OPEN")).to_be_visible()
    page.get_by_role("button", name="Copy ratchet retry line 4").click()
    expect(why.get_by_text("Copied")).to_be_visible()
    expect(why).to_contain_text("ratchet void line 4 --reason …")
    assert copied(page, "ratchet void line 4") == "ratchet void line 4"
    moves = page.get_by_role("group", name="Moves")
    expect(moves.get_by_role("button")).to_have_text(["Retry", "Abort", "Void"])
    assert axe_of(page) == 0
    make(page, "Retry", "Retry transaction 4 of line", "its cause is gone").get_by_role("button", name="Close").click()
    expect(why).to_have_count(0)
    expect(moves.get_by_role("button")).to_have_text(["Abort", "Void"])
    assert status(line, "line").halt is None
    page.goto(page.url.replace("#/line/4", "#/line/3"))
    expect(page.get_by_role("group", name="Moves").get_by_role("button")).to_have_text(["Replay"])
    read_only = settled(open_("/ratchet/#/line/4", "vera"))
    expect(read_only.get_by_text("COMMITTED").or_(read_only.get_by_text("OPEN", exact=True)).first).to_be_visible()
    expect(read_only.get_by_role("button", name="Void", exact=True)).to_have_count(0)


def copied(page: Page, command: str) -> str:
    """What is in the clipboard after the button of this command is clicked."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name=f"Copy {command}", exact=True)
    button.click()
    expect(button).to_have_text("Copied")
    return page.evaluate("navigator.clipboard.readText()")


def test_where_a_browser_has_no_clipboard_what_is_typed_is_selected_alone(open_, line):
    page = settled(open_("/ratchet/#/line/4"))
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.get_by_role("button", name="Copy ratchet void line 4", exact=True).click()
    expect(page.get_by_text("Copied")).to_be_visible()
    assert page.evaluate("getSelection().toString()") == "ratchet void line 4"


FALSE = [
    "no ` quote",
    "use `ratchet void line 4 |sh`",
    "use `ratchet void line 4\nrm -r x`",
    "use `ratchet void line 4; ls` or `ratchet void $(ls)`, `ratchet void line > x`, `ratchet void line \\ x`",
    "use `ratchet destroy line`, `ratchet drop line`, `ratchet` or `rm -r x`",
    "`",
]


@pytest.mark.parametrize("reason", FALSE, ids=range(len(FALSE)))
def test_only_a_whole_command_of_ours_is_one_to_copy_whatever_a_reason_has(open_, line, reason: str):
    pause_at(line, SPEC, None, reason, "eve")
    page = settled(open_("/ratchet/#/line"))
    said = page.get_by_role("status").filter(has_text="is paused behind")
    expect(said).to_contain_text(f": {reason}; ratchet resume line --reason … Copy lets it go on")
    expect(said.get_by_role("button")).to_have_count(1)
    expect(said.locator("code")).to_have_text(["ratchet resume line --reason …"])
    assert said.get_by_role("button").get_attribute("aria-label") == "Copy ratchet resume line"
    assert axe_of(page) == 0


def make(page: Page, button: str, title: str, reason: str) -> Locator:
    """Make a move by its button's dialog: what it would do is read, a reason given, and it confirmed; the dialog."""
    page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog", name=title, exact=True)
    expect(dialog.get_by_text("this was a dry run: nothing was changed")).to_be_visible()
    assert axe_of(page) == 0
    confirm = dialog.get_by_role("button", name=button, exact=True)
    expect(confirm).to_be_disabled()
    dialog.get_by_label("Reason, which").fill(reason)
    confirm.click()
    expect(dialog.get_by_role("status")).to_be_visible()
    expect(dialog.get_by_text("this was a dry run")).to_have_count(0)
    return dialog


def test_a_line_is_paused_and_resumed_by_its_buttons(open_, postgres):
    with made_anew(postgres) as ledger:
        log = Log(stable={0: 500, 1: 500})
        first, second = (start(ledger, SPEC, log, run) for run in "ab")
        prepare(ledger, SPEC, second)
        page = settled(open_("/ratchet/#/line"))
        page.get_by_label("Behind transaction").fill("1")
        dialog = make(page, "Pause", "Pause line", "the books are audited")
        pause = status(ledger, "line").pause
        assert pause and (pause.txid, pause.who, pause.reason) == (1, "ada", "the books are audited")
        dialog.get_by_role("button", name="Close").click()
        expect(page.get_by_role("status").filter(has_text="paused behind transaction 1 by ada")).to_be_visible()
        prepare(ledger, SPEC, first)
        assert isinstance(commit(ledger, SPEC, first.claim), Committed)
        assert isinstance(commit(ledger, SPEC, second.claim), Waits)
        assert (status(ledger, "line").head, state(ledger, 2)) == (1, State.PREPARED)
        waits = page.get_by_role("region", name="Unfinished").get_by_role("row").filter(has_text="PREPARED")
        expect(waits).to_contain_text("prepared; the line is paused behind transaction 1", timeout=15_000)
        expect(page.get_by_role("status").filter(has_text="by ada since")).to_contain_text("the books are audited")
        dialog = make(page, "Resume", "Resume line", "they are right")
        assert status(ledger, "line").pause is None and state(ledger, 2) == State.PREPARED
        dialog.get_by_role("button", name="Close").click()
        expect(page.get_by_text("paused behind transaction 1")).to_have_count(0)
        assert isinstance(commit(ledger, SPEC, second.claim), Committed)
        expect(page.get_by_text("2 of 2", exact=True)).to_be_visible(timeout=15_000)
        is_whole(ledger, first, second)
        with ledger.snapshot() as conn:
            made = [(e.move, e.who, e.detail["why"]) for e in history.read(conn, "line") if e.who == "ada"]
        assert made == [("pause-at", "ada", "the books are audited"), ("resume", "ada", "they are right")]


def test_dead_letters_are_released_by_their_button_and_their_revision_commits(open_, postgres):
    with made_anew(postgres) as ledger:
        log = Log(stable={0: 1, 1: 0})
        letter = {"timestamp": None, "key": b"k", "value": b"?", "headers": None, "error": "no number"}
        begun = start(ledger, SPEC, log, "a")
        do(ledger, SPEC, begun, lambda *_: {DEAD_LETTERS: [letter]})
        commit(ledger, SPEC, begun.claim)
        settle(ledger, SPEC, Run("dag", "a"), succeeded=True)
        page = settled(open_("/ratchet/#/line/letters"))
        page.get_by_role("button", name="Only these").click()
        dialog = make(page, "Release these", "Release dead letters of line", "the number is read now")
        assert status(ledger, "line").replays == 1
        dialog.get_by_role("button", name="Close").click()
        expect(page.get_by_text("is asked for by ada: the number is read now. It waits for a run.")).to_be_visible()
        expect(page.get_by_text("Chosen is one reason, 1 letter of 1: no number")).to_be_visible()
        assert axe_of(page) == 0
        shot(page, "letters-asked")
        page.get_by_role("button", name="Show all").click()
        expect(page.get_by_text("Chosen is one reason")).to_have_count(0)
        for path, said in (("line", "1 release is asked for and waits"), ("line/1", "A release of its dead")):
            other = settled(open_(f"/ratchet/#/{path}"))
            expect(other.get_by_role("status").filter(has_text=said)).to_be_visible()
            assert axe_of(other) == 0
            shot(other, f"asked-{path.replace('/', '-')}")
        # The next run does what was asked for, with code that can read it.
        release = start(ledger, SPEC, log, "b")
        assert (release.how, release.claim.revision) == ("replayed", 1)
        page.reload()
        expect(page.get_by_text("A run releases dead letters of transaction 1 now.")).to_be_visible()
        expect(settled(open_("/ratchet/#/line")).get_by_text("0, 1 release", exact=True)).to_be_visible()
        assert "ada has asked for a release of dead letters: the number is read now" in release.message
        do(ledger, SPEC, release, lambda *_: {"rows": [{"a": 7}]})
        assert isinstance(commit(ledger, SPEC, release.claim), Committed)
        assert status(ledger, "line").replays == 0 and appended(ledger) == [(0, 0, 0, 1)]
        page.reload()
        expect(settled(page).get_by_text("0 in all.")).to_be_visible()
        page.goto(page.url.replace("/letters", "/1"))
        expect(page.get_by_text("the first result, and 1 release")).to_be_visible()
        expect(page.get_by_role("region", name="Revisions")).to_contain_text("release of 1 of 1 dead letter")
        expect(page.get_by_role("link", name="After")).to_have_count(0)
        shot(page, "released")
        with ledger.snapshot() as conn:
            (made,) = [e for e in history.read(conn, "line") if e.move == "release"]
        assert (made.who, made.detail["why"]) == ("ada", "the number is read now")


def test_the_lag_is_asked_anew_once_a_move_is_made(open_, line):
    page = settled(open_("/ratchet/#/line"))
    dialog = make(page, "Pause", "Pause line", "the books are audited")
    with page.expect_request("**/api/lag", timeout=5_000):
        dialog.get_by_role("button", name="Close").click()


def test_transactions_are_replayed_by_a_form_that_says_what_it_is_for(open_, line):
    page = settled(open_("/ratchet/#/line"))
    replay = page.get_by_role("button", name="Replay", exact=True)
    expect(replay).to_be_disabled()
    expect(page.get_by_role("button", name="Take back a replay")).to_have_count(0)
    page.get_by_label("Replay transactions from").fill("2")
    dialog = make(page, "Replay", "Replay transaction 2 of line", "its code was wrong")
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("status").filter(has_text="1 replay is asked for and waits for a run.")).to_be_visible()
    make(page, "Take back a replay", "Take back a replay of transaction 2 of line", "it was right")
    assert status(line, "line").replays == 0


def test_who_may_not_move_is_offered_no_move(open_, line):
    page = settled(open_("/ratchet/#/line", "vera"))
    expect(page.get_by_role("heading", name="Unfinished")).to_be_visible()
    for move in ("Void", "Replay"):
        expect(page.get_by_role("button", name=move, exact=True)).to_have_count(0)


@pytest.mark.parametrize("size", SIZES)
def test_a_destination_that_is_behind_is_found_and_detached(open_, behind, size: str):
    page = settled(open_("/ratchet/", size=size))
    expect(page.get_by_text("warehouse:copied is behind")).to_be_visible()
    page.get_by_role("link", name="line", exact=True).click()
    there = page.get_by_role("region", name="Destinations")
    expect(there).to_contain_text("BEHIND, at step 0 of 1, since")
    assert axe_of(page) == 0 and page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    shot(page, f"destinations-{size}")
    dialog = make(page, "Detach", "Detach warehouse:copied from line", "it is gone")
    expect(dialog.get_by_role("status")).to_contain_text("is detached at step 0; it lacks 1 step")
    page.keyboard.press("Escape")
    expect(there).to_contain_text("DETACHED since")
    expect(page.get_by_role("button", name="Detach")).to_have_count(0)
    assert axe_of(page) == 0
    shot(page, f"detached-{size}")
