"""The ledger and the log of lines whose rows go elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate

from ..staging import Log
from .elsewhere import SENT
from .lakes import LakeOf


@pytest.fixture
def log() -> Log:
    return Log(stable={0: 200, 1: 200})


@pytest.fixture
def migrated():
    """Nothing: a ledger knows its destinations by random numbers, which a copy would share."""
    return (), ""


@pytest.fixture
def bare(ledger_url: str) -> Iterator[Ledger]:
    """A ledger that has no pipeline yet."""
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def ledger(bare: Ledger) -> Ledger:
    """One with the tables of SENT."""
    migrate(bare.url, [SENT])
    return bare


@pytest.fixture
def lake(bare: Ledger, log: Log, tmp_path: Path) -> LakeOf:
    """One whose line has a column and goes to a lake."""
    made = LakeOf(bare, tmp_path / "lake" / "rows", log)
    migrate(bare.url, [made.spec])
    return made
