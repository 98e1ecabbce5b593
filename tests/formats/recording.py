"""Records what Debezium's connectors send in Avro: `python -m tests.formats.recording`, into avro_events.json.

It needs what `make test-all` needs, and Debian's mariadb-server, whose server takes the place of MySQL's.
"""

from __future__ import annotations

import json
import tempfile
from base64 import b64encode
from pathlib import Path

import psycopg
import requests
from kafka import KafkaConsumer, TopicPartition

from ratchet.dev.stack import Stack
from tests.apicurio import Apicurio
from tests.mariadb import PASSWORD, MariaDB
from tests.spark.connector import Connector, in_avro, logical, of_mysql, of_postgres
from tests.until import until

FILE = Path(__file__).parent / "avro_events.json"
POSTGRES = (
    """create table things (id bigint primary key, name text not null, price numeric(12,2), amount numeric(20,6),
    tiny smallint, ok boolean, ratio double precision, real4 real, day date, at timestamptz, local_at timestamp,
    ms_at timestamp(3), t time, raw bytea, u uuid, j jsonb, tags text[], big text, digits numeric)""",
    "insert into things (id, name, price) values (0, 'snapshot', 7)",
)
ROW = """insert into things values (1, 'a', 12.47, 1.5, 1, true, 0.1, 0.1, '2024-05-01', '2024-05-01T10:00:00.123456Z',
'2024-05-01T10:00:00.123456', '2024-05-01T10:00:00.123', '10:00:00.5', '\\x0102',
'00000000-0000-0000-0000-000000000005', '{"a": 1.50, "b": [null]}', '{x,y}', repeat(md5('x'), 400), 1.230)"""
CHANGES = (
    # So that a long value is stored apart, and not in the log when it does not change.
    "alter table things alter column big set storage external",
    ROW,
    "insert into things (id, name, price) values (2, 'b', -0.05), (3, 'c', null)",
    "update things set name = 'a2' where id = 1",
    "update things set id = 4 where id = 2",
    "delete from things where id = 3",
)
MYSQL = """create database shop; use shop; create table things (id bigint primary key, name varchar(100) not null,
price decimal(12,2), day date, at timestamp(6) null, local_at datetime(6), ms_at datetime(3), t time(6),
raw varbinary(10), j json, e enum('a', 'b'), ok tinyint(1), big bigint unsigned, ratio double, y year);
insert into things (id, name, price) values (0, 'snapshot', 7)"""
MYSQL_CHANGES = """set time_zone = '+00:00'; use shop;
insert into things values (1, 'a', 12.47, '2024-05-01', '2024-05-01 10:00:00.123456', '2024-05-01 10:00:00.123456',
'2024-05-01 10:00:00.123', '10:00:00.5', x'0102', '{"a": 1.50}', 'b', 1, 18446744073709551615, 0.1, 2024);
insert into things (id, name, price) values (2, 'b', -0.05), (3, 'c', null);
update things set name = concat(name, '2') where id > 0;
flush binary logs;
update things set id = 4 where id = 2;
delete from things where id = 3"""


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="recording-"))
    with (
        Stack(home / "kafka", {"kafka"}) as kafka,
        Stack(home / "postgres", {"postgres"}) as postgres,
        Apicurio(home / "registry") as registry,
        MariaDB(home / "mariadb") as mariadb,
    ):
        found: dict[str, object] = {}
        logical(postgres)
        with psycopg.connect(postgres.ledger_url, autocommit=True) as admin:
            admin.execute("create database source")
        url = postgres.database_url("source")
        with psycopg.connect(url, autocommit=True) as conn:
            for statement in POSTGRES:
                conn.execute(statement)
            source = {**of_postgres(url, "pg"), **in_avro(registry.endpoint)}
            connector = Connector(home / "pg", kafka.kafka, source, "pg")
            connector.start()
            until("the snapshot is there", lambda: len(sent(kafka, "pg.public.things")) == 1)
            for statement in CHANGES:
                conn.execute(statement)
            until("all is there", lambda: len(sent(kafka, "pg.public.things")) == 10)
            connector.kill()
            found["postgres"] = told(kafka, "pg.public.things", registry)
        mariadb.run(MYSQL)
        for name, more in (
            ("mysql", {**in_avro(registry.endpoint), "bigint.unsigned.handling.mode": "precise"}),
            ("mysql_json", {"value.converter.schemas.enable": "true"}),
        ):
            source = {**of_mysql(mariadb.port, PASSWORD, "shop", kafka.kafka), **more}
            connector = Connector(home / name, kafka.kafka, source, name)
            connector.start()
            until("the snapshot is there", lambda topic=f"{name}.shop.things": len(sent(kafka, topic)) == 1)
            mariadb.run(MYSQL_CHANGES)
            until("all is there", lambda topic=f"{name}.shop.things": len(sent(kafka, topic)) == 12)
            connector.kill()
            found[name] = told(kafka, f"{name}.shop.things", registry)
            mariadb.run("delete from shop.things where id > 0")
    FILE.write_text(json.dumps(found, indent=1) + "\n")


def sent(kafka: Stack, topic: str) -> list[tuple[bytes, bytes | None]]:
    """The key and the value of each record of a topic's first partition."""
    consumer = KafkaConsumer(bootstrap_servers=kafka.kafka["bootstrap.servers"])
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end, found = consumer.end_offsets([partition])[partition], []
    while consumer.position(partition) < end:
        for records in consumer.poll(timeout_ms=1000).values():
            found += [(record.key, record.value) for record in records]
    consumer.close()
    return found


def told(kafka: Stack, topic: str, registry: Apicurio) -> dict[str, object]:
    """The records in base64, and the schemas that they name."""
    records = sent(kafka, topic)
    framed = [each for record in records for each in record if each and each[0] == 0]
    numbers = sorted({int.from_bytes(each[1:5], "big") for each in framed})
    schemas = {
        n: requests.get(f"{registry.endpoint.url}/schemas/ids/{n}", timeout=30).json()["schema"] for n in numbers
    }
    return {
        "schemas": schemas,
        "events": [[each and b64encode(each).decode() for each in record] for record in records],
    }


if __name__ == "__main__":
    main()
