"""What a database shows values in is no part of what a line does there."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from ratchet.ledger.connection import Ledger
from ratchet.operate.snapshot.status import status
from ratchet.operate.snapshot.timeline import timeline

from .releasing import released, second, three


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("datestyle", "German"),
        ("datestyle", "SQL, DMY"),
        ("intervalstyle", "iso_8601"),
        ("timezone", "Pacific/Auckland"),
        ("bytea_output", "escape"),
        ("extra_float_digits", "-10"),
        ("client_encoding", "LATIN1"),
    ],
)
def test_a_line_is_whole_in_a_database_that_shows_values_otherwise(rich_ledger, log, setting, value):
    with psycopg.connect(rich_ledger.url, autocommit=True) as conn:
        asked = sql.SQL("alter database {} set {} = {}")
        conn.execute(asked.format(sql.Identifier(conn.info.dbname), sql.Identifier(setting), sql.Literal(value)))
    with Ledger(rich_ledger.url) as ledger:
        line = three(ledger, log)
        line.release(second, 2, 2)
        line.clear("run_1", second)
        line.shows(1, second)
        line.shows(2, released)
        line.is_whole()
        assert status(ledger, line.spec.name).head == len(timeline(ledger, line.spec.name).bars) - 2 == 3
