"""Logins by OAUTHBEARER, as properties say them: by which client's id and secret tokens are asked for, and where.

The grant is OAuth's for client credentials, https://www.rfc-editor.org/rfc/rfc6749#section-4.4, which Kafka's own
clients have since https://cwiki.apache.org/confluence/x/aY8YCg (KIP-768).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.errors import SettingsError

ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
AUTHORITY = "https.ca.location"
"""librdkafka's name: the PEM file of the token endpoint's authority."""
PROPERTIES = frozenset({ENDPOINT, CLIENT_ID, CLIENT_SECRET, SCOPE, AUTHORITY})


@dataclass(frozen=True)
class Grant:
    """By what tokens are asked for."""

    endpoint: str
    client_id: str
    secret: str
    scope: str | None = None
    authority: str | None = None
    """The PEM file of the endpoint's authority; None for those that the machine trusts."""
    extensions: tuple[tuple[str, str], ...] = ()
    """(name, value) that the broker gets beside each token, such as Confluent's logicalCluster."""

    def __repr__(self) -> str:
        return f"Grant({self.endpoint!r}, {self.client_id!r})"


def grant(properties: Mapping[str, str], login: Mapping[str, str]) -> Grant:
    """What properties by Kafka's names say, and the options of a JAAS login, which older clients have in their place.

    SettingsError, which shows no secret, where one of the three is missing that each grant needs.
    """
    client_id = properties.get(CLIENT_ID) or login.get("clientId")
    secret = properties.get(CLIENT_SECRET) or login.get("clientSecret")
    missing = [
        name
        for name, value in ((ENDPOINT, properties.get(ENDPOINT)), (CLIENT_ID, client_id), (CLIENT_SECRET, secret))
        if not value
    ]
    if missing:
        raise SettingsError(
            f"a login by OAUTHBEARER needs {', '.join(missing)}; tokens are asked for by a client's id and secret, and "
            "in no other way"
        )
    assert client_id and secret
    mark = "extension_"
    extensions = tuple((k.removeprefix(mark), v) for k, v in sorted(login.items()) if k.startswith(mark))
    scope = properties.get(SCOPE) or login.get("scope")
    return Grant(properties[ENDPOINT], client_id, secret, scope, properties.get(AUTHORITY), extensions)
