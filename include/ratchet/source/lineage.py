"""Whether a partition's log is still the one that was read: its leader epochs, held against those of the leader.

Each change of leader begins an epoch with a greater number, and every record belongs to the epoch of the leader that
took it. A log that was cut and has grown again (an unclean election, a restored disk) has as many offsets as before,
but epochs of other numbers or starts. Apache Kafka's followers and consumers find out in the same way
(OffsetsForLeaderEpoch, KIP-101 and KIP-320).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Lineage = tuple[tuple[int, int], ...]
"""((leader epoch, its first offset), ...) of a partition, ascending; epochs without records may be left out."""


class EpochEnd(NamedTuple):
    """A leader's answer to a question for an epoch: the greatest epoch up to it that its log has, and where that ends.

    Where the log has none so low any more, `epoch` is the one that was asked for, and `end` where the log's first one
    begins. Where all that it has is lower, and the leader's own epoch without records, both are -1.
    """

    epoch: int
    end: int


@dataclass(frozen=True)
class Compared:
    """A log's lineage now, and up to which offset it is the log that was known; None where all of that is there."""

    lineage: Lineage
    kept: int | None


def compare(known: Lineage, current: int, beginning: int) -> Generator[int, EpochEnd, Compared]:
    """Hold the leader's log, which begins at `beginning` and is in epoch `current`, against the lineage `known`.

    Yields epochs, for each of which it must be sent the leader's answer. Nothing known is kept whole.
    """
    if not known:
        return Compared((yield from _above(-1, current, beginning)), None)
    # The leader has nothing of an epoch above its own.
    at = len([epoch for epoch, _ in known if epoch <= current]) - 1
    end: int | None = None
    while at >= 0 and known[at][0] < current:
        epoch, end = yield known[at][0]
        if epoch < 0:
            # All that it has is of lower epochs, as where the present one has no records yet.
            at, end = at - 1, None
            continue
        if epoch == known[at][0]:
            break
        while at >= 0 and known[at][0] > epoch:
            at -= 1
        if at >= 0 and known[at][0] == epoch:
            break
    # What ends in its log before it has begun in the known one is in that log alone.
    while end is not None and at >= 0 and known[at][1] >= end:
        at -= 1
    if at < 0:
        # Of what the line began with the leader has nothing.
        kept = known[0][1] if end is None else min(known[0][1], end)
        return Compared((yield from _above(-1, current, max(kept, beginning))), kept)
    common = known[at][0]
    ends = [start for _, start in known[at + 1 : at + 2]]
    if common == current or end is None:
        return Compared(known[: at + 1], min(ends, default=None))
    newer = yield from _above(common, current, end)
    return Compared((*known[: at + 1], *newer), min([*ends, end]))


def _above(common: int, current: int, end: int) -> Generator[int, EpochEnd, Lineage]:
    """The leader's epochs above `common`, which ends at `end` in its log, up to `current`; none that has no start."""
    found: list[tuple[int, int]] = []
    top = current
    while top > common:
        below, start = (yield top - 1) if top else EpochEnd(-1, 0)
        # Starts ascend: the same one again is that of the log's first epoch, where it has none so low.
        if start < 0 or (found and start >= found[-1][1]):
            break
        found.append((top, start))
        if start <= end:
            break
        top = below
    return tuple(reversed(found))


def trimmed(lineage: Lineage, beginning: int) -> Lineage:
    """Without the epochs of which nothing is left in a log that begins there."""
    before = [at for at, (_, start) in enumerate(lineage) if start <= beginning]
    return lineage[before[-1] :] if before else lineage


def compared(
    ask: Callable[[dict[int, int]], Mapping[int, EpochEnd]],
    known: Mapping[int, Lineage],
    current: Mapping[int, int],
    beginning: Mapping[int, int],
) -> dict[int, Compared]:
    """{partition: its log beside `known`}; `ask` gives the answers of all leaders to {partition: leader epoch}.

    Without those partitions of which the leaders know no epoch.
    """
    asking = {p: compare(known.get(p, ()), epoch, beginning[p]) for p, epoch in current.items()}
    found: dict[int, Compared] = {}
    sent: Mapping[int, EpochEnd | None] = dict.fromkeys(asking)
    while sent:
        asked: dict[int, int] = {}
        for partition, answer in sent.items():
            try:
                # The first is None, by which a generator is started.
                asked[partition] = asking[partition].send(answer)  # pyright: ignore[reportArgumentType]
            except StopIteration as done:
                log: Compared = done.value
                if log.lineage:
                    found[partition] = Compared(trimmed(log.lineage, beginning[partition]), log.kept)
        sent = ask(asked) if asked else {}
    return found
