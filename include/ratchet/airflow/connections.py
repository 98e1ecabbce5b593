"""Airflow connections as the core wants them: a libpq URL, Kafka's client properties, where Spark is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from ratchet.destinations.object_store import options_of
from ratchet.errors import SettingsError
from ratchet.source.configured import configured
from ratchet.spark.servers import Servers
from ratchet.spec.pipeline import Pipeline
from ratchet.values.endpoint import Endpoint

if TYPE_CHECKING:
    from ratchet.destinations.port import Destination, Owner, Reach
    from ratchet.protocol.follow import Open

_HOW = {
    "ledger": "airflow connections add {id} --conn-type postgres --conn-host HOST --conn-login USER "
    "--conn-password … --conn-schema DATABASE",
    "destination": "airflow connections add {id} --conn-type postgres --conn-host HOST --conn-login USER "
    "--conn-password … --conn-schema DATABASE",
    "store": "airflow connections add {id} --conn-type aws --conn-login ACCESS_KEY_ID --conn-password … --conn-extra "
    '\'{{"region_name": "…", "endpoint_url": "https://HOST:9000"}}\' (login, password and endpoint_url where needed)',
    "catalog": "airflow connections add {id} --conn-type iceberg --conn-host https://HOST/… --conn-login CLIENT "
    "--conn-password …",
    "kafka": 'airflow connections add {id} --conn-type kafka --conn-extra \'{{"bootstrap.servers": "HOST:9092"}}\'',
    "endpoint": "airflow connections add {id} --conn-type http --conn-host https://HOST --conn-port 8081",
    "spark": "airflow connections add {id} --conn-type spark_connect --conn-host sc://HOST --conn-port 15002 "
    "(or --conn-type spark --conn-host spark://HOST --conn-port 7077)",
}

UI, APPLICATION = "ui", "{application_id}"
"""In the extra of Spark's connection: the page of an application in Spark's UI, and where in it its id goes."""
DIRECT = "direct"
"""In the extra of the ledger's connection: the id of another one, which reaches PostgreSQL without a pooler."""


@dataclass(frozen=True)
class SparkTarget:
    """Where a pipeline's jobs run: a Spark Connect server, or a master that jobs are submitted to.

    `url` holds the token of a Connect server, so it is never shown; `extra` is the connection's extra.
    """

    connection: str
    connect: bool
    url: str = field(repr=False)
    extra: dict[str, Any] = field(repr=False, default_factory=dict)

    @property
    def cluster_mode(self) -> bool:
        """Whether the driver runs away from this machine."""
        return not self.connect and self.extra.get("deploy-mode") == "cluster"

    @property
    def in_clear(self) -> str | None:
        """Why others may read what is sent to a Connect server, in a line; None where they cannot."""
        address, _, parameters = self.url.removeprefix("sc://").partition("/;")
        is_near = address.startswith(("localhost:", "127.", "[::1]:"))
        # As Spark's client has it: a token is never sent without TLS.
        is_safe = "use_ssl=true" in parameters.lower() or "token=" in parameters
        if not self.connect or is_near or is_safe:
            return None
        return (
            f"connection {self.connection!r}: what is sent to Spark Connect at {address} is not encrypted, and the "
            "logins of the ledger and of Kafka are part of it; put TLS before the server, and use_ssl into the extra"
        )


def ledger_url(connection: str) -> str:
    """The libpq URL of the ledger's database; SettingsError if the connection is missing or unfit."""
    return _libpq_url(_get(connection, "ledger"))


async def async_ledger_url(connection: str) -> str:
    """`ledger_url` for the triggerer, whose loop must not be blocked."""
    try:
        return _libpq_url(await Connection.async_get(connection))
    except AirflowNotFoundException:
        raise _missing(connection, "ledger") from None


async def async_direct_url(connection: str) -> str | None:
    """The libpq URL past a pooler, of the connection that the ledger's names as `direct`; None if it names none."""
    named = _extra(await Connection.async_get(connection)).get(DIRECT)
    if named is None:
        return None
    if not isinstance(named, str):
        raise SettingsError(f"connection {connection!r}: {DIRECT!r} in its extra is not the id of a connection")
    try:
        return await async_ledger_url(named)
    except SettingsError as error:
        raise SettingsError(f"connection {connection!r} names {named!r} as {DIRECT!r}: {error}") from None


def kafka_properties(connection: str, say: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """Kafka's client properties by their Java names: the connection's extra, and its host as a bootstrap server.

    `say` is told what of the extra means nothing here. Raises SettingsError for what is no property of a client.
    """
    found = _get(connection, "kafka")
    properties = {name: _as_property(connection, name, value) for name, value in _extra(found).items()}
    try:
        given = configured(properties)
    except SettingsError as error:
        raise SettingsError(f"connection {connection!r}: {error}") from None
    if given.ignored:
        say(f"connection {connection!r}: {given}")
    properties = given.properties
    if found.host and "bootstrap.servers" not in properties:
        properties["bootstrap.servers"] = f"{found.host}:{found.port}" if found.port else found.host
    if not properties.get("bootstrap.servers"):
        raise SettingsError(
            f"connection {connection!r} names no Kafka broker; put bootstrap.servers into its extra: "
            + _HOW["kafka"].format(id=connection)
        )
    if found.login or found.password:
        raise SettingsError(
            f"connection {connection!r}: login and password are not used; put security.protocol, sasl.mechanism "
            "and sasl.jaas.config into its extra, as a Kafka client would have them"
        )
    return properties


def iceberg_properties(connection: str) -> str:
    """A catalog of Iceberg tables as JSON of pyiceberg's properties; SettingsError if the connection is missing or
    unfit.
    """
    from ratchet.destinations.iceberg_catalog import properties_of

    found = _get(connection, "catalog")
    if found.conn_type != "iceberg":
        raise SettingsError(
            f"connection {connection!r} is of type {found.conn_type!r}; a catalog needs iceberg: "
            + _HOW["catalog"].format(id=connection)
        )
    where = f"connection {connection!r}"
    return properties_of(where, found.host or "", found.login, found.password, _extra(found))


def servers(spec: Pipeline) -> Servers:
    """What the jobs of a pipeline ask besides Spark and the ledger; SettingsError as for each of them."""
    return Servers(kafka_properties(spec.kafka), {name: endpoint(name) for name in spec.connections})


def opener(spec: Pipeline) -> Open:
    """Opens a destination of a pipeline by its connection; SettingsError where that is missing or unfit."""

    def opens(destination: Destination, owner: Owner) -> Reach:
        match destination.reached_by:
            case "postgres":
                by = _libpq_url(_get(destination.connection or "", "destination"))
            case "kafka":
                by = json.dumps(kafka_properties(destination.connection or spec.kafka))
            case "aws":
                by = json.dumps(_store_options(destination.connection or ""))
            case "iceberg":
                by = iceberg_properties(destination.connection or "")
            case "path":
                by = ""
        return destination.open(owner, by, {name: endpoint(name) for name in destination.registries})

    return opens


def _store_options(connection: str) -> dict[str, str]:
    found = _get(connection, "store")
    if found.conn_type != "aws":
        raise SettingsError(
            f"connection {connection!r} is of type {found.conn_type!r}; an object store needs aws: "
            + _HOW["store"].format(id=connection)
        )
    if found.host:
        raise SettingsError(
            f"connection {connection!r}: its host is not used; put the address of the store into its extra, as "
            '"endpoint_url": "https://HOST:9000"'
        )
    return options_of(f"connection {connection!r}", None, found.login, found.password, _extra(found))


def endpoint(connection: str) -> Endpoint:
    """The server of a connection that a format names: its host is a URL, or a host of the scheme in its schema."""
    found = _get(connection, "endpoint")
    if not found.host:
        raise SettingsError(
            f"connection {connection!r} has no host; create it anew: " + _HOW["endpoint"].format(id=connection)
        )
    url = urlsplit(found.host if "://" in found.host else f"{found.schema or 'http'}://{found.host}")
    if "@" in found.host or url.query or url.fragment:
        raise SettingsError(
            f"connection {connection!r}: its host is no address of a server; put a login and a password into the "
            "connection's own fields"
        )
    at = f"{url.netloc}:{found.port}" if found.port and url.port is None else url.netloc
    whole = f"{url.scheme}://{at}{url.path.rstrip('/')}"
    return Endpoint(whole, found.login or None, found.password or None, _extra(found))


def spark_target(connection: str) -> SparkTarget:
    """Where the jobs run, by the connection's type: `spark_connect`, or anything that spark-submit takes."""
    found = _get(connection, "spark")
    extra = _extra(found)
    if not found.host:
        raise SettingsError(
            f"connection {connection!r} has no host; create it anew: " + _HOW["spark"].format(id=connection)
        )
    if found.conn_type != "spark_connect":
        return SparkTarget(connection, connect=False, url=found.host, extra=extra)
    host = found.host.removeprefix("sc://").rstrip("/")
    parameters = {"user_id": found.login, "token": found.password, "use_ssl": extra.get("use_ssl")}
    said = "".join(f";{name}={quote(str(value), safe='')}" for name, value in parameters.items() if value)
    port = f":{found.port}" if found.port else ""
    return SparkTarget(connection, connect=True, url=f"sc://{host}{port}" + (f"/{said}" if said else ""), extra=extra)


def spark_page(connection: str) -> Callable[[str], str] | None:
    """Gives the page of an application in Spark's UI, by what the connection's extra has as `ui`.

    None where that, or the connection, is not there; SettingsError where it is no address with a place for the id.
    """
    try:
        extra = _extra(Connection.get(connection))
    except AirflowNotFoundException:
        return None
    ui = extra.get(UI)
    if ui is None:
        return None
    if not isinstance(ui, str) or not ui.startswith(("http://", "https://")) or APPLICATION not in ui:
        raise SettingsError(
            f"connection {connection!r}: {UI!r} in its extra is no address of a page with a place for the application, "
            f"such as http://HOST:18080/history/{APPLICATION}/jobs/"
        )
    return lambda application: ui.replace(APPLICATION, quote(application, safe=""))


def _get(connection: str, what: str) -> Any:
    try:
        return Connection.get(connection)
    except AirflowNotFoundException:
        raise _missing(connection, what) from None


def _missing(connection: str, what: str) -> SettingsError:
    return SettingsError(
        f"there is no Airflow connection {connection!r}, which the spec names as its {what}; create it: "
        + _HOW[what].format(id=connection)
    )


def _libpq_url(found: Any) -> str:
    """A URL whose every part is quoted; of the extra, only what libpq knows."""
    if found.conn_type not in ("postgres", "postgresql"):
        raise SettingsError(
            f"connection {found.conn_id!r} is of type {found.conn_type!r}; the ledger needs postgres: "
            + _HOW["ledger"].format(id=found.conn_id)
        )
    user = quote(found.login or "", safe="")
    if found.password:
        user += f":{quote(found.password, safe='')}"
    options = {name: str(value) for name, value in _extra(found).items() if name in _libpq_options()}
    host = found.host or ""
    if host.startswith("/"):
        options["host"], host = host, ""
    if ":" in host:
        host = f"[{host}]"
    port = f":{found.port}" if found.port else ""
    url = f"postgresql://{user}{'@' if user else ''}{host}{port}/{quote(found.schema or '', safe='')}"
    return f"{url}?{urlencode(options, quote_via=quote)}" if options else url


def _libpq_options() -> set[str]:
    from psycopg import pq

    taken = {"user", "password", "host", "port", "dbname"}
    return {option.keyword.decode() for option in pq.Conninfo.get_defaults()} - taken


def _extra(found: Any) -> dict[str, Any]:
    """The connection's extra; SettingsError, not silence, when it is no JSON object."""
    try:
        said = json.loads(found.extra or "{}")
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise SettingsError(f"connection {found.conn_id!r}: its extra is not a JSON object")
    return said


def _as_property(connection: str, name: str, value: object) -> str:
    if not isinstance(value, str | int | float):
        raise SettingsError(
            f"connection {connection!r}: Kafka property {name!r} in its extra is no text; write it as a Kafka client "
            "would have it, for example HOST:9092,HOST:9092"
        )
    return str(value).lower() if isinstance(value, bool) else str(value)
