"""What the ledger and the sinks show of a pipeline to whoever looks."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.rows import namedtuple_row

from ratchet.ledger.connection import Ledger
from ratchet.operate.verify import verify
from ratchet.spec.pipeline import Pipeline


class Record(NamedTuple):
    """What a row of the Append sink says, and what a good record of the topic says."""

    offset: int
    k: str
    v: int


class Shown:
    """One pipeline, whose tables begin with its name."""

    def __init__(self, spec: Pipeline, ledger_url: str):
        self.name, self.spec, self._url = spec.name, spec, ledger_url
        self._connection: psycopg.Connection | None = None

    def look_no_more(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    @property
    def _ledger(self) -> psycopg.Connection:
        """A connection to the ledger, made anew when PostgreSQL was lost."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True, row_factory=namedtuple_row)
        return self._connection

    def head(self) -> int:
        row = self._ledger.execute("select txid as head from ratchet.heads where pipeline = %s", [self.name]).fetchone()
        return row.head if row else 0

    def transaction(self, run_id: str) -> Any:
        """The transaction that a run was bound to last, as the ledger has it now; None before it began."""
        return self._ledger.execute(
            "select t.*, t.lease_until < clock_timestamp() as lease_ran_out from ratchet.transactions t "
            "join ratchet.runs r using (pipeline, txid, revision) where r.dag_id = %s and r.run_id = %s "
            "order by r.clear_number desc limit 1",
            [self.name, run_id],
        ).fetchone()

    def unfinished(self) -> int:
        """How many transactions and revisions still have to be finished; one that is given up has not."""
        query = (
            "select count(*) as n from ratchet.transactions t where pipeline = %s "
            "and state not in ('COMMITTED', 'VOIDED') and (revision = 0 or halted_at is null) and not exists "
            "(select from ratchet.transactions n where (n.pipeline, n.txid) = (t.pipeline, t.txid) "
            "and n.revision > t.revision)"
        )
        return self._ledger.execute(query, [self.name]).fetchone().n

    def claimant(self, txid: int) -> str:
        """The run that holds or held the transaction's latest claim."""
        query = "select run_id from ratchet.transactions where pipeline = %s and txid = %s and revision = 0"
        return self._ledger.execute(query, [self.name, txid]).fetchone().run_id

    def rows_in(self, table: str) -> list[tuple]:
        """(k, v, partition, offset, txid) of each row of a table, sorted."""
        query = sql.SQL("select k, v, _partition, _offset, _txid from {}").format(sql.Identifier(*table.split(".")))
        return sorted(map(tuple, self._ledger.execute(query).fetchall()), key=lambda row: row[2:])

    def states_of(self, txid: int) -> list[str]:
        """The state of a transaction and of each of its revisions."""
        rows = self._ledger.execute(
            "select state from ratchet.transactions where pipeline = %s and txid = %s order by revision",
            [self.name, txid],
        )
        return [row.state for row in rows]

    def why(self, txid: int, move: str) -> list[str]:
        """Why the history says that a transaction or its revisions moved so."""
        rows = self._ledger.execute(
            "select detail->>'why' as why from ratchet.events where pipeline = %s and txid = %s and move = %s "
            "order by id",
            [self.name, txid, move],
        )
        return [row.why for row in rows]

    def written(self, txid: int) -> int:
        """How many rows of a transaction stand in the delta table of the Append sink, seen or not."""
        query = sql.SQL("select count(*) as n from {} where _txid = %s")
        delta = sql.Identifier("ratchet_delta", f"public.{self.name}_rows")
        return self._ledger.execute(query.format(delta), [txid]).fetchone().n

    def reached(self, state: str = "COMMITTED") -> int:
        """Up to which offset there are transactions in this state."""
        row = self._ledger.execute(
            "select max(until_offset) as until from ratchet.ranges join ratchet.transactions using (pipeline, txid) "
            "where pipeline = %s and state = %s and revision = 0",
            [self.name, state],
        ).fetchone()
        return row.until or 0

    def range(self, txid: int) -> tuple[int, int]:
        """(first offset, the one after the last) of a transaction."""
        row = self._ledger.execute(
            "select from_offset, until_offset from ratchet.ranges where pipeline = %s and txid = %s", [self.name, txid]
        ).fetchone()
        return row.from_offset, row.until_offset

    def tries(self, txid: int) -> dict[int, int]:
        """slice → tries taken in the transaction's present epoch."""
        rows = self._ledger.execute(
            "select slice, try_number from ratchet.slices join ratchet.transactions using (pipeline, txid, epoch) "
            "where pipeline = %s and txid = %s",
            [self.name, txid],
        )
        return {row.slice: row.try_number for row in rows}

    def slice_names(self, txid: int) -> dict[int, str]:
        """slice → its name, made here from the ranges in the ledger."""
        rows = self._ledger.execute(
            "select slice, ranges from ratchet.slices where pipeline = %s and txid = %s", [self.name, txid]
        )
        return {
            row.slice: ", ".join(f"{self.name}-{partition} [{first},{until})" for partition, first, until in row.ranges)
            for row in rows
        }

    def leftovers(self) -> list[str]:
        """The stages and writers that the ledger knows, and the staged tables that are there."""
        rows = self._ledger.execute(
            "select relation from ratchet.stages where pipeline = %(name)s "
            "union select tablename from pg_tables where schemaname = 'ratchet_stage' and tablename ~ %(stage)s "
            "union select format('writer %%s of %%s', writer, sink) from ratchet.writers where pipeline = %(name)s",
            {"name": self.name, "stage": f"^{self.name}(_[0-9]+){{3}}$"},
        )
        return [row.relation for row in rows]

    def voided(self) -> list[str]:
        """The transactions that are voided, each with who did it and why."""
        rows = self._ledger.execute(
            "select format('transaction %%s is voided by %%s: %%s', txid, who, detail->>'why') as said "
            "from ratchet.events where pipeline = %s and move = 'VOIDED' order by id",
            [self.name],
        )
        return [row.said for row in rows]

    def open_claims(self) -> list[str]:
        """The claims that nobody has ended, of transactions and revisions that are still to be finished."""
        claims = self._ledger.execute(
            "select format('of %%s, transaction %%s', run_id, txid) as said from ratchet.transactions "
            "where pipeline = %s and not claim_ended and state not in ('COMMITTED', 'VOIDED')",
            [self.name],
        )
        return [row.said for row in claims]

    def commits(self) -> list[int]:
        """The txids in the order in which history has them committed, without their revisions."""
        rows = self._ledger.execute(
            "select txid from ratchet.events where pipeline = %s and move = 'COMMITTED' and revision = 0 order by id",
            [self.name],
        )
        return [row.txid for row in rows]

    def positions(self) -> Counter[tuple[int, int]]:
        """The multiset of (partition, offset) in the Append sink."""
        rows = self._ledger.execute(sql.SQL("select _partition, _offset from {}").format(self._table("rows")))
        return Counter((row[0], row[1]) for row in rows)

    def rows(self, txid: int | None = None) -> list[Record]:
        """The rows of the Append sink, of one transaction or of all, by offset."""
        query = sql.SQL("select _offset, k, v from {} where %(txid)s::bigint is null or _txid = %(txid)s order by 1")
        found = self._ledger.execute(query.format(self._table("rows")), {"txid": txid})
        return [Record(*row) for row in found]

    def placed(self) -> Counter[tuple[str, int, int, int]]:
        """The multiset of (topic, partition, offset, v) in the Append sink."""
        query = sql.SQL("select _topic, _partition, _offset, v from {}").format(self._table("rows"))
        return Counter(map(tuple, self._ledger.execute(query)))

    def sums(self) -> dict[str, int]:
        """The Accumulate sink: {k: the sum of v}."""
        rows = self._ledger.execute(sql.SQL("select k, v_sum from {}").format(self._table("sums")))
        return {row.k: int(row.v_sum) for row in rows}

    def dead_letters(self) -> Counter[tuple[int, int]]:
        """The multiset of (partition, offset) of the dead letters."""
        query = 'select partition, "offset" from ratchet.dead_letters where pipeline = %s'
        return Counter((row[0], row[1]) for row in self._ledger.execute(query, [self.name]))

    def expected(self) -> Counter[tuple[int, int]]:
        """The multiset of everything below the head that is not voided."""
        rows = self._ledger.execute(
            "select r.partition, r.from_offset, r.until_offset from ratchet.ranges r "
            "join ratchet.transactions t using (pipeline, txid) join ratchet.heads h using (pipeline) "
            "where pipeline = %s and r.txid <= h.txid and t.revision = 0 and t.state = 'COMMITTED'",
            [self.name],
        )
        return Counter((row[0], offset) for row in rows for offset in range(row[1], row[2]))

    def is_whole(self) -> None:
        """Every commit in txid order, every record below the head exactly once, and nothing that `verify` objects to.

        The sums are those of the rows, so what is right in one sink is right in both.
        """
        voided = self._ledger.execute(
            "select txid from ratchet.transactions where pipeline = %s and state = 'VOIDED'", [self.name]
        )
        gone = {row.txid for row in voided}
        commits, due = self.commits(), [txid for txid in range(1, self.head() + 1) if txid not in gone]
        assert commits == due, f"committed are {commits} instead of {due}"
        found, expected = self.positions() + self.dead_letters(), self.expected()
        assert found == expected, f"lost: {list(expected - found)[:9]}; too many: {list(found - expected)[:9]}"
        if len(self.spec.sinks) > 1:
            of_rows: Counter[str] = Counter()
            for row in self.rows():
                of_rows[row.k] += row.v
            sums = self.sums()
            assert sums == of_rows, f"the sums are {sums}, and those of the rows {dict(of_rows)}"
        with Ledger(self._url) as ledger:
            faults = [fault for check in verify(ledger, self.spec) for fault in check.faults]
        assert not faults, "; ".join(map(str, faults))

    def _table(self, which: str) -> sql.Identifier:
        return sql.Identifier(f"{self.name}_{which}")
