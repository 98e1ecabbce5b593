"""What the hook wraps of PostgreSQL's clients, by module; each function gets the module as it was just imported."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .naming import said, where
from .points import armed_in, operation, point, steered, wrap


def _told(statement: Any, connection: Any) -> bytes:
    if isinstance(statement, str):
        return statement.encode()
    return statement if isinstance(statement, bytes) else statement.as_bytes(connection)


def _cursors(module: ModuleType) -> None:
    cursor = module.BaseCursor
    execute, copy = cursor._maybe_prepare_gen, cursor._start_copy_gen

    @functools.wraps(execute)
    def maybe_prepare(self: Any, pgq: Any, **kwargs: Any):
        what = said(pgq.query, operation().pipeline)
        with point(what, backend=self._pgconn.backend_pid, statement=pgq.query):
            return (yield from execute(self, pgq, **kwargs))

    @functools.wraps(copy)
    def start_copy(self: Any, statement: Any, params: Any = None):
        text = _told(statement, self._conn)
        with point(said(text, operation().pipeline), backend=self._pgconn.backend_pid, statement=text):
            return (yield from copy(self, statement, params))

    cursor._maybe_prepare_gen, cursor._start_copy_gen = maybe_prepare, start_copy


def _server_cursors(module: ModuleType) -> None:
    from psycopg.adapt import Transformer

    cursor = module.ServerCursorMixin
    declare = cursor._declare_gen

    @functools.wraps(declare)
    def declare_gen(self: Any, query: Any, params: Any = None, *given: Any):
        # As it does itself a moment later.
        self._tx = Transformer(self)
        text = self._convert_query(self._make_declare_statement(query), params).query
        with point(said(text, operation().pipeline), backend=self._pgconn.backend_pid, statement=text):
            return (yield from declare(self, query, params, *given))

    cursor._declare_gen = declare_gen


def _commands(module: ModuleType) -> None:
    connection = module.BaseConnection
    send = connection._exec_command

    @functools.wraps(send)
    def exec_command(self: Any, command: Any, *args: Any, **kwargs: Any):
        text = _told(command, self)
        with point(said(text, operation().pipeline), backend=self.pgconn.backend_pid, statement=text):
            return (yield from send(self, command, *args, **kwargs))

    connection._exec_command = exec_command


def _copies(module: ModuleType) -> None:
    writer = module.LibpqWriter
    wrap(writer, "write", lambda *_: "COPY a block")
    wrap(writer, "finish", lambda *_: "COPY ends")


def _connects(module: ModuleType) -> None:
    connect = module.Connection.connect.__func__

    @functools.wraps(connect)
    def connected(cls: Any, *args: Any, **kwargs: Any):
        with point("connect"):
            return connect(cls, *args, **kwargs)

    module.Connection.connect = classmethod(connected)


def _async_connects(module: ModuleType) -> None:
    connect = module.AsyncConnection.connect.__func__

    @functools.wraps(connect)
    async def connected(cls: Any, *args: Any, **kwargs: Any):
        with point("connect"):
            return await connect(cls, *args, **kwargs)

    module.AsyncConnection.connect = classmethod(connected)


def _pools(module: ModuleType) -> None:
    """Whoever is to be killed when it connects finds no connection that is free.

    Otherwise it would come to that point only when another thread happens to use the one that is there.
    """
    pool = module.QueuePool
    get = pool._do_get

    @functools.wraps(get)
    def do_get(self: Any):
        if steered():
            doing = operation()
            armed = {name for _, (name, _) in armed_in(doing)}
            if armed and f"{doing.role}: {where()}connect" in armed:
                self.dispose()
        return get(self)

    pool._do_get = do_get


WRAPPED = {
    "psycopg._cursor_base": _cursors,
    "psycopg._server_cursor_base": _server_cursors,
    "psycopg._connection_base": _commands,
    "psycopg._copy": _copies,
    "psycopg.connection": _connects,
    "psycopg.connection_async": _async_connects,
    "sqlalchemy.pool.impl": _pools,
}
