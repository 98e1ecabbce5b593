"""SQL as PostgreSQL is given it: the same for every ledger of a process, so that each statement is compiled once."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.util import LRUCache

DRIVER = "postgresql+ratchet"
"""What a URL names for this dialect."""

COMPILED: LRUCache[Any, Any] = LRUCache(1_000)
"""The statements that were compiled last; SQLAlchemy's own caches are of one engine, and half as large."""


class Dialect(PGDialect_psycopg):
    """psycopg's; those that make the same SQL of a statement are equal, and so have its compiled form in common.

    What it learns from a server, it learns at the first connection, before any statement is compiled.
    """

    supports_statement_cache = True
    _backslash_escapes: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dialect) and self._server == other._server

    def __hash__(self) -> int:
        return hash(self._server)

    @property
    def _server(self) -> tuple[tuple[Any, ...] | None, bool]:
        """The server's version, and how it reads strings: all by which the SQL differs."""
        return self.server_version_info, self._backslash_escapes


registry.register("postgresql.ratchet", __name__, Dialect.__name__)
