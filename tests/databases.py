"""Databases of one PostgreSQL, a fresh one for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg import sql

from ratchet.dev.stack import Stack
from ratchet.operate.migrate import migrate
from ratchet.spec.pipeline import Pipeline

T = TypeVar("T")


class Databases:
    """Makes databases, and drops them; those that begin with the same tables are copies of one."""

    def __init__(self, postgres: Stack, strategy: str = "file_copy"):
        """By copies of files a database takes two thirds of the time that it takes by way of the write-ahead log.

        That is PostgreSQL's default, and quicker where copies have to be on the disk.
        """
        self._postgres, self._strategy, self._templates = postgres, strategy, {}
        self._admin = psycopg.connect(postgres.ledger_url, autocommit=True)
        self._filled: dict[str, tuple[str, Any]] = {}

    @contextmanager
    def made(
        self, specs: Sequence[Pipeline] = (), before: str = "", fill: Callable[[str], object] | None = None
    ) -> Iterator[str]:
        """The URL of a database in which `before` was done, the tables of `specs` were made, and then `fill` was called
        with its URL.

        An empty one without any. Specs with destinations have no copies: the ledger knows these by random numbers.
        """
        name = self._new("test", self._template(specs, before, fill) if specs or before else None)
        yield self._postgres.database_url(name)
        self._do("drop database {} with (force)", name)

    @contextmanager
    def copied(self, key: str, fill: Callable[[str], T]) -> Iterator[tuple[str, T]]:
        """The URL of a copy of the database of this key, and a copy of what `fill` gave when it filled that, once.

        `fill` gets a URL too, leaves no connection open, and makes no destinations.
        """
        if key not in self._filled:
            name = self._new("filled", None)
            self._filled[key] = name, fill(self._postgres.database_url(name))
        template, given = self._filled[key]
        name = self._new("test", template)
        yield self._postgres.database_url(name), deepcopy(given)
        self._do("drop database {} with (force)", name)

    def _template(self, specs: Sequence[Pipeline], before: str, fill: Callable[[str], object] | None) -> str:
        assert not any(sink.destinations for spec in specs for sink in spec.sinks)
        key = f"{before} {specs!r} {fill.__module__}.{fill.__qualname__}" if fill else f"{before} {specs!r}"
        if key not in self._templates:
            name = self._new("template", None)
            url = self._postgres.database_url(name)
            if before:
                with psycopg.connect(url) as conn:
                    conn.execute(before)  # pyright: ignore[reportArgumentType]
            migrate(url, specs)
            if fill:
                fill(url)
            self._templates[key] = name
        return self._templates[key]

    def _new(self, kind: str, template: str | None) -> str:
        name = f"{kind}_{uuid4().hex[:12]}"
        statement = f"create database {{}} strategy {self._strategy}" + (" template {}" if template else "")
        self._do(statement, name, *filter(None, [template]))
        return name

    def _do(self, statement: str, *names: str) -> None:
        wanted = sql.SQL(statement).format(*map(sql.Identifier, names))
        try:
            self._admin.execute(wanted)
        except psycopg.OperationalError:
            # Of a server that a test has killed: nothing was done by a connection that was cut before.
            if not self._admin.broken:
                raise
            self._admin = psycopg.connect(self._postgres.ledger_url, autocommit=True)
            self._admin.execute(wanted)

    def close(self) -> None:
        self._admin.close()
