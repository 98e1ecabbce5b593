"""The ledger and the log of lines whose rows go elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate

from ..staging import Log
from .elsewhere import SENT
from .icebergs import IcebergOf, on_postgresql
from .lakes import LakeOf
from .rest_catalog import RestCatalog


@pytest.fixture
def log() -> Log:
    return Log(stable={0: 200, 1: 200})


@pytest.fixture
def migrated():
    """Nothing: a ledger knows its destinations by random numbers, which a copy would share."""
    return (), ""


@pytest.fixture
def bare(ledger_url: str) -> Iterator[Ledger]:
    """A ledger that has no pipeline yet."""
    with Ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def ledger(bare: Ledger) -> Ledger:
    """One with the tables of SENT."""
    migrate(bare.url, [SENT])
    return bare


@pytest.fixture
def lake(bare: Ledger, log: Log, tmp_path: Path) -> LakeOf:
    """One whose line has a column and goes to a lake."""
    made = LakeOf(bare, tmp_path / "lake" / "rows", log)
    migrate(bare.url, [made.spec])
    return made


@pytest.fixture(scope="session")
def rest_catalog(postgres, scratch: Path) -> Iterator[RestCatalog]:
    with psycopg.connect(postgres.ledger_url, autocommit=True) as conn:
        conn.execute("create database rest_catalog")
    with RestCatalog(scratch / "rest", postgres.database_url("rest_catalog")) as catalog:
        yield catalog


@pytest.fixture
def in_postgresql(bare: Ledger, log: Log, elsewhere, tmp_path: Path) -> IcebergOf:
    """A line that has a column and goes to an Iceberg table, by a catalog in a database of its own."""
    return known(IcebergOf(bare, on_postgresql(elsewhere.url, tmp_path / "warehouse"), log))


@pytest.fixture(params=["in_postgresql", pytest.param("rest", marks=pytest.mark.all)])
def iceberg(request, bare: Ledger, log: Log) -> IcebergOf:
    """The same, by a catalog of each kind."""
    if request.param == "in_postgresql":
        return request.getfixturevalue("in_postgresql")
    properties = request.getfixturevalue("rest_catalog").properties
    return known(IcebergOf(bare, properties, log, name=f"sales_{uuid4().hex}.orders"))


def known(made: IcebergOf) -> IcebergOf:
    """One that the ledger knows."""
    migrate(made.ledger.url, [made.spec])
    return made
