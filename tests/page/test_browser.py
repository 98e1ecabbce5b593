"""The Transactions page in a real Chromium: what it shows, dark and light, wide and narrow, by keyboard alone."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from ratchet.operate import replay
from ratchet.operate.actions import accept_loss
from ratchet.protocol.commit import commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.ledger.several import Cluster, log, spec_of
from tests.ledger.staging import SPEC, Log, committed, do, fail, start
from tests.ledger.test_several_topics import all_of

from .browsing import SIZES, settled, shot
from .conftest import made_anew

pytestmark = pytest.mark.all

PAGES = ["", "line", "line/4", "line/1", "line/letters", "line/places", "line/runs/a", "nowhere"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_page_is_fit_for_everybody(open_, line, dark: bool, size: str):
    for path in PAGES:
        page = settled(open_(f"/ratchet/#/{path}", dark=dark, size=size))
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0], path
        shot(page, f"{path.replace('/', '-') or 'all'}-{'dark' if dark else 'light'}-{size}")


def test_a_revision_that_failed_is_given_up_and_the_line_not_halted(open_, postgres):
    with made_anew(postgres) as ledger:
        log = Log(stable={0: 1, 1: 0})
        committed(ledger, log, "a")
        replay.ask(ledger, SPEC, 1, 1, "its code was wrong", "ada")
        for run in "bcd":
            assert fail(ledger, log, run).claim.revision == 1
        page = settled(open_("/ratchet/#/line/1"))
        expect(page.get_by_role("region", name="Revisions").get_by_text("given up", exact=True)).to_be_visible()
        expect(page.get_by_text("halted, ABORTED")).to_have_count(0)
        page.goto(page.url.replace("#/line/1", "#/line"))
        expect(page.get_by_role("region", name="Transactions").get_by_text("given up", exact=True)).to_be_visible()
        expect(page.get_by_text("halted, ABORTED")).to_have_count(0)


def test_what_matches_no_filter_is_said(open_, line):
    page = settled(open_("/ratchet/"))
    page.get_by_label("Filter by name").fill("nothing")
    expect(page.get_by_text("None of 2 pipelines has “nothing” in its name.")).to_be_visible()
    page.get_by_label("Filter by name").fill("lin")
    expect(page.get_by_role("link", name="line", exact=True)).to_be_visible()


def test_what_is_halted_is_drawn_from_the_halt_on_and_the_newest_is_in_view(open_, line):
    page = settled(open_("/ratchet/#/line", size="narrow"))
    bar = page.get_by_role("link", name="4: OPEN, opened")
    expect(bar.locator("rect.halted")).to_have_count(1)
    expect(bar.locator("rect.start")).not_to_have_count(0)
    # A table that goes on behind the edge says so.
    shadows = page.locator(".scrolls").first.evaluate("of => getComputedStyle(of).backgroundImage")
    assert shadows.count("gradient") == 4
    assert "20 offsets planned" in (bar.get_attribute("aria-label") or "")
    box = bar.locator("rect.halted").bounding_box()
    assert box and 0 < box["x"] < box["x"] + box["width"] <= SIZES["narrow"][0]


def test_what_waits_is_shown_with_what_it_waits_for(open_, waiting):
    page = settled(open_("/ratchet/#/line"))
    expect(page.get_by_role("link", name="2: PREPARED")).to_be_visible()
    expect(page.locator("path.arrow")).to_have_count(1)
    page.goto(page.url.replace("#/line", "#/line/2"))
    expect(page.get_by_text("It waits for transaction 1.")).to_be_visible()


def test_a_record_is_found_and_a_row_traced(open_, line):
    page = settled(open_("/ratchet/#/line/places"))
    expect(page.get_by_label("Topic")).to_have_count(0)
    page.get_by_label("Offset").fill("3")
    page.get_by_role("button", name="Find it").click()
    expect(page.get_by_text("has it, in the range")).to_be_visible()
    page.get_by_label("Columns").fill("a=3")
    page.get_by_role("button", name="Trace it").click()
    expect(page.get_by_role("region", name="Made by")).to_contain_text("t-0 @ 3")
    shot(page, "places")


def test_a_record_of_one_of_several_topics_is_found_and_the_address_says_which(open_, postgres):
    with made_anew(postgres) as ledger:
        of = Cluster(spec_of(name=["eu", "us", "ca"]), {"eu": log("a", 4), "us": log("b", 6), "ca": log("c", 1)})
        all_of(ledger, of, "a")
        of.spec = spec_of(name=["eu", "us"])
        accept_loss(ledger, of.spec, of.offsets, "it is over", "ada")
        page = settled(open_("/ratchet/#/line/places"))
        topic = page.get_by_label("Topic")
        expect(topic.get_by_role("option")).to_have_text(["eu", "us", "ca"])
        topic.select_option("us")
        page.get_by_label("Offset").fill("5")
        page.get_by_role("button", name="Find it").click()
        expect(page.get_by_text("in the range 0 to 6 of us")).to_be_visible()
        assert page.url.endswith("#/line/places?topic=us&partition=0&offset=5")
        shot(page, "places-of-several")
        # Whoever is given the address sees the same; other addresses are followed without loading the page anew.
        page.reload()
        expect(page.get_by_text("in the range 0 to 6 of us")).to_be_visible()
        expect(topic).to_have_value("us")
        page.get_by_label("Columns").fill("a=3")
        page.get_by_role("button", name="Trace it").click()
        page.get_by_role("region", name="Made by").get_by_role("link", name="eu-0 @ 3").click()
        expect(page.get_by_text("in the range 0 to 4 of eu")).to_be_visible()
        expect(topic).to_have_value("eu")
        page.get_by_label("Offset").fill("9")
        page.get_by_role("button", name="Find it").click()
        expect(
            page.get_by_text("No transaction has offset 9 of partition 0 of eu; it is planned from 0 to 4.")
        ).to_be_visible()


def test_a_row_is_shown_with_all_its_digits(open_, postgres):
    with made_anew(postgres) as ledger:
        begun = start(ledger, SPEC, Log(stable={0: 1, 1: 0}), "a")
        do(ledger, SPEC, begun, lambda *_: {"rows": [{"a": 2**53 + 1}]})
        commit(ledger, SPEC, begun.claim)
        page = settled(open_("/ratchet/#/line/places"))
        page.get_by_label("Offset").fill("0")
        page.get_by_role("button", name="Find it").click()
        expect(page.locator("pre")).to_contain_text('"a": 9007199254740993')


def test_a_dead_letter_is_shown_as_it_was_sent(open_, postgres):
    sent = '{"amount": 8.00, "id": 12345678901234567890}'
    with made_anew(postgres) as ledger:
        begun = start(ledger, SPEC, Log(stable={0: 1, 1: 0}), "a")
        letter = {"timestamp": None, "key": b"007.0", "value": sent.encode(), "headers": None, "error": "no"}
        do(ledger, SPEC, begun, lambda partition, offset: {DEAD_LETTERS: [letter]})
        commit(ledger, SPEC, begun.claim)
        page = settled(open_("/ratchet/#/line/letters"))
        expect(page.locator("pre")).to_have_text(["007.0", sent])


def test_nobody_is_told_to_log_in(open_, browser: Browser, airflow, line):
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{airflow.url}/ratchet/")
    expect(page.get_by_role("alert")).to_contain_text("not logged in")
    context.close()


def test_airflows_ui_shows_it_beside_the_dags(open_, line, airflow):
    page = open_("/plugin/transactions")
    frame = page.frame_locator("iframe[title=Transactions]")
    expect(frame.get_by_role("link", name="line", exact=True)).to_be_visible(timeout=60_000)
    shot(page, "in-airflow")
    frame.get_by_role("link", name="line", exact=True).click()
    frame.get_by_role("region", name="Transactions", exact=True).get_by_role("link", name="c", exact=True).first.click()
    page.wait_for_url("**/dags/dag/runs/c")
