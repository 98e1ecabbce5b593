"""Topics with everything that a source must read, and who reads them besides: librdkafka."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from uuid import uuid4

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from ratchet.ledger.work import OffsetRange
from ratchet.source.cluster import Cluster
from ratchet.source.kafka import Kafka
from ratchet.source.properties import client_settings
from tests.until import until

PLAIN = ("none", "gzip", "snappy", "lz4", "zstd")

Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""(partition, offset, timestamp in ms, key, value, headers)."""


def make_topic(properties: dict[str, str], partitions: int = 1, replicas: int = 1, **configs: str) -> str:
    """A topic with a new name, whose records stay."""
    name = f"source-{uuid4().hex[:12]}"
    named = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
    wanted = {name: {"num_partitions": partitions, "replication_factor": replicas, "configs": named}}
    with Kafka(properties) as client:
        client.admin.create_topics(wanted, wait_for_metadata=True)
    return name


def librdkafka(properties: dict[str, str], **more: object) -> dict[str, object]:
    """The properties as librdkafka wants them."""
    settings = client_settings(properties)
    found: dict[str, object] = {"bootstrap.servers": properties["bootstrap.servers"], **more}
    if "ssl_cafile" in settings:
        found |= {
            "security.protocol": settings["security_protocol"],
            "ssl.ca.location": settings["ssl_cafile"],
            "sasl.mechanism": settings["sasl_mechanism"],
            "sasl.username": settings["sasl_plain_username"],
            "sasl.password": settings["sasl_plain_password"],
        }
    return found


def producer(properties: dict[str, str], codec: str = "none", **more: object) -> Producer:
    return Producer(
        librdkafka(
            properties,
            **{"compression.type": codec, "linger.ms": 20, "message.max.bytes": 1_000_000, "acks": "all", **more},
        )
    )


def write_everything(properties: dict[str, str], topic: str, partitions: int, seed: int = 1, rounds: int = 12) -> None:
    """Every codec, plain and transactional, committed and aborted, interleaved; nulls, headers, large and single ones.

    Partition 0 ends in markers and aborted records.
    """
    chance = random.Random(seed)
    plain = {codec: producer(properties, codec, **{"batch.size": 40_000}) for codec in PLAIN}
    single = producer(properties, "lz4", **{"batch.num.messages": 1, "linger.ms": 0})
    bound = {codec: producer(properties, codec, **{"transactional.id": uuid4().hex}) for codec in PLAIN}
    for transactional in bound.values():
        transactional.init_transactions(30)
    for round_ in range(rounds):
        for transactional in bound.values():
            transactional.begin_transaction()
        for codec in PLAIN * 2:
            writers = [plain[codec], bound[codec], single] if round_ % 3 == 0 else [plain[codec], bound[codec]]
            for writer in writers:
                for _ in range(4 if writer is single else chance.randrange(60)):
                    _write_one(chance, writer, topic, chance.randrange(partitions))
                # What one has sent lies before what the next one sends, so that batches of all are interleaved.
                writer.flush()
        if round_ % 4 == 1:
            codec = PLAIN[(round_ // 4) % 5]
            large = chance.randbytes(450_000) * 2
            plain[codec].produce(topic, large, key=b"large", partition=chance.randrange(partitions))
            plain[codec].flush()
        for transactional in bound.values():
            if chance.random() < 0.5:
                transactional.commit_transaction(30)
            else:
                transactional.abort_transaction(30)
    last = bound["lz4"]
    for commit in (True, False):
        last.begin_transaction()
        for at in range(30):
            last.produce(topic, b"last %d" % at, partition=0)
        last.flush()
        if commit:
            last.commit_transaction(30)
        else:
            last.abort_transaction(30)


def _write_one(chance: random.Random, writer: Producer, topic: str, partition: int) -> None:
    value = chance.choice([None, b"", b'{"a": %d}' % chance.randrange(10**6), chance.randbytes(chance.randrange(400))])
    key = chance.choice([None, b"", b"key", chance.randbytes(8)])
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(chance.choice([0, 0, 0, 1, 3])):
        headers.append((chance.choice(["", "h", "\u00e9 key"]), chance.choice([None, b"", b"\x00\xff"])))
    timestamp = chance.randrange(1_500_000_000_000, 1_700_000_000_000)
    writer.produce(topic, value, key=key, partition=partition, headers=headers, timestamp=timestamp)


def append(properties: dict[str, str], topic: str, batch: bytes, partition: int = 0) -> None:
    """Hand the broker a record batch as it is."""
    cluster = Cluster(client_settings(properties))
    node = cluster.layout([topic]).topics[topic].leaders[partition]
    connection = cluster.connect(node)
    data = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )
    answer = connection._exchange(request, 9, ProduceResponse)
    (said,) = answer.responses[0].partition_responses
    assert said.error_code == 0, said
    connection.close()
    cluster.close()


def compacted(properties: dict[str, str]) -> str:
    """A topic of one partition with holes: within batches, batches that are empty, and in place of batches."""
    topic = make_topic(
        properties,
        cleanup_policy="compact",
        segment_bytes=str(2**20),
        segment_ms="1",
        min_cleanable_dirty_ratio="0",
        delete_retention_ms="0",
    )
    with Kafka(properties) as client:
        often = ConfigResource(ConfigResourceType.BROKER, "1", {"log.cleaner.backoff.ms": "50"})
        client.admin.alter_configs([often], raise_on_unknown=False)
    chance = random.Random(4)
    bound = producer(properties, "zstd", **{"transactional.id": uuid4().hex})
    bound.init_transactions(30)
    for codec in PLAIN * 3:
        plain = producer(properties, codec)
        bound.begin_transaction()
        for writer in (plain, bound, plain):
            for _ in range(20):
                key = b"%d" % chance.choice([chance.randrange(4), chance.randrange(10**6)])
                value = chance.choice([None, b"v%d" % chance.randrange(100)])
                writer.produce(topic, value, key=key, partition=0)
            writer.flush()
        if chance.random() < 0.7:
            bound.commit_transaction(30)
        else:
            bound.abort_transaction(30)
    (whole,) = stable_ranges(properties, topic)
    last = producer(properties)

    def cleaned() -> bool:
        # A segment is closed, and may be cleaned, when something comes after it.
        last.produce(topic, b"last", key=b"last", partition=0)
        last.flush()
        return len(witnessed(properties, [whole])) < len(whole) // 4

    until("the log is compacted", cleaned, 60)
    with Kafka(properties) as client:
        # Whoever reads it must find the same every time.
        done = ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": "delete"})
        client.admin.alter_configs([done])
    return topic


def limit(properties: dict[str, str], client_id: str, bytes_a_second: float) -> None:
    """Set a quota for what a client fetches."""
    entity = AlterClientQuotasRequest.EntryData.EntityData(entity_type="client-id", entity_name=client_id)
    rate = AlterClientQuotasRequest.EntryData.OpData(key="consumer_byte_rate", value=bytes_a_second, remove=False)
    entry = AlterClientQuotasRequest.EntryData(entity=[entity], ops=[rate])
    cluster = Cluster(client_settings(properties))
    connection = cluster.connect(next(iter(cluster.layout([]).brokers)))
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    said = connection._exchange(request, 1, AlterClientQuotasResponse)
    assert [e.error_code for e in said.entries] == [0], said
    connection.close()
    cluster.close()


def stable_ranges(properties: dict[str, str], topic: str) -> list[OffsetRange]:
    """The topic whole, one range a partition; waits until every marker is written, 10 s at most."""

    def look() -> list[OffsetRange] | None:
        decided = _watermarks(properties, topic, "read_committed")
        whole = _watermarks(properties, topic, "read_uncommitted")
        return decided if decided == whole else None

    found = until(f"everything in {topic} is decided", look, 10)
    assert found is not None
    return found


def _watermarks(properties: dict[str, str], topic: str, isolation: str) -> list[OffsetRange]:
    reader = Consumer(librdkafka(properties, **{"group.id": "none", "isolation.level": isolation}))
    try:
        partitions = sorted(reader.list_topics(topic, 10).topics[topic].partitions)
        return [
            OffsetRange(topic, p, *reader.get_watermark_offsets(TopicPartition(topic, p), timeout=10))
            for p in partitions
        ]
    finally:
        reader.close()


def witnessed(properties: dict[str, str], ranges: Sequence[OffsetRange]) -> list[Row]:
    """The committed records of whole partitions, as librdkafka reads them."""
    reader = Consumer(
        librdkafka(
            properties,
            **{
                "group.id": "none",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # At the end brokers would wait half a second for more, before they say that it is the end.
                "fetch.wait.max.ms": 20,
                "auto.offset.reset": "error",
            },
        )
    )
    try:
        reader.assign([TopicPartition(r.topic, r.partition, r.from_offset) for r in ranges])
        found: list[Row] = []
        left = {r.partition for r in ranges}
        while left:
            message = reader.poll(20)
            assert message is not None, f"nothing came of {left}"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left.discard(message.partition())
                continue
            found.append(
                (
                    message.partition(),
                    message.offset(),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                )
            )
        return found
    finally:
        reader.close()


def rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """What a source gave, in its order."""
    found: list[Row] = []
    for batch in batches:
        millis = [t // 1000 for t in batch.column("_timestamp").cast(pa.int64()).to_pylist()]
        columns = [batch.column(name).to_pylist() for name in ("_partition", "_offset", "_key", "_value", "_headers")]
        for partition, offset, key, value, headers, milli in zip(*columns, millis, strict=True):
            pairs = tuple((header["key"], header["value"]) for header in headers or ())
            found.append((partition, offset, milli, key, value, pairs))
    return found


def within(records: Iterable[Row], ranges: Sequence[OffsetRange]) -> Counter[Row]:
    """The multiset of those records that are in the ranges."""
    return Counter(
        row
        for row in records
        if any(r.partition == row[0] and r.from_offset <= row[1] < r.until_offset for r in ranges)
    )


def ends(ranges: Sequence[OffsetRange]) -> dict[tuple[str, int], int]:
    """The positions that a reading of these ranges reaches; an empty one moves nothing that another one does."""
    ordered = sorted(ranges, key=lambda r: (bool(len(r)), r.from_offset))
    return {(r.topic, r.partition): r.until_offset for r in ordered}
