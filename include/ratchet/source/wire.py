"""One blocking connection to one broker, and the three things that are asked over it.

The only module of the package that touches kafka-python: its protocol and login classes are partly private, and its
version is pinned. What it returns are plain values.
"""

# kafka-python is typed in part only; what leaves this module is typed.
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import io
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, cast
from uuid import UUID

import numpy as np
from kafka.errors import KafkaError, for_code
from kafka.net.sasl import get_sasl_mechanism
from kafka.net.transport import KafkaSSLTransport
from kafka.protocol.consumer import FetchRequest, FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from ratchet.errors import SettingsError
from ratchet.source.token_provider import user_of

CONNECT_SECONDS = 5
"""How long one attempt at a connection may take."""
ANSWER_SECONDS = 10
"""How long a broker may send nothing while an answer is due."""
WAIT_MS = 500
"""How long a broker may wait for a record to come, when there is none."""
LARGEST_ANSWER = 2**30
"""Bytes; what claims to be longer is no answer of Kafka's."""

_HIGHEST = {FetchRequest: 13, MetadataRequest: 12, ListOffsetsRequest: 7, SaslHandshakeRequest: 1}
"""The versions that this module was written for; SaslAuthenticate follows the mechanism's handshake."""
_TOPIC_IDS_SINCE = 13
_EARLIEST = -2
_READ_COMMITTED = 1
_NO_TOPIC_ID = UUID(int=0)

OK, OUT_OF_RANGE, CORRUPT, UNKNOWN_TOPIC, INVALID_TOPIC, NOT_ALLOWED = 0, 1, 2, 3, 17, 29
"""Kafka's error codes that are treated one by one; the others may pass by themselves."""


class Lost(Exception):
    """The connection cannot be used any more, or could not be made; another one may do better."""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class TopicLayout:
    """What a broker knows of a topic: an error code, its id if brokers have such, {partition: leader's node}."""

    error: int
    topic_id: UUID | None
    leaders: dict[int, int]


@dataclass(frozen=True)
class Layout:
    """What a broker knows of the cluster."""

    brokers: dict[int, Address]
    topics: dict[str, TopicLayout]


@dataclass(frozen=True)
class Wanted:
    """A piece of a partition's log that is asked for."""

    topic: str
    topic_id: UUID | None
    partition: int
    position: int
    size: int


@dataclass(frozen=True)
class Fetched:
    """A broker's answer for one partition; `records` are whole batches, the last of which may be cut off."""

    topic: str
    partition: int
    error: int
    log_start: int
    last_stable: int
    aborted: tuple[tuple[int, int], ...]
    records: bytes


@dataclass(frozen=True)
class Answer:
    """To one fetch. The broker wants to be left alone for `throttled` seconds; then it may have left partitions out."""

    throttled: float
    partitions: list[Fetched]


def error_name(code: int) -> str:
    """How Kafka calls an error code."""
    return f"{for_code(code).__name__} ({code})"


class Connection:
    """Connected and logged in; one request at a time.

    `settings` are keyword arguments of kafka-python's clients. Raises SettingsError when the broker is not trusted or
    refuses the login, and Lost for everything that may pass.
    """

    def __init__(self, address: Address, settings: Mapping[str, Any]):
        self.address = address
        self._settings = settings
        self._client_id = str(settings.get("client_id", "ratchet"))
        self._correlation = 0
        self._pending: tuple[Any, int] | None = None
        self._names: dict[UUID, str] = {}
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket = self._connect()
        try:
            self._log_in()
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """For select; what it tells of is the whole answer, as nothing of one is read ahead."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it; harmless when it is closed."""
        self._socket.close()

    # What is asked

    def layout(self, topics: Sequence[str]) -> Layout:
        """The brokers, and these topics."""
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        found: Any = self._ask(
            MetadataRequest(topics=asked, allow_auto_topic_creation=False), MetadataRequest, MetadataResponse
        )
        return Layout(
            {b.node_id: Address(b.host, b.port) for b in found.brokers},
            {
                t.name: TopicLayout(
                    t.error_code,
                    t.topic_id if t.topic_id and t.topic_id != _NO_TOPIC_ID else None,
                    {p.partition_index: p.leader_id for p in t.partitions if p.leader_id >= 0},
                )
                for t in found.topics
            },
        )

    def log_start(self, topic: str, partition: int) -> int | None:
        """The first offset that the partition still has; None where the broker gives an error."""
        asked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=_EARLIEST
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=_READ_COMMITTED,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])],
        )
        found: Any = self._ask(request, ListOffsetsRequest, ListOffsetsResponse)
        (answer,) = found.topics[0].partitions
        return None if answer.error_code else answer.offset

    def fetch(self, wanted: Sequence[Wanted], size: int) -> None:
        """Ask for these pieces, `size` bytes in all; a first batch that is larger comes nonetheless."""
        version = self._version(FetchRequest)
        by_id = version >= _TOPIC_IDS_SINCE and all(piece.topic_id for piece in wanted)
        if not by_id:
            version = min(version, _TOPIC_IDS_SINCE - 1)
        self._names = {piece.topic_id: piece.topic for piece in wanted if piece.topic_id}
        topics: list[Any] = []
        # Brokers fill an answer in the order of the request: a topic may be named again, its partitions not sorted.
        for (topic, topic_id), pieces in groupby(wanted, lambda piece: (piece.topic, piece.topic_id)):
            partitions = [
                FetchRequest.FetchTopic.FetchPartition(
                    partition=piece.partition,
                    current_leader_epoch=-1,
                    fetch_offset=piece.position,
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=piece.size,
                )
                for piece in pieces
            ]
            names: dict[str, Any] = {"topic_id": topic_id} if by_id else {"topic": topic}
            topics.append(FetchRequest.FetchTopic(**names, partitions=partitions))
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=size,
            isolation_level=_READ_COMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=topics,
            forgotten_topics_data=[],
            rack_id="",
        )
        self._send(request, version, FetchResponse)

    def fetched(self) -> Answer:
        """The answer to `fetch`; waits for it."""
        found: Any = self._receive()
        if found.error_code:
            raise Lost(f"{self.address} refuses to be read from: {error_name(found.error_code)}")
        partitions = [
            Fetched(
                self._names[topic.topic_id] if topic.topic_id in self._names and not topic.topic else topic.topic,
                part.partition_index,
                part.error_code,
                part.log_start_offset,
                part.last_stable_offset,
                tuple((a.producer_id, a.first_offset) for a in part.aborted_transactions or ()),
                part.records or b"",
            )
            for topic in found.responses
            for part in topic.partitions
        ]
        return Answer(found.throttle_time_ms / 1000, partitions)

    # How it gets in

    def _connect(self) -> socket.socket:
        secure = str(self._settings.get("security_protocol", "PLAINTEXT")).endswith("SSL")
        try:
            # Trust is settled as kafka-python does it, for all of its options.
            options = {**KafkaSSLTransport.DEFAULT_CONFIG, **self._settings}
            context: Any = KafkaSSLTransport._build_ssl_context(options) if secure else None
        except OSError as error:
            raise self._refused(f"a PEM file cannot be used: {error}") from error
        try:
            plain = socket.create_connection(self.address, CONNECT_SECONDS)
        except OSError as error:
            raise Lost(f"{self.address}: {error}") from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            plain.settimeout(ANSWER_SECONDS)
            return context.wrap_socket(plain, server_hostname=self.address.host.rstrip(".")) if secure else plain
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError) as error:
            plain.close()
            raise Lost(f"{self.address}: the connection ended during the TLS handshake: {error}") from error
        except ssl.SSLError as error:
            plain.close()
            raise self._refused(str(error)) from error
        except OSError as error:
            plain.close()
            raise Lost(f"{self.address}: {error}") from error

    def _log_in(self) -> None:
        found: Any = self._exchange(ApiVersionsRequest(), 0, ApiVersionsResponse)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in found.api_keys}
        mechanism_name = str(self._settings.get("sasl_mechanism") or "")
        if not str(self._settings.get("security_protocol", "")).startswith("SASL_"):
            return
        answer: Any = self._ask(
            SaslHandshakeRequest(mechanism=mechanism_name), SaslHandshakeRequest, SaslHandshakeResponse
        )
        if answer.error_code:
            offered = ", ".join(answer.mechanisms)
            raise self._refused(f"the broker knows other mechanisms: {offered}")
        try:
            mechanism: Any = get_sasl_mechanism(mechanism_name)(host=self.address.host, **self._settings)
        except (KeyError, KafkaError) as error:
            raise self._refused(f"sasl.mechanism {mechanism_name or 'is not set'}: {error}") from error
        while not mechanism.is_done():
            request = SaslAuthenticateRequest(mechanism.auth_bytes())
            answer = self._exchange(request, 0, SaslAuthenticateResponse)
            if answer.error_code:
                raise self._refused(answer.error_message or error_name(answer.error_code))
            try:
                mechanism.receive(answer.auth_bytes)
            except (ValueError, KeyError) as error:
                raise self._refused(f"the broker's side of the login is wrong: {error}") from error
        if not mechanism.is_authenticated():
            raise self._refused("the login did not succeed")

    def _refused(self, why: str) -> SettingsError:
        truststore = self._settings.get("ssl_cafile", "not set")
        mechanism, user = self._settings.get("sasl_mechanism"), user_of(self._settings)
        return SettingsError(
            f"no connection to Kafka at {self.address}: {why}; correct security.protocol, "
            f"ssl.truststore.location ({truststore}), or sasl.mechanism ({mechanism or 'not set'}) "
            f"and sasl.jaas.config (user {user or 'not set'})"
        )

    # Requests and answers

    def _version(self, request: Any) -> int:
        lowest, highest = self._versions.get(request.API_KEY, (0, -1))
        version = min(highest, _HIGHEST[request])
        if version < lowest:
            raise SettingsError(
                f"the broker at {self.address} takes {request.__name__} in versions {lowest} to {highest}, "
                f"and this client speaks {_HIGHEST[request]}; Kafka 2.1 and later can be read"
            )
        return version

    def _ask(self, request: Any, kind: Any, answer: Any) -> Any:
        return self._exchange(request, self._version(kind), answer)

    def _exchange(self, request: Any, version: int, answer: Any) -> Any:
        self._send(request, version, answer)
        return self._receive()

    def _send(self, request: Any, version: int, answer: Any) -> None:
        if self._pending is not None:
            raise RuntimeError("an answer is due")
        self._correlation += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation, client_id=self._client_id)
        try:
            self._socket.sendall(request.encode(framed=True, header=True))
        except OSError as error:
            raise Lost(f"{self.address}: {error}") from error
        self._pending = answer, version

    def _receive(self) -> Any:
        if self._pending is None:
            raise RuntimeError("no answer is due")
        (answer, version), self._pending = self._pending, None
        size = int.from_bytes(self._read(4), "big", signed=True)
        if not 0 < size <= LARGEST_ANSWER:
            raise Lost(f"{self.address}: an answer of {size:,} bytes is none of Kafka's")
        content = self._read(size)
        try:
            head = io.BytesIO(content[:256])
            header = answer.parse_header(head, version=version)
            if header.correlation_id != self._correlation:
                raise Lost(f"{self.address}: the answer is to another request")
            return answer.decode(content[head.tell() :], version=version)
        except (ValueError, IndexError, struct.error) as error:
            raise Lost(f"{self.address}: the answer cannot be read: {error}") from error

    def _read(self, size: int) -> memoryview:
        buffer = memoryview(cast(Any, np.empty(size, np.uint8)))
        at = 0
        while at < size:
            try:
                got = self._socket.recv_into(buffer[at:])
            except OSError as error:
                raise Lost(f"{self.address}: {error or type(error).__name__}") from error
            if not got:
                raise Lost(f"{self.address}: the broker ended the connection")
            at += got
        return buffer
