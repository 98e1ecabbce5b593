"""Whether the tables of a spec's sinks are what it needs, without a change of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from ratchet.errors import NotMigrated
from ratchet.ledger import steps
from ratchet.sinks import catalog, fit, meaning, renames
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.port import Sink
from ratchet.spec.pipeline import Pipeline


def probe(conn: Connection, spec: Pipeline) -> None:
    """NotMigrated if the tables of the sinks are not what the spec needs, or may not be read; quick enough for every
    begin.
    """
    said = misfit(conn, spec)
    if said:
        raise NotMigrated(
            f"{said}; nothing was begun; `ratchet migrate` makes what is missing and says what else to do; where it "
            "was run for a newer spec than this one, deploy that"
        )
    for sink in sinks_of(spec):
        for table in (*sink.tables, *([sink.target] if sink.is_view else [])):
            try:
                conn.execute(_nothing(table))
            except ProgrammingError as error:
                said = str(error.orig).splitlines()[0]
                raise NotMigrated(
                    f"sink {sink.name!r}: {said}; nothing was begun; `ratchet migrate` gives roles their rights"
                ) from error


@lru_cache(maxsize=256)
def _nothing(table: sa.Table) -> sa.Select[Any]:
    """No row of a table, in all of its columns. Kept, since each begin asks it of each table."""
    return sa.select(*table.columns).limit(0)


def misfit(conn: Connection, spec: Pipeline) -> str | None:
    """What of the sinks' tables is not there, not the pipeline's, of another meaning, or of other types than the spec
    says, in a line; None where all fit.
    """
    own, sinks = meaning.of_pipeline(conn, spec), sinks_of(spec)
    for sink in [sink for sink in sinks if sink.destinations]:
        unknown = unknown_destinations(conn, spec.name, sink)
        if unknown:
            return f"sink {sink.name!r}: the ledger does not know its destination {unknown[0]}"
    for sink in sinks:
        due = renames.due(sink, own.get(sink.table))
        if due:
            return f"sink {sink.name!r}: {due}"
    other = meaning.other(conn, spec)
    if other:
        return other
    needed = {sink.name: (*sink.tables, *([sink.target] if sink.is_view else [])) for sink in sinks}
    held = catalog.columns_of(conn, [catalog.place(table) for tables in needed.values() for table in tables])
    for sink in sinks:
        for table in needed[sink.name]:
            found, name = held.get(catalog.place(table)), ".".join(catalog.place(table))
            if found is None:
                return f"sink {sink.name!r}: {name} does not exist"
            gone = [column.name for column in table.columns if column.name not in found]
            if gone:
                return f"sink {sink.name!r}: column {name}.{gone[0]} does not exist"
            # What a view shows is what the table behind it holds.
            said = fit.misfit(conn, sink, table, found) if table in sink.tables else None
            if said:
                return said
        if sink.tables and sink.table not in own:
            return f"sink {sink.name!r}: the ledger does not know its table as one of pipeline {spec.name!r}"
    return None


def unknown_destinations(conn: Connection, pipeline: str, sink: Sink) -> tuple[str, ...]:
    """The destinations of a sink that the ledger does not know; NotMigrated where it knows one as another sink's."""
    addresses = [destination.address for destination in sink.destinations]
    known = {of.destination: of.sink for of in steps.destinations_of(conn, pipeline)}
    for address in addresses:
        if known.get(address, sink.name) != sink.name:
            raise NotMigrated(
                f"sink {sink.name!r}: destination {address} has the rows of sink {known[address]!r}; give this one "
                "another destination"
            )
    return tuple(address for address in addresses if address not in known)
