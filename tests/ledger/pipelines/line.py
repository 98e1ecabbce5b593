"""The line that the tests stage for by themselves."""

from tests.ledger.staging import SPEC as PIPELINE

__all__ = ["PIPELINE"]
