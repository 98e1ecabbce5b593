"""Exactly-once batch transactions over Kafka ranges, Spark jobs and PostgreSQL, run by Airflow."""

from ratchet.destinations.delta_lake import DeltaLake
from ratchet.destinations.files import Files
from ratchet.destinations.iceberg import Iceberg
from ratchet.destinations.kafka_topic import KafkaTopic
from ratchet.destinations.table import Table
from ratchet.errors import Refused
from ratchet.formats.avro import Avro
from ratchet.formats.cloudevents import CloudEvents
from ratchet.formats.csv import Csv
from ratchet.formats.debezium import Debezium
from ratchet.formats.json import Json
from ratchet.formats.messagepack import MessagePack
from ratchet.formats.protobuf import Protobuf
from ratchet.formats.whole import Bytes, Text
from ratchet.protocol.gate_kinds import Condition, MaxChange, MaxDeadLetters
from ratchet.protocol.halt import Halt
from ratchet.sinks.accumulate import Accumulate
from ratchet.sinks.append import Append
from ratchet.sinks.upsert import Upsert
from ratchet.spec.parts import Arrivals
from ratchet.spec.pipeline import Pipeline
from ratchet.spec.source import Topic
from ratchet.spec.sql import Sql

__all__ = [
    "Accumulate",
    "Append",
    "Arrivals",
    "Bytes",
    "Avro",
    "CloudEvents",
    "Condition",
    "Csv",
    "Debezium",
    "DeltaLake",
    "Files",
    "Halt",
    "Iceberg",
    "Json",
    "KafkaTopic",
    "MaxChange",
    "MaxDeadLetters",
    "MessagePack",
    "Pipeline",
    "Protobuf",
    "Refused",
    "Table",
    "Text",
    "Sql",
    "Topic",
    "Upsert",
]
