"""The line that sends its rows to a second database."""

from tests.ledger.destinations.elsewhere import SENT as PIPELINE

__all__ = ["PIPELINE"]
