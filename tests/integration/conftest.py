"""A ledger of its own for each test, with the tables of SPEC, and the log that begin is told of."""

import pytest

from ratchet.ledger import Ledger
from ratchet.migrate import migrate

from .staging import SPEC, Log


@pytest.fixture
def ledger(ledger_url):
    migrate(ledger_url, [SPEC])
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def log():
    return Log()
