"""Progress on stderr: a bar that moves on a terminal, and lines at intervals where there is none."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from ratchet import progress
from ratchet.progress import Told


@pytest.fixture
def clock(monkeypatch):
    """Moments that the test moves."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_without_a_terminal_a_line_comes_every_ten_seconds_and_no_bar(clock):
    out = StringIO()
    told = Told(Console(file=out, width=80), "line: verifying", None)
    with told.bar:
        told.at("line: history")
        clock[0] = 11.0
        told.at("line: ranges, transaction [bold]7")
        clock[0] = 20.0
        told.at("line: rows")
        told.say("one that stays")
    assert out.getvalue() == "line: ranges, transaction [bold]7\none that stays\n"


def test_parts_that_can_be_counted_are(clock):
    out = StringIO()
    told = Told(Console(file=out, width=80), "line: processing once more", 3)
    with told.bar:
        for clock[0] in (5.0, 12.0, 13.0):
            told.step()
    assert out.getvalue() == "line: processing once more: 2 of 3 done\n"


def test_on_a_terminal_a_bar_says_where_the_work_is():
    out = StringIO()
    told = Told(Console(file=out, width=80, force_terminal=True), "line: processing once more", 3)
    with told.bar:
        told.at("line: transaction 2")
        told.step()
        told.bar.refresh()
    assert "line: transaction 2" in out.getvalue() and "1/3" in out.getvalue()
