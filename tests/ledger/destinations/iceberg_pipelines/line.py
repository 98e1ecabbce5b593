"""The line that sends its rows to an Iceberg table."""

from tests.ledger.destinations.icebergs import SENT as PIPELINE

__all__ = ["PIPELINE"]
