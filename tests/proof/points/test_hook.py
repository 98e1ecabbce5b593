"""That a process dies where the hook is told, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.dev.stack import CHECKOUT
from ratchet.operate.migrate import migrate

from . import inject
from .inject.ratchet_points.points import DIRECTORY
from .points import Armoury, Point

ASKS_TWICE = """
import contextlib, os
from ratchet import errors
from ratchet.operate.snapshot import status
from ratchet.protocol import claims
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run

with Ledger(os.environ["LEDGER"]) as ledger:
    with contextlib.suppress(errors.Fenced):
        claims.claim_of(ledger, Run("line", "unknown"))
    status.status(ledger, "line")
"""
"""The second question finds the connection of the first one free, and makes none."""


@pytest.mark.parametrize("side", ["before", "after"])
def test_who_is_armed_to_die_as_it_connects_has_to_connect(ledger_url: str, tmp_path: Path, side: str):
    migrate(ledger_url, [])
    armoury = Armoury(tmp_path)
    env = {
        **os.environ,
        DIRECTORY: str(tmp_path),
        "PYTHONPATH": str(Path(inject.__file__).parent),
        "LEDGER": ledger_url,
    }

    def ask() -> int:
        return subprocess.run([sys.executable, "-c", ASKS_TWICE], env=env, cwd=CHECKOUT).returncode

    armoury.trace.touch()
    assert ask() == 0
    assert armoury.trace.read_text().count(': connect"') == len(("before", "after"))
    ticket = armoury.arm("-", Point("other: operate.snapshot.status.status: connect", side))
    assert ask() == -signal.SIGKILL
    assert armoury.kill(ticket) is not None
