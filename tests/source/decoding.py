"""What the columnar source makes of the bytes of record batches, as rows."""

from __future__ import annotations

from ratchet.source.columns import Decoder
from ratchet.source.frames import Place, frames_of
from ratchet.source.port import SCHEMA

from .batches import GZIP, LZ4, NONE, SNAPPY, ZSTD, rows

PLACE = Place("t", 7)
END = 2**62
CODECS = {
    "none": (NONE, False),
    "gzip": (GZIP, False),
    "snappy": (SNAPPY, False),
    "framed snappy": (SNAPPY, True),
    "lz4": (LZ4, False),
    "zstd": (ZSTD, False),
}
DECODER = Decoder()


def decode(data: bytes, position: int = 0, lo: int = 0, hi: int = END, aborted=()) -> list[tuple]:
    frames = frames_of(PLACE, data, position)
    found = list(DECODER.decode(frames, aborted, lo, hi, 4, frames.place.partition))
    assert all(batch.schema.equals(SCHEMA) and batch.num_rows for batch in found)
    assert all(set(batch.column("_source").to_pylist()) == {4} for batch in found)
    assert all(set(batch.column("_partition").to_pylist()) == {7} for batch in found)
    return rows(found)
