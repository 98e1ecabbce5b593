"""Spans: which records a writer's rows are of, where their positions ascend, so that nobody has to look at the rows."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

MOST_RUNS = 1_000
"""A batch that changes its partition more often than this was shuffled, and is not worth following."""


class Span:
    """From which record to which, by partition, as rows are added; unknown once a position does not ascend."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, int]] | None = {}
        self._last: dict[int, tuple[int, int]] = {}

    @property
    def known(self) -> Mapping[int, tuple[int, int]] | None:
        """{partition: (first, last offset)}; None where that says nothing, as rows may repeat a position."""
        return self._of

    def add(self, rows: pa.Table) -> None:
        """Follow some rows, which have `_partition`, `_offset` and mostly `_n`."""
        if self._of is None or not rows.num_rows:
            return
        partition, offset = (rows.column(name).to_numpy() for name in ("_partition", "_offset"))
        n = rows.column("_n").to_numpy() if "_n" in rows.column_names else np.zeros(len(offset), np.int32)
        same = partition[1:] == partition[:-1]
        ascends = (offset[1:] > offset[:-1]) | ((offset[1:] == offset[:-1]) & (n[1:] > n[:-1]))
        starts = np.concatenate([[0], np.flatnonzero(~same) + 1])
        if not ascends[same].all() or len(starts) > MOST_RUNS:
            self._of = None
            return
        for first, last in zip(starts, [*(starts[1:] - 1), len(offset) - 1], strict=True):
            ends = [(int(offset[at]), int(n[at])) for at in (first, last)]
            if not self._follow(int(partition[first]), *ends):
                self._of = None
                return

    def _follow(self, partition: int, first: tuple[int, int], last: tuple[int, int]) -> bool:
        """Whether a run of ascending rows follows those of its partition that were before."""
        assert self._of is not None, "nobody follows what is unknown"
        if partition in self._last and first <= self._last[partition]:
            return False
        begun = self._of.get(partition, (first[0], 0))[0]
        self._of[partition] = (begun, last[0])
        self._last[partition] = last
        return True


def are_apart(spans: Iterable[Mapping[int, tuple[int, int]]]) -> bool:
    """Whether no record is in two of these, so that rows of several writers do not repeat a position."""
    of: dict[int, list[tuple[int, int]]] = {}
    for span in spans:
        for partition, reach in span.items():
            of.setdefault(partition, []).append(reach)
    return all(
        before[1] < after[0]
        for reaches in of.values()
        for before, after in zip(sorted(reaches), sorted(reaches)[1:], strict=False)
    )
