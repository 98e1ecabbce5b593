"""The ledger schema, by alembic; run through `ratchet migrate`."""
