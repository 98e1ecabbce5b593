"""Lines of sinks with keys, long ones: what was committed long ago is put there by SQL, as commits would have left it.

Of the ledger the old transactions have what a begin and a commit look at: their rows, their ranges and the head.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, cast

import psycopg
from psycopg import sql
from sqlalchemy import Connection, event, insert, select, text

from benchmarks.backlog import PARTITIONS
from benchmarks.staged import Line
from ratchet import Json, Topic
from ratchet.errors import StageMismatch
from ratchet.ledger.work import Claim, OffsetRange, Run, SliceWork
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.sinks.keyed import Keyed
from ratchet.sinks.lookup import sinks_of
from ratchet.spec.parts import DeclaredSink

FIRST = 1
"""The transaction that all old ones are copies of."""
WRITTEN: Mapping[str, str] = {
    "_txid": "t",
    "_writer": "{writer}",
    "_source": "1",
    "_partition": "k % {partitions}",
    "_offset": "(t - 1) * {each} + k / {partitions}",
    "_n": "0",
    "_deleted": "{gone}",
    "k": "nullif('k-' || k, 'k-0')",
    "z": "null::int",
    "a": "case when not {gone} then t % 1000 + {more} end",
    "at": "t",
    "a_sum": "t % 1000 + {more}",
    "a_min": "t % 1000 + {more}",
    "a_max": "t % 1000 + {more}",
    "n": "1",
}
"""What a column has, of transaction t and key k, of which the first is null.

A key's record is always the same one of its partition's.
"""


class KeyedLine(Line):
    """One pipeline with a sink of so many keys, each of which a transaction has once; some of them as deletions."""

    def __init__(self, ledger_url: str, name: str, sink: DeclaredSink, keys: int, deletes: bool = False):
        topic = Topic(name, key="k string", value=Json("z int, a bigint, at bigint"))
        super().__init__(ledger_url, name, topic, sink)
        self._url, self._keys, self._deletes = ledger_url, keys, deletes
        self.rows_read, self.rows_locked, self.locked = 0, 0, 0.0
        """Rows that the last commit has read of the sink's tables, how many of them under the commit lock, and the
        milliseconds for which it held that."""
        event.listen(self.ledger.engine, "begin", self._begins)
        event.listen(self.ledger.engine, "after_cursor_execute", self._ran)
        event.listen(self.ledger.engine, "commit", self._commits)

    @property
    def sink(self) -> Keyed:
        return cast(Keyed, sinks_of(self.spec)[0])

    def commit(self, run_id: str, clear_number: int = 0) -> float:
        """The milliseconds in which a transaction of all keys, or a revision of it, is committed."""
        claim = self.revise(run_id, clear_number) if clear_number else self.prepare(self._keys, run_id)
        return self._committed(claim, run_id, clear_number)

    def lengthen(self, until: int, keys: int, analyze: bool = True) -> None:
        """Old transactions up to a txid, each with so many of the keys, by turns."""
        with psycopg.connect(self._url) as conn:
            found = conn.execute("select txid from ratchet.heads where pipeline = %s", [self.spec.name]).fetchone()
            assert found is not None, "the first transaction is committed"
            (head,) = found
            if head >= until:
                return
            # The tables are only written by this line, and what triggers and foreign keys hold is held here.
            conn.execute("set local session_replication_role = replica")
            self._lengthen_ledger(conn, head, until)
            every = self._keys // keys
            numbers = sql.SQL(
                "generate_series({}::bigint, {}) t, generate_series(0, {}) j, "
                "lateral (select (j * {} + {} - t % {}) % {} as k, (t / {}) % 2 = 0 as gone) one"
            ).format(*map(sql.Literal, (head + 1, until, keys - 1, every, every, every, self._keys, every)))
            self._rows_into(conn, self.rows, numbers, "gone", writer=0)
        with self.ledger.begin() as conn:
            self._fold(conn, until)
        with psycopg.connect(self._url, autocommit=True) as conn:
            if analyze:
                conn.execute(sql.SQL("vacuum analyze {}").format(sql.Identifier(*self.rows)))
                conn.execute("vacuum analyze ratchet.transactions, ratchet.ranges")
            conn.execute("checkpoint")
        self.until = dict.fromkeys(self.until, until * self._each)

    def check(self) -> None:
        """StageMismatch unless the state is what the deltas fold to."""
        with self.ledger.begin() as conn:
            head = conn.execute(text("select txid from ratchet.heads where pipeline = :p"), {"p": self.spec.name})
            unlike = self.sink.unlike(conn, head.scalar_one())
        if unlike:
            raise StageMismatch(f"{self.spec.name}: {unlike:,} rows of the state are not what the deltas fold to")

    @property
    def _each(self) -> int:
        """The records of a transaction in each partition."""
        return self._keys // PARTITIONS

    def _committed(self, claim: Claim, run_id: str, clear_number: int) -> float:
        self.rows_read, self.rows_locked, self.locked = 0, 0, 0.0
        started = time.monotonic()
        done = commit(self.ledger, self.spec, claim)
        took = 1_000 * (time.monotonic() - started)
        assert isinstance(done, Committed), done
        found = self.rows_read, self.rows_locked, self.locked
        settle(self.ledger, self.spec, Run(self.spec.name, run_id, clear_number), succeeded=True)
        self.rows_read, self.rows_locked, self.locked = found
        return took

    def _insert(self, driver: psycopg.Connection, work: SliceWork, writer: int, of: OffsetRange) -> None:
        numbers = sql.SQL(
            "(select {}::bigint as t, (o % {}) * {} + {} as k from generate_series({}::bigint, {}) o) one"
        ).format(
            *map(sql.Literal, (work.token.txid, self._each, PARTITIONS, of.partition)),
            *map(sql.Literal, (of.from_offset, of.until_offset - 1)),
        )
        relation = work.relations[self.spec.sinks[0].name]
        self._rows_into(driver, relation, numbers, "((k / 4 + t) % 2 = 0)", writer, more=work.token.revision)

    def _rows_into(
        self,
        conn: psycopg.Connection,
        relation: tuple[str, str],
        numbers: sql.Composed,
        gone: str,
        writer: int,
        more: int = 0,
    ) -> None:
        named = {
            "gone": gone if self._deletes else "false",
            "writer": str(writer),
            "partitions": str(PARTITIONS),
            "each": str(self._each),
            "more": str(more),
        }
        names = [c.name for c in self.sink.stored]
        # The expressions are this module's own words.
        values = [sql.SQL(cast(Any, WRITTEN[name].format(**named))) for name in names]
        statement = sql.SQL("insert into {} ({}) select {} from {}").format(
            sql.Identifier(*relation),
            sql.SQL(", ").join(map(sql.Identifier, names)),
            sql.SQL(", ").join(values),
            numbers,
        )
        conn.execute(statement)

    def _lengthen_ledger(self, conn: psycopg.Connection, head: int, until: int) -> None:
        given = {"p": self.spec.name, "first": FIRST, "from": head + 1, "until": until, "each": self._each}
        conn.execute(
            "insert into ratchet.transactions select (jsonb_populate_record(of, jsonb_build_object("
            "'txid', t, 'run_id', 'old-' || t))).* from ratchet.transactions of, "
            "generate_series(%(from)s::bigint, %(until)s) t where of.pipeline = %(p)s and of.txid = %(first)s",
            given,
        )
        conn.execute(
            "insert into ratchet.ranges select of.pipeline, t, of.source, of.partition, (t - 1) * %(each)s, "
            "t * %(each)s from ratchet.ranges of, generate_series(%(from)s::bigint, %(until)s) t "
            "where of.pipeline = %(p)s and of.txid = %(first)s",
            given,
        )
        conn.execute("update ratchet.heads set txid = %(until)s where pipeline = %(p)s", given)
        conn.execute("update ratchet.pipelines set last_txid = %(until)s where pipeline = %(p)s", given)

    def _fold(self, conn: Connection, head: int) -> None:
        """Make the state anew from all deltas."""
        sink = self.sink
        conn.execute(text("set local work_mem = '1GB'"))
        seen = select(sink.delta).where(sink.delta.c._txid <= head).subquery("seen")
        rows = sink.living(sink.reduced(seen, [c.name for c in sink.written]).subquery("reduced"))
        conn.execute(sink.target.delete())
        conn.execute(insert(sink.target).from_select([c.name for c in rows.selected_columns], rows))

    def _begins(self, conn: Connection) -> None:
        conn.info["read"], conn.info["since"] = self._read(conn), None

    def _ran(self, conn: Connection, _cursor: object, statement: str, *_: object) -> None:
        if "ratchet.pipelines" in statement and "FOR UPDATE" in statement:
            conn.info["since"], conn.info["read before"] = time.monotonic(), self._read(conn)

    def _commits(self, conn: Connection) -> None:
        read = self._read(conn)
        self.rows_read += read - conn.info["read"]
        if conn.info["since"] is not None:
            self.rows_locked += read - conn.info["read before"]
            self.locked += 1_000 * (time.monotonic() - conn.info["since"])

    def _read(self, conn: Connection) -> int:
        """Rows that this database session has read of the sink's tables, as far as PostgreSQL has not counted them."""
        asked = (
            "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables "
            "where (schemaname, relname) in ((%(ds)s, %(dn)s), (%(ts)s, %(tn)s))"
        )
        (ds, dn), (ts, tn) = self.rows, self.sink.table
        driver = conn.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        found = driver.execute(asked, {"ds": ds, "dn": dn, "ts": ts, "tn": tn}).fetchone()
        assert found is not None
        return found[0]
