"""What a person has put into a connection to Kafka, as properties by their Java names, and nothing that is not one.

Airflow's own connections to Kafka hold librdkafka's names, and settings of consumers and producers, which share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.errors import SettingsError
from ratchet.source import tokens
from ratchet.source.properties import KNOWN

TUNING = frozenset(
    {
        "check.crcs",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "max.poll.records",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)
"""They change how fast Spark's source reads, and not what."""

IDLE = frozenset(
    {
        # of consumers in a group
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "exclude.internal.topics",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "key.deserializer",
        "max.poll.interval.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "value.deserializer",
        # of producers
        "acks",
        "batch.size",
        "buffer.memory",
        "compression.type",
        "delivery.timeout.ms",
        "enable.idempotence",
        "key.serializer",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "partitioner.class",
        "retries",
        "transaction.timeout.ms",
        "transactional.id",
        "value.serializer",
        # of librdkafka itself
        "api.version.fallback.ms",
        "api.version.request",
        "broker.address.family",
        "broker.address.ttl",
        "coordinator.query.interval.ms",
        "debug",
        "error_cb",
        "fetch.error.backoff.ms",
        "fetch.message.max.bytes",
        "fetch.wait.max.ms",
        "log.connection.close",
        "log_level",
        "logger",
        "message.max.bytes",
        "on_commit",
        "on_delivery",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "receive.message.max.bytes",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.timeout.ms",
        "statistics.interval.ms",
        "stats_cb",
        "throttle_cb",
        "topic.metadata.refresh.interval.ms",
    }
)
"""They mean nothing here: which offsets are read is the ledger's, and no consumer group has a part in it."""

_JAVA = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.id": tokens.CLIENT_ID,
    "sasl.oauthbearer.client.secret": tokens.CLIENT_SECRET,
    "ssl.ca.location": "ssl.truststore.location",
}
"""librdkafka's names of what Java's client has by another."""

_ONLY = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.grant.type": "client_credentials"}
"""They mean what is done anyhow."""

_INSTEAD = {
    "oauth_cb": "a function of one process is not there in every worker; tokens are asked for by a client's id and "
    "secret, with sasl.oauthbearer.method=oidc",
    "ssl.certificate.location": "put certificate and key into one PEM file, as ssl.keystore.location with "
    "ssl.keystore.type=PEM",
    "ssl.key.location": "put certificate and key into one PEM file, as ssl.keystore.location with "
    "ssl.keystore.type=PEM",
    "ssl.ca.pem": "put it into a file, which ssl.ca.location names",
    "interceptor.classes": "records are read as they were sent",
}


@dataclass(frozen=True)
class Configured:
    """Properties by their Java names, and the names of those that were left out because they mean nothing here."""

    properties: dict[str, str]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"ignored Kafka's {', '.join(self.ignored)}: which offsets are read is the ledger's, and no consumer group "
            "or producer has a part in it"
        )


def configured(given: Mapping[str, str]) -> Configured:
    """Take the properties of a connection apart; SettingsError, which shows no value of a login, for one that is none.

    By librdkafka's names are taken `metadata.broker.list`, `sasl.mechanisms`, `sasl.username`, `sasl.password`,
    `ssl.ca.location`, and `none` as `ssl.endpoint.identification.algorithm`.
    """
    found: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in given.items():
        if name in _INSTEAD:
            raise SettingsError(f"Kafka property {name} is not supported; {_INSTEAD[name]}")
        if name in IDLE:
            ignored.append(name)
        elif name == "isolation.level":
            if value != "read_committed":
                raise SettingsError(
                    f"Kafka property isolation.level={value} is not supported; only what is committed is read"
                )
        elif name in _ONLY:
            if value.lower() != _ONLY[name]:
                raise SettingsError(f"Kafka property {name}={value} is not supported; it can be {_ONLY[name]}")
        elif name == "sasl.oauthbearer.extensions":
            if "sasl.jaas.config" in given:
                raise SettingsError(f"Kafka property {name} is given beside sasl.jaas.config; give one login")
            found["sasl.jaas.config"] = _extending(value)
        elif name == "enable.ssl.certificate.verification":
            if value.lower() != "true":
                raise SettingsError(
                    f"Kafka property {name}={value} is not supported; give the broker's authority as ssl.ca.location"
                )
        elif name in TUNING | KNOWN | _JAVA.keys() or name.startswith(("ssl.", "sasl.")):
            java = _JAVA.get(name, name)
            if found.get(java, value) != value:
                raise SettingsError(f"Kafka property {java} is given twice, by Java's name and by librdkafka's")
            found[java] = value
        else:
            raise SettingsError(
                f"Kafka property {name} is none that is known here; correct it, or take it out of the connection"
            )
    if "ssl.ca.location" in given:
        found.setdefault("ssl.truststore.type", "PEM")
    for name in ("security.protocol", "sasl.mechanism"):
        if name in found:
            found[name] = found[name].upper()
    if found.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl.endpoint.identification.algorithm"] = ""
    return Configured(_with_login(found), tuple(ignored))


def _extending(extensions: str) -> str:
    """Extensions, which librdkafka has as `name=value,name=value`, as the login of Java's client has them."""
    said: list[str] = []
    for each in extensions.split(","):
        name, mark, value = each.partition("=")
        if not mark or not name.isalnum():
            raise SettingsError("Kafka property sasl.oauthbearer.extensions is not understood; write name=value,…")
        said.append(f" extension_{name}={_quoted(value)}")
    return f"org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required{''.join(said)};"


def _with_login(properties: dict[str, str]) -> dict[str, str]:
    """User and password, which librdkafka has as properties of their own, as Java's client is given them."""
    said = {name: properties.pop(name) for name in ("sasl.username", "sasl.password") if name in properties}
    if not said:
        return properties
    if "sasl.jaas.config" in properties:
        raise SettingsError(f"Kafka property {next(iter(said))} is given beside sasl.jaas.config; give one login")
    for name in ("sasl.username", "sasl.password"):
        if name not in said:
            raise SettingsError(f"Kafka property {name} is missing; a login has sasl.username and sasl.password")
    mechanism = properties.get("sasl.mechanism", "")
    if mechanism != "PLAIN" and not mechanism.startswith("SCRAM"):
        raise SettingsError(
            f"Kafka property sasl.mechanism is {mechanism or 'missing'}; a login by sasl.username and sasl.password is "
            "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"
        )
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    user, password = (_quoted(said[name]) for name in ("sasl.username", "sasl.password"))
    login = f"org.apache.kafka.common.security.{module} required username={user} password={password};"
    return {**properties, "sasl.jaas.config": login}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
