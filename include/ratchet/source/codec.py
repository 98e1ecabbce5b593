"""Decompression into a buffer that is used again: gzip, snappy (raw and framed), lz4 and zstd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np
import numpy.typing as npt

Octets = npt.NDArray[np.uint8]

LARGEST = 2**30
"""What one batch may decompress to, in bytes: Arrow's offsets and this process's memory end soon after."""
_USUAL = 16 * 2**20
"""The buffer's first size; pages that are never written to take no memory."""
_FRAMED = b"\x82SNAPPY\x00"
_FRAME_HEADER = 16
"""Bytes of Java's frame around snappy: its magic, a version and the oldest compatible one."""

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
# pyright finds no types in cramjam's modules of compiled code.
_STREAMS: dict[int, Callable[[memoryview, Octets], int]] = {
    GZIP: cramjam.gzip.decompress_into,  # pyright: ignore
    LZ4: cramjam.lz4.decompress_into,  # pyright: ignore
    ZSTD: cramjam.zstd.decompress_into,  # pyright: ignore
}
_snappy: Any = cramjam.snappy  # pyright: ignore


class Undecodable(ValueError):
    """The bytes are not what the codec writes, or too many; the reason, without a place."""


class Scratch:
    """The decompressed bytes of some batches, one after the other."""

    def __init__(self, size: int = _USUAL):
        self._buffer: Octets = np.empty(size, np.uint8)
        self.used = 0

    @property
    def content(self) -> Octets:
        """What is there, for reading; not valid after the next call of another method."""
        view = self._buffer[: self.used]
        view.flags.writeable = False
        return view

    def clear(self) -> None:
        """Forget the content, and the room that only a very large batch needed."""
        self.used = 0
        if len(self._buffer) > 4 * _USUAL:
            self._buffer = np.empty(_USUAL, np.uint8)

    def add(self, codec: int, source: memoryview) -> tuple[int, int]:
        """Decompress `source` behind what is there; (start, end). Raises Undecodable."""
        start = self.used
        try:
            if codec == SNAPPY:
                end = self._add_snappy(source)
            elif codec in _STREAMS:
                end = self._add_stream(_STREAMS[codec], source)
            else:
                raise Undecodable(f"codec {codec} is not known")
        except cramjam.DecompressionError as error:
            raise Undecodable(f"codec {codec}: {error}") from error
        self.used = end
        return start, end

    def _add_stream(self, decompress: Callable[[memoryview, Octets], int], source: memoryview) -> int:
        """The end of what a codec whose result has no stated size wrote."""
        while True:
            free = self._buffer[self.used : self.used + LARGEST]
            try:
                return self.used + int(decompress(source, free))
            except cramjam.DecompressionError as error:
                # Which error means that the room was too small is not documented; a larger one settles it.
                if len(free) == LARGEST:
                    raise Undecodable(f"not decompressed within {LARGEST:,} bytes: {error}") from error
                self._grow(min(LARGEST, 4 * len(free) + 2**20))

    def _add_snappy(self, source: memoryview) -> int:
        if bytes(source[: len(_FRAMED)]) != _FRAMED:
            return self._add_block(source, self.used)
        at, end = _FRAME_HEADER, self.used
        while at < len(source):
            if bytes(source[at : at + len(_FRAMED)]) == _FRAMED:
                # Java starts a stream anew wherever its writer was flushed and wrapped again.
                at += _FRAME_HEADER
                continue
            length = int.from_bytes(source[at : at + 4], "big", signed=True)
            at += 4
            if not 0 < length <= len(source) - at:
                raise Undecodable("the length of a snappy block does not fit")
            end = self._add_block(source[at : at + length], end)
            at += length
        return end

    def _add_block(self, block: memoryview, at: int) -> int:
        size = int(_snappy.decompress_raw_len(block))
        if at - self.used + size > LARGEST:
            raise Undecodable(f"more than {LARGEST:,} bytes when decompressed")
        if len(self._buffer) - at < size:
            kept, self.used = self.used, at
            self._grow(size)
            self.used = kept
        return at + int(_snappy.decompress_raw_into(block, self._buffer[at : at + size]))

    def _grow(self, free: int) -> None:
        """Make room for so many bytes behind what is used."""
        larger: Octets = np.empty(self.used + free, np.uint8)
        larger[: self.used] = self._buffer[: self.used]
        self._buffer = larger
