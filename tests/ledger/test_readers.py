"""The campaign's readers: in a whole line they see nothing, and each tear that a reader could see they name."""

from __future__ import annotations

import random

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from sqlalchemy import text

from tests.proof.campaign.readers import Reading

from .staging import SPEC


@pytest.fixture
def look(whole, monkeypatch):
    """What one reader sees, who always looks at the whole."""
    monkeypatch.setattr("tests.proof.campaign.readers.WHOLE_EVERY", 1)

    def faults() -> list[str]:
        with psycopg.connect(whole.url, row_factory=namedtuple_row) as conn:
            return Reading(conn, SPEC, random.Random(1)).faults()

    return faults


def test_a_whole_line_is_whole_to_a_reader(look):
    assert look() == []


@pytest.mark.parametrize(
    ("tear", "seen"),
    [
        ('delete from ratchet_delta."public.rows" where _offset = 3 and _txid = 1', "rows has 16 rows of 1"),
        ("delete from ratchet_delta.dead_letters where _txid = 3", "dead_letters has 0 rows of 3"),
        ("update totals set _txid = 4 where k = '0'", "totals has 1 rows beyond the head"),
        ("update totals set n = n + 1 where k = '0'", "totals counts"),
        ("update latest set _txid = 2 where k = '0-1'", "latest has 1 rows that no delta has"),
        ("update latest set k = null where k = '0-1'", "latest has 1 rows that no delta has"),
        ("update ratchet.transactions set state = 'OPEN' where txid = 3", "3 is before the head, and not committed"),
    ],
)
def test_a_tear_is_seen(whole, look, tear, seen):
    with whole.begin() as conn:
        conn.execute(text("set local session_replication_role = replica"))
        conn.execute(text(tear))
    assert any(seen in line for line in look()), look()
