"""Which batches a reader of committed records leaves out: markers, and those of aborted transactions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ratchet.source.frames import CONTROL, TRANSACTIONAL, Frames

Aborted = Sequence[tuple[int, int]]
"""(producer id, first offset) of each aborted transaction in what was fetched, as the broker lists them."""

_ABORT = 0


def committed(frames: Frames, aborted: Aborted) -> npt.NDArray[np.bool_]:
    """For each batch, whether its records count; as Kafka's own consumer decides it. Raises BrokenBatch."""
    keep = (frames.attributes & CONTROL) == 0
    if not aborted:
        return keep
    coming = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    open_: set[int] = set()
    rows = zip(frames.attributes.tolist(), frames.headers["producer"].tolist(), frames.ends.tolist(), strict=True)
    for batch, (attributes, producer, end) in enumerate(rows):
        while coming and coming[-1][1] < end:
            open_.add(coming.pop()[0])
        if attributes & CONTROL:
            if producer in open_ and _marker(frames, batch) == _ABORT:
                open_.discard(producer)
        elif attributes & TRANSACTIONAL and producer in open_:
            keep[batch] = False
    return keep


def _marker(frames: Frames, batch: int) -> int | None:
    """The type in the key of a control record; None where compaction has left none. Markers are never compressed."""
    if not frames.headers["count"][batch]:
        return None
    at, end = (int(places[batch]) for places in frames.payloads)
    data = frames.records
    try:
        at = _after_varint(data, at) + 1
        for _ in range(3):
            at = _after_varint(data, at)
        if at + 4 > end:
            raise IndexError
    except IndexError:
        raise frames.place.broken(int(frames.bases[batch]), "its marker cannot be read") from None
    return int.from_bytes(data[at + 2 : at + 4], "big")


def _after_varint(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1
