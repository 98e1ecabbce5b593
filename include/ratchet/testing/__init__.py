"""What a pipeline makes of given records, without servers, and checks of its transform; for tests of pipelines.

Imports: errors, formats, ledger, sinks, source, spark, spec, transforms, values.
"""

from ratchet.testing.check import check
from ratchet.testing.records import TIME, Record
from ratchet.testing.run import Result, run
from ratchet.values.endpoint import Endpoint

__all__ = ["TIME", "Endpoint", "Record", "Result", "check", "run"]
