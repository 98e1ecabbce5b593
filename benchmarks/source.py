"""The columnar source alone, on an embedded broker: `python benchmarks/source.py [records]`, 4 million by default.

One line a measure. Rates are the median of several readings in this one process; the values are JSON of 77 bytes in
lz4, in four partitions, as in the other benchmarks.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A script's own directory comes first; the package is beside it.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.backlog import produce  # noqa: E402
from ratchet.dev.stack import CHECKOUT, Stack  # noqa: E402
from ratchet.ledger.work import OffsetRange  # noqa: E402
from ratchet.source.columnar import ColumnarSource  # noqa: E402
from ratchet.source.kafka import Kafka  # noqa: E402

TOPIC = "source"
PARTITIONS = 4
READINGS = 7
SINGLE = 200_000
"""Records in batches of one."""
COLD = """
import json, sys, time
began = time.perf_counter()
from ratchet.source.columnar import ColumnarSource
from ratchet.ledger.work import OffsetRange
imported = time.perf_counter()
import ratchet.source.columns
compiled = time.perf_counter()
next(ColumnarSource(json.loads(sys.argv[1])).read([OffsetRange(sys.argv[2], 0, 0, 1000)]))
print(imported - began, compiled - imported, time.perf_counter() - compiled)
"""
"""A worker that has just started."""
MEMORY = """
import json, sys
import ratchet.source.columns
from ratchet.source.columnar import ColumnarSource
from ratchet.ledger.work import OffsetRange
def most():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
before = most()
for batch in ColumnarSource(json.loads(sys.argv[1])).read([OffsetRange(*r) for r in json.loads(sys.argv[2])]):
    pass
print(before, most())
"""
"""A worker that reads everything and keeps nothing."""


def main(records: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=_state()) as home, Stack(Path(home), {"kafka"}) as stack:
        ranges = _write(stack.kafka, TOPIC, records, PARTITIONS)
        single = _write(stack.kafka, "single", SINGLE, 1, {"batch.num.messages": 1, "linger.ms": 0})
        for nth in ("first", "second"):
            imported, compiled, batch = map(float, _apart(COLD, json.dumps(stack.kafka), TOPIC))
            _say(f"{nth} new process: import", f"{imported:.2f} s, compiled code {compiled:.2f} s, batch {batch:.2f} s")
        source = ColumnarSource(stack.kafka)
        _say("fetch and decode", _rate(records, lambda: _drain(source.read(ranges))))
        kept: list[tuple[Any, ...]] = []
        _say("fetch alone", _rate(records, lambda: _fetch(source, ranges, kept)))
        _say("decode alone", _rate(records, lambda: _decode(kept)))
        _say("fetch and decode, batches of one record", _rate(SINGLE, lambda: _drain(source.read(single))))
        asked = json.dumps([[r.topic, r.partition, r.from_offset, r.until_offset] for r in ranges])
        before, most = _apart(MEMORY, json.dumps(stack.kafka), asked)
        _say("memory of a process that reads it all", f"{before} MiB before, {most} MiB at most")


def _state() -> Path:
    state = CHECKOUT / ".state"
    state.mkdir(exist_ok=True)
    return state


def _write(
    kafka: dict[str, str], topic: str, records: int, partitions: int, more: dict[str, object] | None = None
) -> list[OffsetRange]:
    """A topic with so many records; its ranges."""
    line = b'{"id":%9d,"name":"customer-%06d","amount":%8.2f,"city":"Berlin-%01d"}'
    values = (line % (n, n * 7919 % 1_000_000, n * 31 % 1_000_000 / 100, n % 7) for n in range(records))
    produce(kafka, topic, ((n % partitions, value) for n, value in enumerate(values)), partitions, more)
    with Kafka(kafka) as client:
        return [OffsetRange(topic, p, 0, until) for p, until in client.offsets(topic).stable.items()]


def _apart(script: str, *arguments: str) -> list[str]:
    """The words that a script prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.split()


def _drain(batches: Any) -> None:
    for _ in batches:
        pass


def _fetch(source: ColumnarSource, ranges: list[OffsetRange], kept: list[tuple[Any, ...]]) -> None:
    """Keep what the decoder is asked to decode."""
    from ratchet.source.columns import Decoder

    kept.clear()
    decode = Decoder.decode
    Decoder.decode = lambda _, *asked: iter(kept.append(asked) or ())  # type: ignore[method-assign]
    try:
        _drain(source.read(ranges))
    finally:
        Decoder.decode = decode


def _decode(kept: list[tuple[Any, ...]]) -> None:
    from ratchet.source.columns import Decoder

    decoder = Decoder()
    for asked in kept:
        _drain(decoder.decode(*asked))


def _rate(records: int, work: Callable[[], None]) -> str:
    seconds: list[float] = []
    for _ in range(READINGS):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return f"{records / statistics.median(seconds) / 1e6:.2f} M records/s (best {records / min(seconds) / 1e6:.2f})"


def _say(what: str, result: str) -> None:
    print(f"{what}: {result}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4_000_000)
