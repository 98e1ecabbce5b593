"""Iceberg's catalogs: how a connection says which one, and how long its server may be silent."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import NoSuchPropertyException
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy import Connection, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError

from ratchet.errors import SettingsError
from ratchet.ledger.connection import BY_A_POOLER, IDLE_SECONDS, PATIENCE, bound

TYPES = ("rest", "sql")
"""Those of which it is tried that of two changes that are made at once one is refused."""
_OBJECTS = ("auth", "ssl")
"""Properties of a REST catalog that are objects; all others are texts."""
_SECONDS = 10, 120
"""So long a REST catalog may take for a connection, and be silent."""


def properties_of(where: str, uri: str, login: str | None, password: str | None, extra: Mapping[str, Any]) -> str:
    """What a connection says, as JSON of pyiceberg's properties of a catalog: what Airflow's own Iceberg provider makes
    of it. `where` names the connection in SettingsError, which shows no value.
    """
    said: dict[str, Any] = {name: extra[name] for name in _OBJECTS if isinstance(extra.get(name), dict)}
    for name, value in extra.items():
        if name in said:
            continue
        if not isinstance(value, str | int | float):
            raise SettingsError(f"{where}: {name!r} in its extra is no text; write it as pyiceberg would have it")
        said[name] = str(value).lower() if isinstance(value, bool) else str(value)
    kind = said.setdefault("type", "rest").lower()
    if kind not in TYPES or "py-catalog-impl" in said:
        raise SettingsError(
            f"{where}: of Iceberg's catalogs those of the types {' and '.join(TYPES)} are supported; say which one it "
            'is as "type" in its extra'
        )
    if uri:
        said["uri"] = uri.rstrip("/")
    if not said.get("uri"):
        raise SettingsError(
            f'{where}: it names no catalog; its host is the address of a REST catalog, and "uri" in its extra that '
            "of one in a database"
        )
    if kind == "rest" and (login or password):
        if not (login and password):
            raise SettingsError(f"{where}: it has one of login and password; a REST catalog wants both, or none")
        said["credential"] = f"{login}:{password}"
    return json.dumps(said)


@contextmanager
def opened(name: str, by: str, where: str) -> Generator[Catalog]:
    """The catalog of these properties; SettingsError where they cannot be meant so."""
    properties: dict[str, Any] = json.loads(by)
    try:
        catalog = _sql(name, properties) if properties["type"].lower() == "sql" else _Rest(name, **properties)
    except (ArgumentError, NoSuchPropertyException):
        # Not shown: it may hold a password.
        raise SettingsError(
            f"{where}: the catalog's uri cannot be read; write it as SQLAlchemy does, as "
            "postgresql+psycopg://USER@HOST/DATABASE"
        ) from None
    try:
        yield catalog
    finally:
        catalog.close()


def has_tables(catalog: Catalog) -> bool:
    """Whether a catalog in a database has tables of its own there; any other one has what it needs."""
    return not isinstance(catalog, SqlCatalog) or inspect(catalog.engine).has_table(IcebergTables.__tablename__)


def make_tables(catalog: Catalog) -> None:
    """Make these, unless they are there."""
    if not has_tables(catalog):
        try:
            cast(SqlCatalog, catalog).create_tables()
        except (IntegrityError, ProgrammingError):
            # Of two that make them at once one comes second.
            if not has_tables(catalog):
                raise


def _sql(name: str, properties: dict[str, Any]) -> SqlCatalog:
    url = make_url(properties["uri"])
    is_postgresql = url.get_backend_name() == "postgresql"
    if is_postgresql:
        patience = {setting: str(value) for setting, value in PATIENCE.items() if setting not in url.query}
        url = url.set(drivername="postgresql+psycopg").update_query_dict(patience)
    # Who only looks makes no tables.
    said = {**properties, "uri": url.render_as_string(hide_password=False), "init_catalog_tables": "false"}
    catalog = SqlCatalog(name, **said)
    if is_postgresql:
        # The session in which the catalog has looked for its tables is none of those.
        catalog.engine.dispose()
        event.listen(catalog.engine, "do_connect", _by_a_pooler)
        event.listen(catalog.engine, "begin", _bound)
    return catalog


def _by_a_pooler(_dialect: object, _record: object, _given: object, named: dict[str, Any]) -> None:
    named.update(BY_A_POOLER)


def _bound(conn: Connection) -> None:
    """A process that is stopped must not keep the table's row from others for ever."""
    bound(conn, IDLE_SECONDS, "local")


class _Rest(RestCatalog):
    """A REST catalog whose server may not be silent for ever."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Patient())
        return session


class _Patient(HTTPAdapter):
    def send(self, request: PreparedRequest, *given: Any, **named: Any) -> Response:
        return super().send(request, *given, **{**named, "timeout": named.get("timeout") or _SECONDS})
