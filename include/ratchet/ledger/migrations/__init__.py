"""The ledger schema, by alembic; run through `ratchet migrate`."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from sqlalchemy import Connection, text

from ratchet.errors import NotMigrated

_SQL = Path(__file__).parent / "versions" / "0001_ledger.sql"
REVISION = f"0001_{sha256(_SQL.read_bytes()).hexdigest()[:8]}"
"""The schema that this version needs; its SQL is changed in place until the first release, so its hash is part."""


def check(conn: Connection) -> None:
    """NotMigrated if the ledger has another schema than this version needs; quick enough for every begin."""
    found = conn.execute(text("select version_num from ratchet.alembic_version")).scalar_one_or_none()
    if found != REVISION:
        raise NotMigrated(
            f"the ledger's schema is {found}, this version of ratchet needs {REVISION}; nothing was begun; run "
            "`ratchet migrate` of the newer of the two, and let every process have that version"
        )
