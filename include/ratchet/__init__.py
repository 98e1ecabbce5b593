"""Exactly-once batch transactions over Kafka ranges, Spark jobs and PostgreSQL, run by Airflow."""

from ratchet.errors import Refused
from ratchet.spec.pipeline import (
    Accumulate,
    Append,
    Condition,
    Json,
    MaxChange,
    MaxDeadLetters,
    Pipeline,
    Topic,
    Upsert,
)

__all__ = [
    "Accumulate",
    "Append",
    "Condition",
    "Json",
    "MaxChange",
    "MaxDeadLetters",
    "Pipeline",
    "Refused",
    "Topic",
    "Upsert",
]
