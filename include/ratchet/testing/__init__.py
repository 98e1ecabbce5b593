"""What a pipeline makes of given records, without servers, and checks of its transform; for tests of pipelines.

Imports: errors, formats, ledger, sinks, source, spark, spec, transforms.
"""

from ratchet.testing.check import check
from ratchet.testing.records import TIME, Record
from ratchet.testing.run import Result, run

__all__ = ["TIME", "Record", "Result", "check", "run"]
