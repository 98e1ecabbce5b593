"""The port of sinks: what the protocol, the jobs and the operators ask of one, whatever its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Connection, FromClause, Select, Table

from ratchet.ledger.schema import DELTA_SCHEMA
from ratchet.ledger.topics import Topics
from ratchet.ledger.work import OffsetRange, Relation
from ratchet.sinks.types import SENT, SOURCE, TXID, WRITER
from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.parts import DeclaredSink

if TYPE_CHECKING:
    import pyarrow as pa

Applied = dict[str, object]
"""What a commit notes of one sink: `rows`, `columns` as they were then, and `fingerprint` where there is a fold.

And `renames`, how often columns had been renamed before, where any were.
"""


@dataclass(frozen=True)
class Rows:
    """The rows of one transaction that some writers have written for one sink, and the table that has them."""

    relation: Relation
    txid: int
    writers: tuple[int, ...]
    count: int
    """How many the votes say that there are."""


@dataclass(frozen=True)
class Voted:
    """What was committed of one transaction for one sink: the sum of its votes, and what the commit noted."""

    txid: int
    rows: int
    checksum: int
    applied: Mapping[str, object] | None
    names: Callable[[str], str] = str
    """What a column that was written is called today."""

    @property
    def columns(self) -> tuple[Column, ...] | None:
        """The declared columns that its rows were written with, by today's names; None where nothing was noted."""
        said = (self.applied or {}).get("columns")
        if not isinstance(said, list):
            return None
        return tuple(replace(c, name=self.names(c.name)) for c in parse_columns(", ".join(map(str, said))))


@dataclass(frozen=True)
class Release:
    """Which dead letters a release takes, and what it adds to.

    They are those of its transaction whose errors contain the text `errors`; its votes say that there are `letters`.
    `before` is what was committed of the transaction for the sink, None where that is nothing.
    """

    errors: str
    letters: int
    before: Voted | None


@dataclass(frozen=True)
class Delta:
    """What one transaction contributes to one sink, as its commit folds it; `rows` says where that stands."""

    pipeline: str
    topics: Topics
    txid: int
    rows: Rows
    replaces: bool
    """Whether an older revision's delta is to give way to this one, or where this is a release, to be added to."""
    since: int = 1
    """Among the transactions from this one on, and before `until`, each Kafka key has one partition."""
    until: int | None = None
    """The first one of those whose keys have gone to other partitions; None where there is none yet."""
    private: bool = False
    """Whether errors must not show keys."""
    renames: int = 0
    """How often columns of the sink's table have been renamed."""
    release: Release | None = None
    """Where the rows are added to the older ones, and take the place of dead letters alone."""
    awaited_as: int | None = None
    """The number of the revision, where destinations have to hear which keys it takes rows away from."""


@dataclass(frozen=True)
class Touched:
    """The keys of rows that a revision has exchanged, and what they fold to up to a head: two temporary tables."""

    keys: Table
    folded: Table
    head: int


@dataclass(frozen=True)
class Taken:
    """The dead letters that a release has taken away: how many, and the sum of their hashes."""

    rows: int
    checksum: int


@dataclass(frozen=True)
class Stretch:
    """The transactions of a pipeline from `first` to `last`, whose rows readers see.

    Up to `compacted` single deltas are merged into a base. `say` is told how far a check has come, in a line.
    """

    pipeline: str
    first: int
    last: int
    compacted: int
    say: Callable[[str], None]


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what, how much of it, and what is wrong, one line a fault."""

    what: str
    checked: int
    faults: tuple[str, ...]


class Sink(DeclaredSink, ABC, frozen=True):
    """A sink of a pipeline; the dead letters are one.

    Spark's tasks write the rows of a transaction once, into the delta table; what readers see is decided by the head.
    All methods that take a connection work in the caller's database transaction and never end it. Their errors are
    StageMismatch where rows are not what was voted, and Refused where the data breaks a rule of the sink.
    """

    kind: str
    """What tells its declaration from those of other sinks."""
    has_positions: ClassVar[bool] = True
    """Whether each written row names the record that it comes from."""
    is_view: ClassVar[bool] = False
    """Whether readers see a view over the delta table, and not a table of their own."""

    # declares

    @property
    def working(self) -> Sink:
        """The sink that does the work: this one, or another kind that the declaration asks for."""
        return self

    @property
    @abstractmethod
    def written(self) -> tuple[Column, ...]:
        """The columns that a job writes, in order, without those that the writer adds."""

    @property
    def added(self) -> tuple[Column, ...]:
        """The columns that the writer adds to each row."""
        return (TXID, WRITER, SOURCE) if self.has_positions else (TXID, WRITER)

    @property
    def stored(self) -> tuple[Column, ...]:
        """The columns of the delta table: hidden ones in front, so that columns that come later follow them."""
        hidden = [c for c in self.written if c.name.startswith("_")]
        return (*self.added, *hidden, *self.declared)

    @property
    def declared(self) -> tuple[Column, ...]:
        """The written columns that are not hidden."""
        return tuple(c for c in self.written if not c.name.startswith("_"))

    def stored_as(self, new: str, old: str) -> dict[str, str]:
        """{column of the tables: what it was called}, of a declared column that was called otherwise."""
        return {new: old}

    @property
    def renamed_indexes(self) -> dict[str, str]:
        """{index of the delta table: what it was called}, where its name comes from columns that are renamed."""
        return {}

    def noted(self, of: Delta) -> Applied:
        """What a commit notes of a delta."""
        renames = {"renames": of.renames} if of.renames else {}
        return {"rows": of.rows.count, "columns": list(map(str, self.declared)), **renames}

    @property
    def home(self) -> Relation:
        """Its delta table, where the rows of transactions are written that are no revisions."""
        return DELTA_SCHEMA, ".".join(self.table)

    @property
    def stages(self) -> bool:
        """Whether rows of all transactions, and not only of revisions, are staged and copied by their commit."""
        return False

    @property
    @abstractmethod
    def target(self) -> Table:
        """What readers see."""

    @property
    @abstractmethod
    def tables(self) -> tuple[Table, ...]:
        """The tables that `migrate` makes."""

    @property
    def brings_table(self) -> bool:
        """Whether the table is a user's own: it has to be there, and is checked and never altered."""
        return False

    @property
    def meaning(self) -> dict[str, object]:
        """What its deltas mean, as it is stored beside its table: another meaning would make other state of them.

        And what readers see of it, by which those who have no spec know whose the table is.
        """
        shows = "view" if self.is_view else "own" if self.brings_table else "table"
        return {"kind": self.kind, "shows": shows}

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The columns that make a row one of its kind; none where every row is kept."""
        return ()

    @property
    def key_names(self) -> list[str]:
        """Their names."""
        return [c.name for c in self.key_columns]

    @property
    def sent(self) -> tuple[Column, ...]:
        """The hidden columns that its rows have in destinations."""
        return SENT

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
        """The written columns of some rows of one slice, which have the needed columns and their positions.

        A sink with keys makes one row of those of one key. TransformError where a value cannot be kept.
        """

    # checks

    def fault(self, conn: Connection, rows: Rows, ranges: Iterable[OffsetRange]) -> str | None:
        """What is wrong with rows that writers' spans do not vouch for, in a line; None where that cannot be known."""
        return None

    # folds

    @abstractmethod
    def fold(self, conn: Connection, of: Delta) -> Applied:
        """Make the delta part of what readers see, together with the head that the caller moves."""

    def cannot_add_to(self, before: Voted) -> str | None:
        """Why a release cannot add rows to what was committed of its transaction, in a line; None where it can."""
        return None

    @abstractmethod
    def replace(self, conn: Connection, of: Delta, head: int) -> Touched | Taken | None:
        """Put a revision's rows in place of the older ones in the delta table; the caller holds the lock on rows.

        Those of a release are added, and only the dead letters that it takes give way. Where there are keys, returns
        those that are touched, folded up to this head: what is much to read is read here, while others commit.
        """

    @abstractmethod
    def refold(self, conn: Connection, of: Delta, left: Touched | Taken | None, head: int) -> Applied:
        """Make what `replace` has put there part of what readers see; the caller holds the commit lock.

        `left` is what `replace` has returned; the head may be further by now.
        """

    # verifies

    @abstractmethod
    def txids(self, pipeline: str, since: int, head: int) -> Select[tuple[int]]:
        """SELECT, as `_txid`, every txid from `since` to the head that rows of the sink carry."""

    @abstractmethod
    def verify(self, conn: Connection, of: Stretch, voted: Iterable[Voted]) -> Check:
        """Hold what the sink keeps of a stretch of transactions against what was committed, in the order of txids.

        In memory are some bytes for each transaction of the stretch, and no rows.
        """

    def verify_state(self, conn: Connection, since: int, head: int) -> Check | None:
        """Hold the state against what the deltas fold to, of the keys that a transaction from `since` on has touched;
        None where there is no state.
        """
        return None

    def contents(self, conn: Connection, of: Voted) -> tuple[int, int]:
        """(rows, checksum) of one transaction's delta, one row a key where there are keys."""
        return of.rows, of.checksum

    # compares

    @property
    @abstractmethod
    def identity(self) -> tuple[str, ...]:
        """The columns that tell the rows of one transaction's delta apart."""

    @abstractmethod
    def rows_of(self, pipeline: str, txid: int) -> Select[Any]:
        """The rows that a committed transaction has in the delta table, or in a user's own."""

    @abstractmethod
    def one_each(self, rows: FromClause) -> Select[Any]:
        """The written columns of rows of one transaction, one row for each identity."""

    # traces

    def rows_at(self, pipeline: str, txid: int, partition: int, offset: int) -> Select[Any] | None:
        """The written columns of the rows that a record of a committed transaction has in the sink.

        None where rows do not name their records.
        """
        return None

    @abstractmethod
    def made_by(self, pipeline: str, key: Mapping[str, str], head: int) -> Select[*tuple[Any, ...]]:
        """SELECT `_txid`, `_partition` and `_offset` of what has made the rows in which columns have these values.

        The last two are null where rows do not name their records.
        """

    # expires

    @property
    def expires_after(self) -> timedelta | None:
        """How long its rows are kept after their commit; None where that is for ever."""
        return None

    def expire(self, conn: Connection, after: int, until: int) -> int:
        """Delete the rows of transactions behind `after` up to `until`; how many there were."""
        return 0

    # compacts

    @property
    def is_compacted(self) -> bool:
        """Whether old deltas are merged."""
        return False

    def merge(self, conn: Connection, after: int, until: int) -> int:
        """Merge the deltas up to `until`, where `after` is up to where that was done; how many rows went."""
        return 0
