"""Runs the migrations on the connection that `ratchet.operate.migrate` hands over, inside its transaction."""

from alembic import context

from ratchet.ledger.schema import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
)
context.run_migrations()
