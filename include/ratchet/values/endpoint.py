"""A server that a spec names by the id of a connection, besides Kafka, Spark and the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ratchet.errors import SettingsError

CONNECTIONS = "RATCHET_CONNECTIONS"
"""Names the variable that has the endpoints as JSON, where no Airflow is asked for its connections."""


@dataclass(frozen=True)
class Endpoint:
    """How a server is reached: its URL, a login, and what else the connection's extra says. Its repr shows the URL."""

    url: str
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


def endpoints_of(where: str, said: object) -> dict[str, Endpoint]:
    """{connection: its endpoint} of a JSON object `{"orders_registry": {"url": …, "login": …, "password": …, "extra":
    {…}}}`, in which only `url` must be there.

    SettingsError, which shows nothing but names, for anything else.
    """
    if not isinstance(said, dict):
        raise SettingsError(f'{where}: connections are no JSON object, as {{"orders_registry": {{"url": …}}}}')
    named = cast("dict[str, object]", said)
    return {name: _endpoint(f"{where}: connection {name!r}", fields) for name, fields in named.items()}


def _endpoint(where: str, said: object) -> Endpoint:
    fields = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    url, login, password = (fields.get(part) for part in ("url", "login", "password"))
    extra = fields.get("extra", {})
    if (
        not isinstance(url, str)
        or not isinstance(login, str | None)
        or not isinstance(password, str | None)
        or not isinstance(extra, dict)
        or fields.keys() - {"url", "login", "password", "extra"}
    ):
        raise SettingsError(
            f'{where} is no object of texts url, login and password, and an object extra, as {{"url": '
            '"https://HOST:8081", "login": "…", "password": "…"}'
        )
    return Endpoint(url, login, password, cast("dict[str, Any]", extra))
