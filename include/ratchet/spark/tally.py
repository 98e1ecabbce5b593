"""What tasks tell of what they read: records by partition, parts, fields that were found, moments that were cut."""

# pyarrow makes its functions when it is imported.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ratchet.formats.envelope import Opened

NAMES_KEPT = 40
"""So many names beside an absent field are told."""


@dataclass
class Tally:
    """Counts over some batches; adding two is counting over both."""

    records: dict[int, int] = field(default_factory=dict[int, int])
    """By partition."""
    parts: set[int] = field(default_factory=set[int])
    """The numbers of the parts that were read to their ends."""
    passed: dict[int, int] = field(default_factory=dict[int, int])
    """By partition: the position behind the last record, which is all that is known of Spark's own source."""
    errors: int = 0
    good: int = 0
    found: set[str] = field(default_factory=set[str])
    beside: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    cut: int = 0

    def read(self, batch: pa.RecordBatch) -> None:
        """Count the records of a batch of the source."""
        counts = pc.value_counts(batch.column("_partition"))
        for partition, count in zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True):
            self.records[partition] = self.records.get(partition, 0) + count

    def passed_by(self, batch: pa.RecordBatch) -> None:
        """Note the position behind the last record of each partition."""
        for partition in pc.unique(batch.column("_partition")).to_pylist():
            mine = batch.column("_offset").filter(pc.equal(batch.column("_partition"), partition))
            self.passed[partition] = max(self.passed.get(partition, 0), pc.max(mine).as_py() + 1)

    def opened(self, batch: Opened) -> None:
        """Count what became of them."""
        self.errors += batch.dead.num_rows
        self.good += batch.rows.num_rows
        self.cut += batch.cut
        self.found |= batch.found
        self._beside(batch.beside)

    def _beside(self, said: Mapping[str, Iterable[str]]) -> None:
        for column, names in said.items():
            kept = self.beside.setdefault(column, set())
            kept.update(sorted(names)[: NAMES_KEPT - len(kept)])

    def to_json(self) -> str:
        """Its stored form."""
        beside = {column: sorted(names) for column, names in self.beside.items()}
        return json.dumps({**vars(self), "found": sorted(self.found), "parts": sorted(self.parts), "beside": beside})

    @classmethod
    def sum(cls, stored: Iterable[str]) -> Tally:
        """The tally over all of these."""
        whole = cls()
        for text in stored:
            said: dict[str, Any] = json.loads(text)
            for partition, count in said["records"].items():
                whole.records[int(partition)] = whole.records.get(int(partition), 0) + count
            for partition, position in said["passed"].items():
                whole.passed[int(partition)] = max(whole.passed.get(int(partition), 0), position)
            whole.parts |= set(said["parts"])
            whole.errors += said["errors"]
            whole.good += said["good"]
            whole.cut += said["cut"]
            whole.found |= set(said["found"])
            whole._beside(said["beside"])
        return whole
