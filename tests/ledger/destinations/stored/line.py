"""The line that sends its rows to the place that the environment names."""

import os

from ratchet import Append, DeltaLake
from tests.ledger.staging import SPEC

_TO = DeltaLake(os.environ["TESTED_LAKE"], store="lakes")
PIPELINE = SPEC.model_copy(update={"sinks": [Append("rows", columns="a bigint", to=_TO), *SPEC.sinks[1:]]})
