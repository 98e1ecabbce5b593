"""A pipeline whose values are private."""

from ratchet import Append
from tests.ledger.staging import SPEC

PIPELINE = SPEC.model_copy(
    update={"name": "secret", "private": True, "sinks": [Append("secret_rows", columns="a bigint")]}
)
