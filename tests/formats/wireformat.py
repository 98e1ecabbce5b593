"""Protobuf's wire format by hand, as its documentation has it: also what no serializer writes."""

from __future__ import annotations

import struct


def varint(n: int, longer: int = 0) -> bytes:
    """A number; a negative one in ten bytes. `longer` bytes follow that say nothing."""
    n, out = n & (1 << 64) - 1, []
    while True:
        out.append(n & 127)
        n >>= 7
        if not n:
            break
    out += [0] * longer
    return bytes([*(byte | 128 for byte in out[:-1]), out[-1]])


def zigzag(n: int) -> bytes:
    return varint((n << 1) ^ (n >> 63))


def number(field: int, n: int, longer: int = 0) -> bytes:
    return varint(field << 3) + varint(n, longer)


def sized(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, said: str) -> bytes:
    return sized(field, said.encode())


def double(field: int, x: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", x)


def single(field: int, x: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", x)


def group(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 3) + content + varint(field << 3 | 4)
