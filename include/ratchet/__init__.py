"""Exactly-once batch transactions over Kafka ranges, Spark jobs and PostgreSQL, run by Airflow."""

from ratchet.errors import Refused
from ratchet.formats.avro import Avro
from ratchet.formats.json import Json
from ratchet.formats.messagepack import MessagePack
from ratchet.protocol.gate_kinds import Condition, MaxChange, MaxDeadLetters
from ratchet.protocol.halt import Halt
from ratchet.sinks.accumulate import Accumulate
from ratchet.sinks.append import Append
from ratchet.sinks.upsert import Upsert
from ratchet.spec.parts import Arrivals
from ratchet.spec.pipeline import Pipeline
from ratchet.spec.source import Topic

__all__ = [
    "Accumulate",
    "Append",
    "Arrivals",
    "Avro",
    "Condition",
    "Halt",
    "Json",
    "MaxChange",
    "MaxDeadLetters",
    "MessagePack",
    "Pipeline",
    "Refused",
    "Topic",
    "Upsert",
]
