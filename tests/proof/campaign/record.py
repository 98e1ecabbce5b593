"""The record of a part: everything that a campaign writes down of an hour, and the report reads again.

Counts are of this part alone; a moment is seconds since the part began, unless it says otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

STRUCK = "struck"
NOT_NOW = "not now"
"""There was nothing that the fault could have struck, and nothing has been different."""

# A field that the report does not know would be one that it does not show.
_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Unreadable(Exception):
    """A file is not the record of a part."""


@dataclass(frozen=True, config=_config)
class Machine:
    """What the part ran on."""

    cores: NonNegativeInt
    memory: NonNegativeInt
    """Bytes."""


@dataclass(frozen=True, config=_config)
class PipelineRecord:
    """What a pipeline was given to do, and how far it came."""

    name: str
    shape: str
    """One line: its topic, its sinks, how it is submitted."""
    committed: NonNegativeInt
    """Records that producers know to be committed."""
    aborted: NonNegativeInt
    """Records of producers' transactions that were aborted."""
    transactions: NonNegativeInt
    revisions: NonNegativeInt
    """Besides the originals."""
    dead_letters: NonNegativeInt


@dataclass(frozen=True, config=_config)
class FaultRecord:
    """A fault that struck, or tried to."""

    kind: str
    """As `tests.proof.faults.fault.Fault.kind` has it."""
    struck_at: NonNegativeFloat
    healed_at: NonNegativeFloat | None
    """None if it was never healed, or has not struck."""
    what_happened: str
    """STRUCK, NOT_NOW, or in words how the fault itself went wrong: the report then counts it as an error."""
    recovered_after: NonNegativeFloat | None = None
    """Seconds from its heal until every pipeline that commits at all after it has done so; None if none does."""
    target: str | None = None
    """Which of several processes, or none."""


@dataclass(frozen=True, config=_config)
class CommitRecord:
    """A transaction's revision that became visible."""

    pipeline: str
    txid: NonNegativeInt
    revision: NonNegativeInt
    at: NonNegativeFloat
    records: NonNegativeInt
    epoch: NonNegativeInt
    tries: NonNegativeInt
    """Of all its slices together, in all epochs."""
    waited: NonNegativeFloat
    """Seconds from its last vote to its commit."""


@dataclass(frozen=True, config=_config)
class OperationRecord:
    """What a person, or Airflow by itself, did in the midst of it."""

    at: NonNegativeFloat
    what: str
    """clear, trigger, backfill, doubled task, void and so on."""
    pipeline: str
    said: str
    """What came of it, in a line."""


@dataclass(frozen=True, config=_config)
class Readings:
    """Readers that held all sinks against one another while it ran."""

    readers: NonNegativeInt
    snapshots: NonNegativeInt
    torn: list[str] = Field(default_factory=list)
    """A line for each snapshot in which the sinks did not show the same whole transactions, or offsets were ahead."""
    offsets: NonNegativeInt = 0
    """As monitoring tools were told them, each held against what was committed."""


@dataclass(frozen=True, config=_config)
class Comparison:
    """What the broker has, read by the witness, against a pipeline's sinks and dead letters."""

    pipeline: str
    read: NonNegativeInt
    """Records that the witness has read, with read_committed."""
    rows: NonNegativeInt
    """In all sinks that keep a row for each record."""
    dead_letters: NonNegativeInt
    lost: NonNegativeInt
    """Records that are nowhere."""
    doubled: NonNegativeInt
    """Records that are somewhere more than once."""
    foreign: NonNegativeInt
    """Rows and dead letters of no record that the witness has read."""
    different: NonNegativeInt
    """Rows and dead letters whose content is not that of their record."""
    examples: list[str] = Field(default_factory=list)


@dataclass(frozen=True, config=_config)
class SentRecord:
    """What a destination has, read as others read it, against what readers see of its sink."""

    destination: str
    """Its sink and its kind: where it is differs from part to part."""
    rows: NonNegativeInt
    different: NonNegativeInt
    """Rows that it lacks or has too often, whole rows compared."""
    examples: list[str] = Field(default_factory=list)


@dataclass(frozen=True, config=_config)
class PartRecord:
    """One part of a campaign."""

    commit: str
    """As `tests.proof.parts.commit` says it: with a plus where files have been changed since."""
    seed: NonNegativeInt
    part: Annotated[str, Field(pattern=r"^[1-9]\d*/[1-9]\d*$")]
    """3/10"""
    began: AwareDatetime
    ended: AwareDatetime
    machine: Machine
    readings: Readings
    pipelines: list[PipelineRecord] = Field(default_factory=list)
    faults: list[FaultRecord] = Field(default_factory=list)
    commits: list[CommitRecord] = Field(default_factory=list)
    operations: list[OperationRecord] = Field(default_factory=list)
    comparison: list[Comparison] = Field(default_factory=list)
    sent: list[SentRecord] = Field(default_factory=list)
    left: list[str] = Field(default_factory=list)
    """Stages, locks, prepared transactions, sessions, processes and claims that are left."""
    history: list[str] = Field(default_factory=list)
    """Faults of the chain of events."""
    verify: list[str] = Field(default_factory=list)
    """What `ratchet verify` has found."""

    @property
    def number(self) -> int:
        return int(self.part.partition("/")[0])

    @property
    def of(self) -> int:
        return int(self.part.partition("/")[2])

    @property
    def name(self) -> str:
        return f"part {self.part}, seed {self.seed}"

    @property
    def seconds(self) -> float:
        """How long it took, or until the last thing that it says."""
        told = [fault.healed_at or fault.struck_at for fault in self.faults]
        told += [one.at for one in (*self.commits, *self.operations)]
        return max([(self.ended - self.began).total_seconds(), *told, 1.0])

    def save(self, file: Path) -> None:
        """Write it whole, or not at all."""
        fresh = file.with_name(f"{file.name}.new")
        fresh.write_bytes(_json.dump_json(self, indent=1) + b"\n")
        fresh.rename(file)

    @classmethod
    def load(cls, file: Path) -> PartRecord:
        """Raises Unreadable with the file's name and what is wrong in it."""
        try:
            return _json.validate_json(file.read_bytes())
        except OSError as error:
            raise Unreadable(f"{file}: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise Unreadable(f"{file}: not the record of a part: {where}: {first['msg']}") from error


_json = TypeAdapter(PartRecord)
