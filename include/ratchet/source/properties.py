"""Kafka's client properties, by their Java names, for clients that are written in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ratchet.errors import SettingsError

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
KNOWN = frozenset({"bootstrap.servers", "sasl.jaas.config", "ssl.endpoint.identification.algorithm", *_SAME, *_IMPLIED})
"""What a connection may be made with."""
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_JAAS_LOGINS = ("PlainLoginModule", "ScramLoginModule")
_BY_PROPERTIES = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The mechanisms whose logins are in the properties, and so on every worker."""
_MECHANISMS = (*_BY_PROPERTIES, "GSSAPI")
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
            "with a client's certificate (tokens, as of OAUTHBEARER, would have to be fetched by every worker)"
        )
    if not properties.get("bootstrap.servers"):
        raise SettingsError("the Kafka connection has no bootstrap.servers; set it to host:port,host:port")
    settings: dict[str, object] = {"bootstrap_servers": properties["bootstrap.servers"].split(",")}
    for name, value in properties.items():
        if name in ("ssl.truststore.type", "ssl.keystore.type") and value.upper() != "PEM":
            raise SettingsError(f"Kafka property {name}={value} cannot be read by Python; give PEM files")
        if name in _SAME:
            settings[_SAME[name]] = value
        elif name == "sasl.jaas.config":
            settings |= _jaas(value)
        elif name == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = bool(value)
        elif name.startswith(("ssl.", "sasl.")) and name not in _IMPLIED:
            raise SettingsError(
                f"Kafka property {name} is not supported; use security.protocol, sasl.mechanism, "
                "sasl.jaas.config, and PEM files in "
                "ssl.truststore.location and ssl.keystore.location"
            )
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
    if properties.get("security.protocol", "").startswith("SASL_") and mechanism not in _BY_PROPERTIES:
        return (
            f"sasl.mechanism={mechanism} takes its login from the machine, and the columnar source has only those of "
            f"the connection, by {', '.join(_BY_PROPERTIES)}"
        )
    lookup = properties.get("client.dns.lookup", _USUAL_LOOKUP)
    if lookup != _USUAL_LOOKUP:
        return f"client.dns.lookup={lookup} looks up brokers' names, and the columnar source takes them as written"
    return None


def _jaas(config: str) -> dict[str, object]:
    """User and password of a plain or SCRAM login; SettingsError (which never shows them) for another."""
    said = dict(re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', config))
    if not any(login in config for login in _JAAS_LOGINS) or not {"username", "password"} <= said.keys():
        raise SettingsError(
            "Kafka property sasl.jaas.config is not understood; "
            'write …PlainLoginModule (or ScramLoginModule) required username="…" password="…";'
        )
    plain = {name: re.sub(r"\\(.)", r"\1", value) for name, value in said.items()}
    return {"sasl_plain_username": plain["username"], "sasl_plain_password": plain["password"]}


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
    return settings
