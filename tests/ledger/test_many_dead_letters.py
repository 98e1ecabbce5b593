"""Dead letters of many lines in one table: what one line does to its own reads none of the others'."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, event, text

from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import Run
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.reference import Made

from .staging import SPEC, contents, do, start

OTHERS, READ = 20_000, 400
"""How many dead letters other lines have under the same txid, and how many of all may be read."""


def some_dead(partition: int, offset: int) -> Made:
    """Every second record is one."""
    if offset % 2:
        return {"rows": [{"a": offset}]}
    return {DEAD_LETTERS: [{"key": None, "value": b"?", "headers": None, "error": "no"}]}


@pytest.fixture
def read(ledger: Ledger) -> list[int]:
    """How many dead letters each database transaction has read."""
    asked = text("select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'dead_letters'")
    found: list[int] = []

    def begins(conn: Connection) -> None:
        conn.info["read"] = conn.execute(asked).scalar_one()

    def commits(conn: Connection) -> None:
        found.append(conn.execute(asked).scalar_one() - conn.info["read"])

    event.listen(ledger.engine, "begin", begins)
    event.listen(ledger.engine, "commit", commits)
    return found


def test_a_line_reads_no_dead_letters_of_others_whatever_it_does(ledger, log, read):
    with ledger.begin() as conn:
        conn.execute(
            text(
                "insert into ratchet_delta.dead_letters (_txid, _writer, _offset, _partition, _source, _pipeline, "
                "error) select 1, n, n, 0, 1, 'other-' || n % 100, 'no' from generate_series(1, :others) n"
            ),
            {"others": OTHERS},
        )
        conn.execute(text("analyze ratchet_delta.dead_letters"))
    read.clear()
    for clear_number in (0, 1):
        begun = start(ledger, SPEC, log, "a", clear_number)
        do(ledger, SPEC, begun, some_dead)
        assert isinstance(commit(ledger, SPEC, begun.claim), Committed)
        settle(ledger, SPEC, Run("dag", "a", clear_number), succeeded=True)
    assert 0 < sum(read) <= READ
    assert len(contents(ledger, SPEC)[DEAD_LETTERS]) == 10
