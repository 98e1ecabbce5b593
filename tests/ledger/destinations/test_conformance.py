"""Kinds of destinations, and one that is no part of ratchet, in the suite that holds them to the port."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from ratchet import Files

from .conformance import Case, Conformance
from .keyed_places import Place
from .sqlite_file import SqliteFile


@pytest.mark.all
class TestTable(Conformance):
    @pytest.fixture
    def case(self, elsewhere, tmp_path: Path) -> Case:
        place = Place.of("table", elsewhere, tmp_path)
        return Case(place.to, place.by, lambda names: place.rows(list(names)))


@pytest.mark.all
class TestDeltaLake(Conformance):
    @pytest.fixture
    def case(self, elsewhere, tmp_path: Path) -> Case:
        place = Place.of("delta", elsewhere, tmp_path)
        return Case(place.to, place.by, lambda names: place.rows(list(names)))


@pytest.mark.all
class TestIceberg(Conformance):
    @pytest.fixture
    def case(self, elsewhere, tmp_path: Path) -> Case:
        place = Place.of("iceberg", elsewhere, tmp_path)
        return Case(place.to, place.by, lambda names: place.rows(list(names)))


@pytest.mark.all
class TestFiles(Conformance):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        def rows(names) -> list[tuple]:
            found = ds.dataset(tmp_path / "files" / "data", format="parquet").to_table()
            return [tuple(row.values()) for row in found.select(names).to_pylist()]

        return Case(Files(str(tmp_path / "files")), "", rows, takes_keys=False)


class TestSqliteFile(Conformance):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        path = str(tmp_path / "sent.db")

        def rows(names) -> list[tuple]:
            with closing(sqlite3.connect(path)) as db:
                return db.execute(f"select {', '.join(names)} from sent").fetchall()  # noqa: S608

        return Case(SqliteFile(path), "", rows)
