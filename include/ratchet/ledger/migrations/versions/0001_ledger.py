"""The ledger: pipelines, transactions, runs, ranges, slices, stages, events, dead letters."""

from pathlib import Path

from alembic import op
from sqlalchemy import column, table

from ratchet.ledger.migrations import REVISION

revision = REVISION
down_revision = None

LEGAL_MOVES = [
    ("", "OPEN"),
    ("OPEN", "PREPARED"),
    ("OPEN", "ABORTED"),
    ("PREPARED", "COMMITTED"),
    ("PREPARED", "ABORTED"),
    ("ABORTED", "OPEN"),
    ("OPEN", "VOIDED"),
    ("PREPARED", "VOIDED"),
    ("ABORTED", "VOIDED"),
    ("VOIDED", "COMMITTED"),
]


def upgrade() -> None:
    # The driver itself, without parameters: the functions have a % of their own.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None, "a migration runs on a connection that is open"
    driver.execute(Path(__file__).with_suffix(".sql").read_text())
    moves = table("legal_moves", column("from_state"), column("to_state"), schema="ratchet")
    op.bulk_insert(moves, [{"from_state": a, "to_state": b} for a, b in LEGAL_MOVES])
