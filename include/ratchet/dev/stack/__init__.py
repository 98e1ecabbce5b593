"""The embedded servers: Kafka, PostgreSQL, Spark Connect and Airflow, on this machine, without Docker."""

from ratchet.dev.stack.addresses import running
from ratchet.dev.stack.machine import CORES
from ratchet.dev.stack.stack import CHECKOUT, SERVERS, Stack, down

__all__ = ["CHECKOUT", "CORES", "SERVERS", "Stack", "down", "running"]
