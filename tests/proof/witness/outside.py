"""What destinations have, each read by what others read it with, held against what the ledger's readers see."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from psycopg import sql
from pyiceberg.catalog import load_catalog

from ratchet import DeltaLake, Files, Iceberg, KafkaTopic, Table
from ratchet.sinks.port import Sink
from ratchet.spec.destination import DeclaredDestination
from tests.acceptance.line import committed

Row = tuple[object, ...]


@dataclass(frozen=True)
class Reach:
    """By what they are read: the ledger's URL, URLs of databases and properties of catalogs by connection, Kafka's."""

    ledger_url: str
    kafka: Mapping[str, str]
    databases: Mapping[str, str]
    catalogs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Unlike:
    """How many rows a destination has, and how it differs, a line for each row that is lacking or too often there."""

    rows: int
    said: list[str]


def unlike(sink: Sink, to: DeclaredDestination, by: Reach) -> Unlike:
    """What a destination has that readers do not see in the sink, and the other way round, whole rows as a multiset."""
    # Which topic a row is from is not said everywhere.
    columns = [c.name for c in (*sink.declared, *sink.sent) if c.name != "_source"]
    if isinstance(to, KafkaTopic) and sink.key_columns:
        # A record of keys has no position.
        columns = [c for c in columns if c not in ("_partition", "_offset")]
    here = Counter(_table(by.ledger_url, ".".join(sink.table), columns))
    there = Counter(_sent(to, columns, by))
    lacks = [f"{to.address} lacks {row}, {n} times" for row, n in (here - there).items()]
    too_many = [f"{to.address} has {row}, {n} times too often" for row, n in (there - here).items()]
    return Unlike(there.total(), lacks + too_many)


def _sent(to: DeclaredDestination, columns: list[str], by: Reach) -> Iterator[Row]:
    """Each row of a destination."""
    match to:
        case Table():
            yield from _table(by.databases[to.database], to.name, columns)
        case KafkaTopic():
            yield from _records(to, columns, by)
        case Files():
            yield from _rows(ds.dataset(f"{to.name}/data", partitioning="hive").to_table(), columns)
        case DeltaLake():
            yield from _rows(DeltaTable(to.name).to_pyarrow_table(), columns)
        case Iceberg():
            table = load_catalog(to.catalog, **by.catalogs[to.catalog]).load_table(to.name)
            found = table.scan().to_arrow()
            names = ["_partition" if name == "_source_partition" else name for name in found.column_names]
            yield from _rows(found.rename_columns(names), columns)


def _table(url: str, name: str, columns: list[str]) -> Iterator[Row]:
    query = sql.SQL("select {} from {}").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(*name.split("."))
    )
    with psycopg.connect(url) as conn:
        yield from conn.execute(query)


def _records(to: KafkaTopic, columns: list[str], by: Reach) -> Iterator[Row]:
    """Of records that have a position all; of those of a key the last one, as compaction leaves it."""
    last: dict[bytes | None, Row | None] = {}
    for record in committed(dict(by.kafka), to.name):
        said = json.loads(dict(record.headers)["ratchet"])
        row = json.loads(record.value) if record.value is not None else {}
        row |= {f"_{name}": number for name, number in said.items()}
        made = tuple(row.get(name) for name in columns)
        if "offset" in said:
            yield made
        else:
            last[record.key] = None if record.value is None else made
    yield from (row for row in last.values() if row is not None)


def _rows(table: pa.Table, columns: list[str]) -> Iterator[Row]:
    return (tuple(row.values()) for row in table.select(columns).to_pylist())
