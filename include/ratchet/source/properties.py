"""Kafka's client properties, by their Java names, for clients that are written in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ratchet.errors import SettingsError
from ratchet.source import tokens

_SAME = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
    "client.dns.lookup": "client_dns_lookup",
}
_LIBRDKAFKA = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.password": "ssl_password",
    "client.id": "client_id",
    "client.dns.lookup": "client_dns_lookup",
}
_IMPLIED = {"ssl.truststore.type", "ssl.keystore.type", "ssl.protocol", "ssl.enabled.protocols"}
_HANDLER = "sasl.login.callback.handler.class"
"""The class that asks for tokens in Java's client."""
_ASKS_FOR_TOKENS = "OAuthBearerLoginCallbackHandler"
_LOGIN = "sasl.jaas.config"
KNOWN = frozenset(
    {
        "bootstrap.servers",
        _LOGIN,
        "ssl.endpoint.identification.algorithm",
        *_SAME,
        *_IMPLIED,
        _HANDLER,
        *tokens.PROPERTIES,
    }
)
"""What a connection may be made with."""
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_JAAS_LOGINS = ("PlainLoginModule", "ScramLoginModule")
_BY_TOKENS = "OAUTHBEARER"
_COLUMNAR = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", _BY_TOKENS)
"""The mechanisms whose logins are in the properties, and so on every worker."""
_MECHANISMS = (*_COLUMNAR, "GSSAPI")
_USUAL_LOOKUP = "use_all_dns_ips"


def client_settings(properties: dict[str, str]) -> dict[str, object]:
    """Java-style client properties as keyword arguments of kafka-python's clients.

    Properties that only tune (fetch sizes and the like) are left out, as they mean nothing to these clients.
    Raises SettingsError for a missing `bootstrap.servers`, and for what bears on safety and cannot be honoured: a
    connection must not be less safe than it was asked to be.
    """
    protocol, mechanism = properties.get("security.protocol", "PLAINTEXT"), properties.get("sasl.mechanism", "GSSAPI")
    if protocol not in _PROTOCOLS:
        raise SettingsError(f"Kafka property security.protocol={protocol} is none of {', '.join(_PROTOCOLS)}")
    if mechanism not in _MECHANISMS:
        raise SettingsError(
            f"Kafka property sasl.mechanism={mechanism} is not supported; use one of {', '.join(_MECHANISMS)}, or TLS "
            "with a client's certificate"
        )
    if not properties.get("bootstrap.servers"):
        raise SettingsError("the Kafka connection has no bootstrap.servers; set it to host:port,host:port")
    settings: dict[str, object] = {"bootstrap_servers": properties["bootstrap.servers"].split(",")}
    for name, value in properties.items():
        if name in ("ssl.truststore.type", "ssl.keystore.type") and value.upper() != "PEM":
            raise SettingsError(f"Kafka property {name}={value} cannot be read by Python; give PEM files")
        if name in _SAME:
            settings[_SAME[name]] = value
        elif name == _HANDLER:
            if value.rpartition(".")[2] != _ASKS_FOR_TOKENS:
                raise SettingsError(
                    f"Kafka property {name}={value} is not supported: no class of Java's is run; tokens are asked for "
                    "by a client's id and secret"
                )
        elif name in (_LOGIN, *tokens.PROPERTIES):
            pass
        elif name == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = bool(value)
        elif name.startswith(("ssl.", "sasl.")) and name not in _IMPLIED:
            raise SettingsError(
                f"Kafka property {name} is not supported; use security.protocol, sasl.mechanism, "
                "sasl.jaas.config, and PEM files in "
                "ssl.truststore.location and ssl.keystore.location"
            )
    settings |= _login(mechanism, properties)
    for name in ("truststore", "keystore"):
        if f"ssl.{name}.location" in properties and f"ssl.{name}.type" not in properties:
            raise SettingsError(f"Kafka property ssl.{name}.location needs ssl.{name}.type=PEM beside it")
    return settings


def unfit_for_columnar(properties: Mapping[str, str]) -> str | None:
    """Which property the columnar source does not keep to, and why, in a line; None where it keeps to all.

    Of those that `client_settings` accepts, Java's client keeps to each. No server is asked.
    """
    # Java's default.
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if properties.get("security.protocol", "").startswith("SASL_") and mechanism not in _COLUMNAR:
        return (
            f"sasl.mechanism={mechanism} takes its login from the machine, and the columnar source logs in by "
            f"{', '.join(_COLUMNAR)}"
        )
    lookup = properties.get("client.dns.lookup", _USUAL_LOOKUP)
    if lookup != _USUAL_LOOKUP:
        return f"client.dns.lookup={lookup} looks up brokers' names, and the columnar source takes them as written"
    return None


def check_for_spark(properties: Mapping[str, str]) -> None:
    """SettingsError where Spark's Kafka source, which is Java's client, is not given what it logs in by."""
    if properties.get("sasl.mechanism") == _BY_TOKENS:
        raise SettingsError(
            f"Spark's Kafka source does not log in by {_BY_TOKENS}, for which its Java would have to be told the URLs "
            "that it may ask; leave reader and client.dns.lookup out, so that the columnar source reads"
        )


def _login(mechanism: str, properties: Mapping[str, str]) -> dict[str, object]:
    """What a mechanism needs of the properties besides its name; SettingsError, which shows no secret."""
    config = properties.get(_LOGIN)
    if mechanism == _BY_TOKENS:
        # Not where DAGs are parsed, which look at properties too.
        from ratchet.source.token_provider import Tokens

        return {"sasl_oauth_token_provider": Tokens(_grant(properties))}
    return _jaas(config) if config is not None else {}


def _grant(properties: Mapping[str, str]) -> tokens.Grant:
    config = properties.get(_LOGIN, "OAuthBearerLoginModule")
    if "OAuthBearerLoginModule" not in config:
        raise SettingsError(
            "Kafka property sasl.jaas.config is not understood beside sasl.mechanism=OAUTHBEARER; leave it out, or "
            'write …OAuthBearerLoginModule required clientId="…" clientSecret="…";'
        )
    options = _options(config)
    for name in options:
        if name not in ("clientId", "clientSecret", "scope") and not name.startswith("extension_"):
            raise SettingsError(f"{name} in Kafka property sasl.jaas.config is not supported; take it out")
    return tokens.grant(properties, options)


def _options(config: str) -> dict[str, str]:
    """What a JAAS login says in quotes."""
    said = re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', config)
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in said}


def _jaas(config: str) -> dict[str, object]:
    """User and password of a plain or SCRAM login; SettingsError (which never shows them) for another."""
    said = _options(config)
    if not any(login in config for login in _JAAS_LOGINS) or not {"username", "password"} <= said.keys():
        raise SettingsError(
            "Kafka property sasl.jaas.config is not understood; "
            'write …PlainLoginModule (or ScramLoginModule) required username="…" password="…";'
        )
    return {"sasl_plain_username": said["username"], "sasl_plain_password": said["password"]}


def librdkafka_settings(properties: dict[str, str]) -> dict[str, Any]:
    """The same properties as librdkafka's clients want them; SettingsError as `client_settings` raises it."""
    given = client_settings(properties)
    settings = {name: given[key] for name, key in _LIBRDKAFKA.items() if key in given}
    settings["bootstrap.servers"] = properties["bootstrap.servers"]
    if "ssl_certfile" in given:
        # The key is in the same file.
        settings["ssl.key.location"] = given["ssl_certfile"]
    if given.get("ssl_check_hostname") is False:
        settings["ssl.endpoint.identification.algorithm"] = "none"
    return settings | (_of_tokens(_grant(properties)) if given.get("sasl_mechanism") == _BY_TOKENS else {})


def _of_tokens(by: tokens.Grant) -> dict[str, Any]:
    named = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": by.endpoint,
        "sasl.oauthbearer.client.id": by.client_id,
        "sasl.oauthbearer.client.secret": by.secret,
        "sasl.oauthbearer.scope": by.scope,
        "sasl.oauthbearer.extensions": ",".join(f"{name}={value}" for name, value in by.extensions),
        "https.ca.location": by.authority,
    }
    return {name: value for name, value in named.items() if value}
