"""A connection to Kafka's brokers by kafka-python: opened when it is needed, and again while another takes over."""

# The annotations that pyright brings for kafka-python are of another version.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

import kafka.errors as client_errors
from kafka import KafkaAdminClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from ratchet.errors import BrokerUnreachable, NotGranted, SettingsError
from ratchet.source.properties import client_settings
from ratchet.source.token_provider import Tokens, user_of

TIMEOUT_MS = 10_000
"""How long to look for a broker, and how long to wait for one answer."""
TAKEOVER_SECONDS = 20
"""How long to ask again while a partition has no leader: Kafka misses a silent broker after 9 seconds."""

T = TypeVar("T")


class Client:
    """The way to the brokers; use it as a context manager.

    `properties` are Java-style client properties.
    """

    def __init__(self, properties: dict[str, str]):
        self._properties = properties
        self._settings = client_settings(properties)
        self._admin: KafkaAdminClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; harmless when it was never opened."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    @property
    def servers(self) -> str:
        """The bootstrap servers, as people write them."""
        return ",".join(self._settings["bootstrap_servers"])

    @property
    def admin(self) -> KafkaAdminClient:
        """kafka-python's admin client, for what this class does not say."""
        return self._admin or self._reaching(self._open)

    def _open(self) -> KafkaAdminClient:
        if self._admin is None:
            self._try_login()
            self._admin = KafkaAdminClient(
                **self._settings, request_timeout_ms=TIMEOUT_MS, bootstrap_timeout_ms=TIMEOUT_MS
            )
        return self._admin

    def _try_login(self) -> None:
        """Raise SettingsError when a broker is not trusted or refuses the login.

        The clients would try the same again and again, which locks accounts, and then say that nobody answers.
        """
        if self._settings.get("security_protocol", "PLAINTEXT") == "PLAINTEXT":
            return
        tokens = self._settings.get("sasl_oauth_token_provider")
        if isinstance(tokens, Tokens):
            # What is wrong with them would not be said by the clients.
            tokens.token()
        net = NetworkSelector()
        manager = KafkaConnectionManager(net, **self._settings)

        async def connect() -> str | None:
            refused = None
            for broker in manager.cluster.bootstrap_brokers():
                connection = manager.get_connection(broker.node_id, timeout_ms=TIMEOUT_MS)
                try:
                    await connection
                    return None
                except OSError as error:
                    return f"a PEM file cannot be used: {error}"
                except client_errors.KafkaError as error:
                    if "Handshake failed" in str(error):
                        return str(error).rpartition("KafkaConnectionError: ")[2]
                    if connection.broker_version is not None:
                        # The broker's own words are lost: the client drops what arrives together with the end.
                        refused = "the broker ended the connection during the login"
            return refused

        try:
            refused = net.run(connect)
        finally:
            manager.close()
            net.close()
        if refused:
            mechanism, user = self._settings.get("sasl_mechanism"), user_of(self._settings)
            raise SettingsError(
                f"no connection to Kafka at {self.servers}: {refused}; correct security.protocol, "
                f"ssl.truststore.location ({self._settings.get('ssl_cafile', 'not set')}), or sasl.mechanism "
                f"({mechanism or 'not set'}) and sasl.jaas.config (user {user or 'not set'})"
            )

    def versions(self) -> dict[int, tuple[int, ...]]:
        """{broker: the version of Kafka that its protocol shows}, of every broker that takes part."""

        def ask() -> dict[int, tuple[int, ...]]:
            admin = self._open()
            told = admin.describe_cluster()["brokers"]
            nodes = [broker["broker_id"] for broker in told if not broker.get("is_fenced")]
            return {node: tuple(admin.get_broker_version_data(node).broker_version) for node in nodes}

        return self._reaching(ask)

    def _lacking(self, right: str, why: str) -> NotGranted:
        """What to say where the brokers do not grant a right, such as `READ on topic 'orders'`."""
        user = user_of(self._settings)
        named = f"user {user}" if user else "this connection's user"
        return NotGranted(
            f"Kafka at {self.servers} does not grant {named} {right} ({why}); grant it, or correct the connection"
        )

    def _reaching(self, ask: Callable[[], T], right: str = "DESCRIBE on the cluster") -> T:
        """What `ask` returns; it is asked again, over a new connection, while another broker takes over.

        `right` is what brokers want granted for it.
        """
        again = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_delay(TAKEOVER_SECONDS),
            wait=wait_fixed(0.2),
            before_sleep=lambda _: self.close(),
            reraise=True,
        )
        try:
            return again(ask)
        except client_errors.AuthorizationError as error:
            raise self._lacking(right, type(error).__name__) from error
        except (client_errors.KafkaError, OSError) as error:
            raise BrokerUnreachable(
                f"no answer from Kafka at {self.servers} ({type(error).__name__}: {error}); "
                "check that it runs and that bootstrap.servers and the security properties are right"
            ) from error


def _may_pass(error: BaseException) -> bool:
    """Whether another broker may answer soon; one that let us wait has had its time."""
    waited = client_errors.KafkaTimeoutError, client_errors.RequestTimedOutError
    # A leader that came after the client had heard of all brokers: a new connection hears of it.
    if isinstance(error, client_errors.UnknownBrokerIdError):
        return True
    return isinstance(error, client_errors.KafkaError) and error.retriable and not isinstance(error, waited)
