"""The ledger and the log of lines whose rows go elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from ratchet.ledger.connection import Ledger
from ratchet.operate.migrate import migrate
from tests.s3proxy import IS_THERE, Bucket, S3Proxy

from ..staging import Log
from .elsewhere import SENT
from .icebergs import IcebergOf, on_postgresql
from .lakes import LakeOf, Where
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


@pytest.fixture(scope="session")
def object_store(scratch: Path) -> Iterator[S3Proxy]:
    if not IS_THERE:
        pytest.skip("no object store is here: make .jars/store/.installed")
    with S3Proxy(scratch / "store") as running:
        yield running


@pytest.fixture
def bucket(object_store: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty one, of which the environment knows nothing."""
    for name in os.environ:
        if name.upper().startswith("AWS_"):
            monkeypatch.delenv(name)
    return object_store.bucket()


@pytest.fixture(params=["directory", pytest.param("store", marks=pytest.mark.all)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    """Where a table may be."""
    if request.param == "directory":
        return Where(str(tmp_path / "lake" / "rows"))
    return Where.within(request.getfixturevalue("bucket"))


@pytest.fixture
def lake(bare: Ledger, log: Log, where: Where) -> LakeOf:
    """One whose line has a column and goes to a lake."""
    return made(bare, where, log)


@pytest.fixture
def on_disk(bare: Ledger, log: Log, tmp_path: Path) -> LakeOf:
    """One that goes to a directory."""
    return made(bare, Where(str(tmp_path / "lake" / "rows")), log)


@pytest.fixture
def in_store(bare: Ledger, log: Log, bucket: Bucket) -> LakeOf:
    """One that goes to an object store."""
    return made(bare, Where.within(bucket), log)


def made(ledger: Ledger, where: Where, log: Log) -> LakeOf:
    of = LakeOf(ledger, where, log)
    migrate(ledger.url, [of.spec])
    return of


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
