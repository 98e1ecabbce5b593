"""The measured works, a module each: what is done, by whom, and what is wanted of it."""

from benchmarks.bench import Work
from benchmarks.works import accumulate, append, avro, commit, memory, revision, sent, sinks, upsert, view

WORKS: dict[str, Work] = {
    "append": append.WORK,
    "commit": commit.WORK,
    "view": view.WORK,
    "upsert": upsert.WORK,
    "accumulate": accumulate.WORK,
    "sinks": sinks.WORK,
    "revision": revision.WORK,
    "memory": memory.WORK,
    "avro": avro.WORK,
    "kafka": sent.KAFKA,
    "parquet": sent.PARQUET,
    "delta": sent.DELTA,
    "iceberg": sent.ICEBERG,
}
"""By the name that `make bench WORKS=…` knows, in the order in which they are measured."""
