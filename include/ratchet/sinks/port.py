"""The port of sinks: what the protocol, the jobs and the operators ask of one, whatever its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import Connection, Table

from ratchet.ledger.work import OffsetRange, SinkVote, SliceToken
from ratchet.spec.columns import Column
from ratchet.spec.parts import DeclaredSink

if TYPE_CHECKING:
    import pyarrow as pa

Tagged = list[tuple[int, int, SinkVote]]
"""(slice, try, vote) of every slice, for one sink."""
Applied = dict[str, object]
"""What a commit notes of one sink: `rows`, the staged rows, and `fingerprint` where deltas have their own table."""


@dataclass(frozen=True)
class Delta:
    """What one transaction's commit is about to apply: where it is staged is said sink by sink."""

    pipeline: str
    topic: str
    topic_id: str
    txid: int
    replaces: bool
    """Whether an older revision's delta is to give way to this one."""


@dataclass(frozen=True)
class Voted:
    """What was committed of one transaction for one sink: the sum of its votes, and what the commit noted."""

    txid: int
    rows: int
    checksum: int
    applied: Mapping[str, object] | None


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what, how much of it, and what is wrong, one line a fault."""

    what: str
    checked: int
    faults: tuple[str, ...]


class Sink(DeclaredSink, ABC, frozen=True):
    """A sink of a pipeline; the dead letters are one.

    All methods that take a connection work in the caller's database transaction and never end it. Their errors are
    StageMismatch where the stage does not hold what was voted, and Refused where the data breaks a rule of the sink.
    """

    has_positions: ClassVar[bool] = True
    """Whether each staged row names the record that it comes from."""

    # declares

    @property
    @abstractmethod
    def staged(self) -> tuple[Column, ...]:
        """The columns that a job stages, in order, without the tags in front."""

    @property
    @abstractmethod
    def tables(self) -> tuple[Table, ...]:
        """What `migrate` makes: first the one that readers see, then what is beside it."""

    @property
    @abstractmethod
    def rights(self) -> tuple[tuple[str, ...], ...]:
        """What the pipelines' role may do with each of `tables`."""

    @property
    def key_names(self) -> list[str]:
        """The columns that make a row one of its kind; none where every row is kept."""
        return []

    @property
    def kept(self) -> tuple[Column, ...]:
        """The columns of a transaction's delta as it is kept, one row a key where the sink has keys."""
        return self.staged

    @property
    def unique(self) -> tuple[tuple[str, ...], ...]:
        """For each of `tables` the columns that tell its rows apart; empty where nothing does."""
        return tuple(() for _ in self.tables)

    @property
    def shown(self) -> str:
        """The table's name as people write it, without `public`."""
        return ".".join(self.table).removeprefix("public.")

    @property
    @abstractmethod
    def described(self) -> str:
        """What the sink keeps, in Markdown, for the page of the DAG."""

    # combines

    @abstractmethod
    def combine(self, rows: pa.Table) -> pa.Table:
        """The staged columns of some rows of one slice, which have the needed columns and their positions.

        A sink with keys makes one row of those of one key. TransformError where a value cannot be kept.
        """

    # checks

    @abstractmethod
    def fault(
        self, conn: Connection, relation: str, token: SliceToken, vote: SinkVote, ranges: Iterable[OffsetRange]
    ) -> str | None:
        """What is wrong with what a slice staged, in a line; None when it is as the vote says."""

    # folds

    @abstractmethod
    def fold(self, conn: Connection, of: Delta, relation: str, votes: Tagged) -> Applied:
        """Make what the votes name of one stage part of the sink's visible state."""

    # verifies

    @abstractmethod
    def txids(self, conn: Connection, pipeline: str) -> Sequence[int]:
        """Every txid that rows of the sink carry."""

    @abstractmethod
    def verify(self, conn: Connection, pipeline: str, voted: Sequence[Voted], compacted: int) -> list[Check]:
        """Hold what the sink keeps against what was committed; up to `compacted` single deltas are gone."""

    def contents(self, conn: Connection, of: Voted) -> tuple[int, int]:
        """(rows, checksum) of one transaction's delta as it is kept."""
        return of.rows, of.checksum

    # compacts

    @property
    def is_compacted(self) -> bool:
        """Whether old deltas are merged."""
        return False

    def merge(self, conn: Connection, after: int, until: int) -> int:
        """Merge the deltas up to `until`, where `after` is up to where that was done; how many rows went."""
        return 0
