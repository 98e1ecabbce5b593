"""A server that a spec names by the id of a connection, besides Kafka, Spark and the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ratchet.errors import SettingsError


@dataclass(frozen=True)
class Endpoint:
    """How a server is reached: its URL, a login, and what else the connection's extra says. Its repr shows the URL."""

    url: str
    login: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)


def endpoint_of(name: str, said: object) -> Endpoint:
    """The endpoint of a JSON object `{"url": …, "login": …, "password": …, "extra": {…}}`, of which only `url` must be
    there.

    SettingsError, which shows nothing but `name`, for anything else.
    """
    fields = cast("Mapping[str, Any]", said) if isinstance(said, Mapping) else {}
    login, password = fields.get("login"), fields.get("password")
    if (
        not isinstance(fields.get("url"), str)
        or not isinstance(login, str | None)
        or not isinstance(password, str | None)
        or not isinstance(fields.get("extra", {}), Mapping)
        or fields.keys() - {"url", "login", "password", "extra"}
    ):
        raise SettingsError(
            f"connection {name!r} is no object of texts url, login and password, and an object extra, as "
            '{"url": "https://HOST:8081", "login": "…", "password": "…"}'
        )
    return Endpoint(fields["url"], login, password, fields.get("extra", {}))
