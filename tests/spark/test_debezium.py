"""The Upsert of the changes of a table, by Debezium's own connector, while all are killed in turn."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest
from kafka import KafkaConsumer, TopicPartition
from psycopg import sql

from ratchet import Debezium, Pipeline, Topic, Upsert
from ratchet.dev.stack import Stack
from ratchet.operate.migrate import migrate
from ratchet.operate.verify import recompute, verify
from ratchet.spark import slice as slice_module
from tests.apicurio import Apicurio
from tests.mariadb import PASSWORD, MariaDB
from tests.until import until

from .connector import Connector, in_avro, logical, of_mysql, of_postgres
from .test_cut_logs import drain

pytestmark = [pytest.mark.all, pytest.mark.timeout(1800)]

COLUMNS = "name string, price decimal(12,2), at timestamp"
CREATED = "create table things (id bigint primary key, name text not null, price numeric(12,2), at timestamptz)"
ROUNDS, CHANGES = 9, 60


@pytest.fixture
def source(postgres: Stack) -> Iterator[str]:
    """The URL of a database whose changes can be followed."""
    logical(postgres)
    name = f"source_{uuid4().hex[:8]}"
    with psycopg.connect(postgres.ledger_url, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    url = postgres.database_url(name)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(CREATED)
    yield url
    with psycopg.connect(postgres.ledger_url, autocommit=True) as admin:
        admin.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", [name]
        )
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.mark.invariant("I1")
def test_the_table_of_the_changes_is_the_table_that_changed_whoever_is_killed(
    rig, source: str, postgres: Stack, kafka: Stack, tmp_path: Path
):
    rng = random.Random(7)
    prefix = f"things_{uuid4().hex[:8]}"
    with psycopg.connect(source, autocommit=True) as conn:
        conn.execute("insert into things select n, 'before ' || n, n / 4.0, now() from generate_series(1, 50) n")
    connector = Connector(
        tmp_path / "connect", rig.kafka, of_postgres(source, prefix), prefix, value_converter_schemas_enable="true"
    )
    connector.start()
    changed = f"{prefix}.public.things"
    # A snapshot that is cut off is made again, and then nothing tells of rows that were deleted in between.
    until("the snapshot is published", lambda: {*range(1, 51)} <= published(rig, changed), 180)
    with psycopg.connect(source, autocommit=True) as conn:
        conn.execute("insert into things values (-1000, 'begun', 0, now())")
    until("changes are published", lambda: -1000 in published(rig, changed), 180)
    spec = Pipeline(
        name="p",
        source=Topic(
            changed, value=Debezium(f"id bigint not null, {COLUMNS}", envelope="lsn bigint from source.lsn not null")
        ),
        sinks=[Upsert("things_here", key="id bigint", columns=f"{COLUMNS}, lsn bigint", order="lsn")],
        max_records=100,
        slice_records=50,
    )
    migrate(rig.ledger.url, [spec])
    victims = [connector.kill, lambda: killed(kafka, "kafka"), lambda: killed(postgres, "postgres")]
    for number in range(ROUNDS):
        with psycopg.connect(source, autocommit=True) as conn:
            change(conn, rng, CHANGES)
        # While the connector publishes what was changed.
        victims[number % len(victims)]()
        until("the servers are back", lambda: answers(source, rig), 120)
        if not connector.is_running():
            connector.kill()
            connector.start()
        with psycopg.connect(source, autocommit=True) as conn:
            change(conn, rng, CHANGES)
            mark = conn.execute(
                "insert into things values (%s, 'mark', 0, now()) returning id", [-number - 1]
            ).fetchone()
        assert mark is not None
        until("the mark is published", lambda key=mark[0]: key in published(rig, changed), 120)
        drain(rig, spec, f"round {number} ")
        assert here(rig) == there(source), f"round {number}"
    assert [fault for check in verify(rig.ledger, spec) for fault in check.faults] == []
    again = recompute(rig.ledger, spec, lambda works: slice_module.recompute(rig.spark, spec, works, rig.servers))
    assert again.checked and again.faults == ()
    connector.kill()


@pytest.mark.invariant("I1")
def test_the_table_of_a_binary_log_is_the_table_that_changed_across_files_and_partitions(rig, tmp_path: Path):
    """MariaDB stands for MySQL, events are in Avro, and records of one key are in several partitions."""
    rng = random.Random(11)
    prefix = f"things_{uuid4().hex[:8]}"
    changed = f"{prefix}.shop.things"
    with Apicurio(tmp_path / "registry") as registry, MariaDB(tmp_path / f"mariadb-{prefix}") as source:
        source.run(
            "create database shop; use shop; create table things (id bigint primary key, name varchar(100) not null, "
            "price decimal(12,2)); insert into things values (1, 'before', 0.25), (2, 'before', null)"
        )
        settings = {**of_mysql(source.port, PASSWORD, "shop", rig.kafka), **in_avro(registry.endpoint)}
        # By the price, so that a key is now in one partition and now in another.
        spread = {
            "transforms": "spread",
            "transforms.spread.type": "io.debezium.transforms.partitions.PartitionRouting",
            "transforms.spread.partition.payload.fields": "change.price",
            "transforms.spread.partition.topic.num": "3",
        }
        connector = Connector(tmp_path / "connect", rig.kafka, {**settings, **spread}, prefix)
        rig.client.admin.create_topics({changed: {"num_partitions": 3, "replication_factor": 1}})
        connector.start()
        declared = Debezium(
            "id bigint not null, name string, price decimal(12,2)",
            envelope="place decimal(38,0) from _binlog not null",
            registry="schemas",
        )
        spec = Pipeline(
            name="p",
            source=Topic(changed, value=declared),
            sinks=[
                Upsert(
                    "things_here",
                    key="id bigint",
                    columns="name string, price decimal(12,2), place decimal(38,0)",
                    order="place",
                )
            ],
            max_records=40,
            slice_records=20,
        )
        migrate(rig.ledger.url, [spec])
        rig.endpoints = {"schemas": registry.endpoint}
        drained = count()
        for number in range(3):
            for _ in range(20):
                asked = [
                    "replace into things values (@key, 'new', @price)",
                    "update things set price = price + 1 where id in (@key, @other)",
                    *(["delete from things where id = @other"] if rng.random() < 0.3 else []),
                    *(["update ignore things set id = id + 100 where id = @key"] if rng.random() < 0.2 else []),
                ]
                numbers = {
                    "key": rng.randrange(1, 30),
                    "other": rng.randrange(1, 30),
                    "price": rng.randrange(10**6) / 4,
                }
                source.run("use shop; " + "; ".join(asked), **numbers)
            if number == 1:
                connector.kill()
            source.run("flush binary logs; insert into shop.things values (@mark, 'mark', 0)", mark=1000 + number)
            if number == 1:
                connector.start()
            rows = [
                tuple(row) for row in source.run("select id, name, ifnull(price, 'none') from shop.things order by id")
            ]

            def is_here(of=rows) -> bool:
                # Partitions are published one by one.
                drain(rig, spec, f"{next(drained)} ")
                return in_the_sink(rig) == of

            until("the table is here as it is there", is_here, 180)
        assert sum(end > 0 for end in rig.client.offsets(changed).stable.values()) == 3
        assert [fault for check in verify(rig.ledger, spec) for fault in check.faults] == []
        connector.kill()


def change(conn: psycopg.Connection, rng: random.Random, count: int) -> None:
    """Rows are inserted, updated and deleted, and their keys changed, some of them in one transaction."""
    for _ in range(count // 5):
        with conn.transaction():
            for _ in range(5):
                ids = [row[0] for row in conn.execute("select id from things where id > 0 order by id").fetchall()]
                what = rng.choice(["insert", "update", "update", "delete", "key"])
                if what == "insert" or len(ids) < 10:
                    conn.execute(
                        "insert into things values (%s, %s, %s, now()) on conflict do nothing",
                        [rng.randrange(1, 400), f"new {rng.random()}", rng.randrange(10**6) / 4],
                    )
                elif what == "update":
                    conn.execute("update things set price = price + 0.25, at = now() where id = %s", [rng.choice(ids)])
                elif what == "delete":
                    conn.execute("delete from things where id = %s", [rng.choice(ids)])
                else:
                    free = rng.choice([n for n in range(1, 400) if n not in set(ids)])
                    conn.execute("update things set id = %s where id = %s", [free, rng.choice(ids)])


def in_the_sink(rig) -> list[tuple]:
    with psycopg.connect(rig.ledger.url) as conn:
        asked = "select id::text, name, coalesce(price::text, 'none') from things_here t order by t.id"
        return conn.execute(asked).fetchall()


def killed(stack: Stack, name: str) -> None:
    psutil.Process(stack.pids()[name]).send_signal(signal.SIGKILL)


def answers(source: str, rig) -> bool:
    try:
        with psycopg.connect(source, connect_timeout=2) as conn:
            conn.execute("select 1")
        return bool(rig.client.admin.describe_topics([]) is not None)
    except Exception:
        return False


def published(rig, topic: str) -> set[int]:
    """The ids of rows in the topic whose change events have been published."""
    import json

    consumer = KafkaConsumer(bootstrap_servers=rig.kafka["bootstrap.servers"], isolation_level="read_committed")
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end, found = consumer.end_offsets([partition])[partition], set[int]()
    while consumer.position(partition) < end:
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                event = json.loads(record.value)["payload"] if record.value else {}
                found |= {event["after"]["id"]} if event.get("after") else set()
    consumer.close()
    return found


def there(source: str) -> list[tuple]:
    with psycopg.connect(source) as conn:
        return conn.execute("select id, name, price, at from things order by id").fetchall()


def here(rig) -> list[tuple]:
    with psycopg.connect(rig.ledger.url) as conn:
        return conn.execute("select id, name, price, at from things_here order by id").fetchall()
