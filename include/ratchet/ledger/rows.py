"""The ledger's rows as values: made here from what a query gives, then taken and returned by every function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Self

from sqlalchemy import Result, RowMapping

from ratchet.ledger.states import UNFINISHED, State
from ratchet.ledger.topics import Topics
from ratchet.ledger.work import Claim, name_of, turn_of


@dataclass(frozen=True)
class _Row:
    """Fields are columns, in their order; tests/unit/test_rows.py holds the two equal."""

    @classmethod
    def of(cls, row: RowMapping) -> Self:
        """The value of a row that a query of the whole table has given."""
        return cls(**cls._columns(row))

    @classmethod
    def one(cls, found: Result[*tuple[Any, ...]]) -> Self:
        """The only row that a query has given."""
        return cls.of(found.mappings().one())

    @classmethod
    def one_or_none(cls, found: Result[*tuple[Any, ...]]) -> Self | None:
        """The only row that a query has given, if any."""
        row = found.mappings().one_or_none()
        return None if row is None else cls.of(row)

    @classmethod
    def all(cls, found: Result[*tuple[Any, ...]]) -> list[Self]:
        """Every row that a query has given, in its order."""
        return [cls.of(row) for row in found.mappings()]

    @classmethod
    def _columns(cls, row: RowMapping) -> dict[str, Any]:
        return {field.name: row[field.name] for field in fields(cls)}


@dataclass(frozen=True)
class Pause:
    """A person's decision that nothing beyond `txid` is begun or committed, until it is lifted."""

    txid: int
    who: str
    reason: str
    at: datetime


@dataclass(frozen=True)
class Line(_Row):
    """A pipeline's line of transactions: how long it is, and how far each kind of work on it has come."""

    pipeline: str
    topics: Topics
    source: int
    last_txid: int
    compacted: int
    merged: int
    pruned: int
    created_at: datetime
    maintained_at: datetime | None
    due: Mapping[str, int] | None
    """Up to where a schedule or a person has asked for records; of a partition that is not here, for none."""
    step: int
    paused_behind: int | None
    paused_by: str | None
    paused_why: str | None
    paused_at: datetime | None
    head: int
    """Of the pipeline's row in `heads`; the other fields are those of its row in `pipelines`."""

    @classmethod
    def _columns(cls, row: RowMapping) -> dict[str, Any]:
        return {**super()._columns(row), "topics": Topics.read(row["topics"])}

    @property
    def turn(self) -> int:
        """The txid whose turn it is; it may not be allocated yet."""
        return turn_of(self.head)

    @property
    def in_flight(self) -> int:
        """How many transactions are neither committed nor voided, or wait behind one that is not."""
        return self.last_txid - self.head

    @property
    def pause(self) -> Pause | None:
        """Behind which transaction the line is paused, and by whom; None if it is not."""
        if self.paused_behind is None:
            return None
        assert self.paused_by is not None and self.paused_why is not None and self.paused_at is not None, "it is whole"
        return Pause(self.paused_behind, self.paused_by, self.paused_why, self.paused_at)

    def is_paused_before(self, txid: int) -> bool:
        """Whether this transaction is beyond the pause: it is not begun, not adopted, and does not have its turn."""
        return self.paused_behind is not None and self.paused_behind < txid

    def has_room(self, max_in_flight: int) -> bool:
        """Whether one more transaction may be begun, where so many may be unfinished."""
        return self.in_flight < max_in_flight and not self.is_paused_before(self.last_txid + 1)


@dataclass(frozen=True)
class Transaction(_Row):
    """A transaction, or a revision of one: where it stands, which run holds it, and what became of it."""

    pipeline: str
    txid: int
    revision: int
    epoch: int
    state: State
    claim: int
    claim_ended: bool
    dag_id: str
    run_id: str
    clear_number: int
    lease_until: datetime
    deadline: datetime | None
    code_hash: str
    asked_code: str | None
    releases: str | None
    """Of a release: the text that the errors of the dead letters contain which it takes; empty where it takes all."""
    records: int | None
    verdict: Mapping[str, Mapping[str, object]] | None
    """{gate: its numbers}."""
    applied: Mapping[str, Mapping[str, object]] | None
    """{sink: {rows, fingerprint}}."""
    failures: int
    halted_at: datetime | None
    txn_time: datetime
    opened_at: datetime
    prepared_at: datetime | None
    committed_at: datetime | None
    reason: str | None
    tombstones_since: datetime | None
    tombstones_kept: timedelta | None
    """Of a compacted topic, whose records have to be read within that time from then on; None of a revision."""

    @classmethod
    def _columns(cls, row: RowMapping) -> dict[str, Any]:
        return {**super()._columns(row), "state": State(row["state"])}

    def __str__(self) -> str:
        return name_of(self.txid, self.revision)

    @property
    def token(self) -> Claim:
        """The latest claim, as its run carries it."""
        return Claim(self.pipeline, self.txid, self.epoch, self.claim, self.revision)

    @property
    def is_unfinished(self) -> bool:
        """Whether runs go on with it."""
        return self.state in UNFINISHED


@dataclass(frozen=True)
class Binding(_Row):
    """Which transaction a run works on, at one clear number; it stays for ever."""

    dag_id: str
    run_id: str
    clear_number: int
    pipeline: str
    txid: int
    revision: int
    epoch: int
    claim: int
    began_at: datetime
    ended_at: datetime | None
    outcome: str | None

    @property
    def token(self) -> Claim:
        """The claim that the run took, which may not be the latest one."""
        return Claim(self.pipeline, self.txid, self.epoch, self.claim, self.revision)


@dataclass(frozen=True)
class Replay(_Row):
    """A revision that is asked for and not begun: of which transaction, by whom and with which code, and why."""

    pipeline: str
    txid: int
    id: int
    who: str
    reason: str
    code_hash: str
    releases: str | None
    """Of a release, as in `Transaction`."""
    given_up: str | None
    at: datetime


@dataclass(frozen=True)
class StepRow(_Row):
    """A commit that destinations get, in the order of its number; the random token tells it from any other step."""

    pipeline: str
    step: int
    token: int
    txid: int
    revision: int
    at: datetime


@dataclass(frozen=True)
class DestinationRow(_Row):
    """What the ledger knows of a destination: up to which step it has what was decided, or that it is detached."""

    pipeline: str
    destination: str
    sink: str
    can_revise: bool
    step: int
    token: int
    started: bool
    since: int
    """Transactions beyond this one have come to it by their own steps, so that it has all their rows."""
    reached_at: datetime
    detached_at: datetime | None
    detached_by: str | None
    detached_why: str | None

    @property
    def is_attached(self) -> bool:
        """Whether it gets what is decided, and nothing more is decided while it lacks a step."""
        return self.detached_at is None


@dataclass(frozen=True)
class SliceRow(_Row):
    """A slice of an epoch: its part of the cut, its latest try, and its vote, once there is one."""

    pipeline: str
    txid: int
    epoch: int
    slice: int
    ranges: list[list[int]]
    """[[partition, from_offset, until_offset], …]."""
    try_number: int
    nonce: int
    tried_at: datetime | None
    voted_at: datetime | None
    records: int | None
    dead_letters: int | None
    sinks: Mapping[str, Mapping[str, Any]] | None
    """{sink: its part of the vote}, as it is stored."""
    reached: Mapping[str, int] | None
    seconds: Mapping[str, float] | None
    absent: list[tuple[str, str, list[str]]] | None
    """[[column, field, [like names]], …]."""
    cut: int | None
    application_id: str | None


@dataclass(frozen=True)
class WriterRow(_Row):
    """A writer: an attempt of a Spark task whose rows for one sink are there, of what is not committed."""

    writer: int
    pipeline: str
    txid: int
    revision: int
    epoch: int
    slice: int
    try_number: int
    nonce: int
    task_partition: int
    task_attempt: int
    sink: str
    schema: str
    relation: str
    rows: int
    spans: Mapping[str, list[int]] | None
    """{partition: [first, last offset]}; None where positions do not ascend."""


@dataclass(frozen=True)
class Prune(_Row):
    """Transactions whose rows are taken out of the ledger, from `first_txid` to `last_txid`, and how far that is."""

    id: int
    pipeline: str
    first_txid: int
    last_txid: int
    last_commit: str
    """The hash that the first commit after them names; it stands for all before it."""
    border: int
    """The event of that commit."""
    committed_before: datetime
    """The time of that commit: all of them were committed earlier."""
    reached: int
    rows: Mapping[str, int]
    """{table: how many rows are gone}."""
    who: str
    reason: str
    at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class Event(_Row):
    """One move, or another thing that happened to a transaction, as the history has it."""

    id: int
    pipeline: str
    txid: int
    revision: int
    seq: int
    at: datetime
    who: str
    move: str
    epoch: int
    detail: Mapping[str, Any]
    previous_hash: str
    hash: str
