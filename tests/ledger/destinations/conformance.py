"""What every destination keeps to, whatever its kind: a suite in which one registers by a Case.

`class TestTable(Conformance)` with a fixture `case` runs it; `ledger_url` is a ledger, in whose database rows stand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from ratchet.destinations.content import Change, Content, Puts
from ratchet.destinations.port import Destination, Mark, Owner, Reach, Registries
from ratchet.errors import DestinationRefused, DestinationUnreachable, StageMismatch
from ratchet.operate.migrate import migrate
from ratchet.sinks.types import TXID
from ratchet.spec.columns import parse_columns

FIELDS = parse_columns("a bigint, b string")
KEY = parse_columns("k string not null")
KEYED_FIELDS = (*KEY, *FIELDS)
START, FIRST, SECOND, THIRD = (Mark(step, 1000 + step) for step in range(4))
Rows = list[tuple[int, str | None]]
"""(a, b) of each row."""
_MADE = """
create table given (_txid bigint, _writer bigint, _source smallint, _partition int, _offset bigint, _n int, a bigint,
    b text);
create table state (k text primary key, a bigint, b text, _txid bigint not null);
create table touched (_txid bigint, _writer bigint, k text);
"""


@dataclass(frozen=True)
class Case:
    """A destination as a spec declares it, what it is opened by, and its rows by these names of columns."""

    to: Destination
    by: str
    rows: Callable[[Sequence[str]], list[tuple]]
    takes_keys: bool = True
    registries: Registries = field(default_factory=dict)

    def open(self, pipeline: str = "line", *, keyed: bool = False) -> Reach:
        owner = Owner(pipeline, "rows", FIELDS)
        if keyed:
            owner = Owner(pipeline, "latest", KEYED_FIELDS, added=(TXID,), key=KEY)
        return self.to.open(owner, self.by, self.registries)


class Source:
    """The rows of transactions, in a database of PostgreSQL."""

    def __init__(self, url: str):
        self._url = url
        with psycopg.connect(url) as conn:
            conn.execute(_MADE)

    def has(self, txid: int, rows: Rows) -> None:
        """Have a transaction have these rows alone."""
        with psycopg.connect(self._url) as conn:
            conn.execute("delete from given where _txid = %s", [txid])
            for offset, row in enumerate(rows):
                conn.execute("insert into given values (%s, 1, 1, 0, %s, 0, %s, %s)", [txid, offset, *row])

    def puts(self, txid: int, rows: dict[str, tuple[int, str] | None]) -> None:
        """Have a transaction touch these keys, whose rows are these now."""
        with psycopg.connect(self._url) as conn:
            for key, row in rows.items():
                conn.execute("insert into touched values (%s, 1, %s)", [txid, key])
                conn.execute("delete from state where k = %s", [key])
                if row is not None:
                    conn.execute("insert into state values (%s, %s, %s, %s)", [key, *row, txid])

    @contextmanager
    def change(self, txid: int, rows: int, *, replaces: bool = False) -> Iterator[Change]:
        with self._snapshot() as conn:
            yield Change(conn, ("public", "given"), txid, FIELDS, int(replaces), replaces, rows, (1,))

    @contextmanager
    def whole(self, until: int) -> Iterator[Content]:
        with self._snapshot() as conn:
            yield Content(conn, ("public", "given"), until, FIELDS)

    @contextmanager
    def keys(self, *txids: int) -> Iterator[Puts]:
        with self._snapshot() as conn:
            of = {"delta": ("public", "touched"), "txids": txids, "writers": (1,), "pipeline": "line", "steps": (0, 9)}
            yield Puts(conn, ("public", "state"), txids[-1], KEYED_FIELDS, **of, added=(TXID,), key=KEY)

    @contextmanager
    def _snapshot(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self._url) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            yield conn


class Conformance:
    """The suite; a subclass has a fixture `case`."""

    @pytest.fixture
    def source(self, ledger_url: str) -> Source:
        return Source(ledger_url)

    def are(self, case: Case, rows: Rows) -> bool:
        """Whether the rows there are these."""
        return sorted(case.rows(("a", "b")), key=repr) == sorted(rows, key=repr)

    def test_it_has_no_mark_until_it_is_started_and_keeps_its_first_one(self, case):
        with case.open() as outside:
            assert outside.look() is None and outside.mark() is None
            outside.start(START)
            assert outside.look() == outside.mark() == START
        with case.open() as outside:
            outside.start(THIRD)
            assert outside.mark() == START

    def test_rows_and_mark_come_together_and_only_behind_the_mark_that_is_named(self, case, source):
        source.has(1, [(1, "x"), (2, None)])
        source.has(2, [(3, "")])
        with case.open() as outside:
            outside.start(START)
            for wrong in (FIRST, Mark(0, 7), Mark(7, START.token)):
                with source.change(1, 2) as change:
                    assert outside.apply(wrong, SECOND, change) is False
            assert outside.mark() == START
            with source.change(1, 2) as change:
                assert outside.apply(START, FIRST, change) is True
            assert outside.mark() == FIRST and self.are(case, [(1, "x"), (2, None)])
            # Late, and once more.
            with source.change(1, 2) as change:
                assert outside.apply(START, FIRST, change) is False
        with case.open() as outside, source.change(2, 1) as change:
            assert outside.apply(FIRST, SECOND, change) is True
        with case.open() as outside:
            assert outside.look() == SECOND and self.are(case, [(1, "x"), (2, None), (3, "")])

    def test_a_step_without_rows_moves_the_mark(self, case, source):
        with case.open() as outside:
            outside.start(START)
            with source.change(1, 0) as change:
                assert outside.apply(START, FIRST, change) is True
            assert outside.mark() == FIRST

    def test_rows_that_cannot_be_read_to_their_end_leave_all_as_it_was(self, case, source):
        source.has(1, [(1, "x")])
        with case.open() as outside:
            outside.start(START)
            with source.change(1, 2) as change, pytest.raises(StageMismatch):
                outside.apply(START, FIRST, change)
        with case.open() as outside:
            assert outside.mark() == START
            with source.change(1, 1) as change:
                assert outside.apply(START, FIRST, change) is True
            assert self.are(case, [(1, "x")])

    def test_of_many_at_once_one_brings_the_rows(self, case, source):
        source.has(1, [(n, "x") for n in range(50)])
        with case.open() as outside:
            outside.start(START)
        gate, said = threading.Barrier(4), []

        def apply() -> None:
            with case.open() as outside, source.change(1, 50) as change:
                outside.mark()
                gate.wait()
                try:
                    said.append(outside.apply(START, FIRST, change))
                except DestinationUnreachable as error:
                    said.append(error)

        threads = [threading.Thread(target=apply) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        with case.open() as outside:
            assert outside.mark() == FIRST
        assert said.count(True) == 1 and len(said) == 4
        assert self.are(case, [(n, "x") for n in range(50)])

    def test_rows_of_a_revision_take_the_place_of_those_of_their_transaction(self, case, source):
        if not case.to.can_revise:
            pytest.skip("what it has cannot give way, which its kind says")
        source.has(1, [(1, "x"), (2, "y")])
        source.has(2, [(3, "z")])
        with case.open() as outside:
            outside.start(START)
            for txid, rows, at, to in ((1, 2, START, FIRST), (2, 1, FIRST, SECOND)):
                with source.change(txid, rows) as change:
                    assert outside.apply(at, to, change) is True
            source.has(1, [(5, "new")])
            with source.change(1, 1, replaces=True) as change:
                assert outside.apply(SECOND, THIRD, change) is True
            assert outside.mark() == THIRD and self.are(case, [(5, "new"), (3, "z")])

    def test_anew_it_has_what_is_shown_or_says_that_rows_cannot_give_way(self, case, source):
        source.has(1, [(1, "x")])
        source.has(2, [(2, "y")])
        with case.open() as outside:
            outside.start(START)
            with source.change(1, 1) as change:
                outside.apply(START, FIRST, change)
            source.has(1, [(7, "other")])
            if not case.to.can_revise:
                with source.whole(2) as content, pytest.raises(DestinationRefused):
                    outside.restart(FIRST, THIRD, content)
                assert outside.mark() == FIRST and self.are(case, [(1, "x")])
                return
            with source.whole(2) as content:
                assert outside.restart(SECOND, THIRD, content) is False
            assert outside.mark() == FIRST and self.are(case, [(1, "x")])
            with source.whole(2) as content:
                assert outside.restart(FIRST, THIRD, content) is True
            assert outside.mark() == THIRD and self.are(case, [(7, "other"), (2, "y")])

    def test_from_here_it_keeps_what_it_has(self, case, source):
        source.has(1, [(1, "x")])
        with case.open() as outside:
            outside.start(START)
            with source.change(1, 1) as change:
                outside.apply(START, FIRST, change)
            assert outside.restart(START, THIRD, None) is False and outside.mark() == FIRST
            assert outside.restart(FIRST, THIRD, None) is True and outside.mark() == THIRD
            assert self.are(case, [(1, "x")])

    def test_it_has_the_rows_of_keys_as_they_are_now(self, case, source, ledger_url):
        if not case.takes_keys:
            assert case.to.misfit(KEYED_FIELDS, KEY)
            return
        assert case.to.misfit(KEYED_FIELDS, KEY) is None
        # The ledger knows of keys that revisions have taken away.
        migrate(ledger_url, [])
        source.puts(1, {"x": (1, "one"), "y": (2, "two"), "z": (3, "three")})
        with case.open(keyed=True) as outside:
            outside.start(START)
            with source.keys(1) as puts:
                assert outside.apply(START, FIRST, puts) is True
            source.puts(2, {"x": (4, "four"), "y": None, "w": None})
            source.puts(3, {"x": (5, "five"), "v": (6, "six")})
            with source.keys(2, 3) as puts:
                assert outside.apply(START, THIRD, puts) is False
            assert outside.mark() == FIRST
            assert sorted(case.rows(("k", "a"))) == [("x", 1), ("y", 2), ("z", 3)]
            with source.keys(2, 3) as puts:
                assert outside.apply(FIRST, THIRD, puts) is True
            assert outside.mark() == THIRD
        assert sorted(case.rows(("k", "a"))) == [("v", 6), ("x", 5), ("z", 3)]
        with case.open(keyed=True) as outside, source.keys(9) as puts:
            # No key is touched, or none that has or had a row.
            assert outside.apply(THIRD, Mark(4, 4), puts) is True and outside.mark() == Mark(4, 4)
