"""What the tests in a browser do with a page."""

from __future__ import annotations

import os
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

SIZES = {"wide": (1280, 900), "narrow": (360, 740)}


def settled(page: Page) -> Page:
    page.get_by_text("Loading…").first.wait_for(state="detached")
    return page


def shot(page: Page, name: str) -> None:
    """Keeps a picture where a person wants to look at it."""
    if os.environ.get("RATCHET_PICTURES"):
        page.screenshot(path=Path(os.environ["RATCHET_PICTURES"], f"{name}.png"), full_page=True)


def axe_of(page: Page) -> int:
    return Axe().run(page).violations_count
