"""The pipeline of the ledger's tests."""

from tests.ledger.staging import SPEC

PIPELINE = SPEC
