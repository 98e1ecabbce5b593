"""The commands that look ahead: what the next transaction of a line would be, and what its records would become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ratchet.command import (
    JSON,
    NAME,
    TOPIC,
    kafka_properties,
    ledger_of_environment,
    moment_given,
    print_done,
    print_json,
    servers,
    variables,
)
from ratchet.ledger.work import counted
from ratchet.printing import print_parts
from ratchet.progress import progress

if TYPE_CHECKING:
    from ratchet.spark.preview import Preview


def plan(
    name: Annotated[str, NAME],
    interval_end: Annotated[
        str | None,
        typer.Option(help='With plan="interval": the end of the run\'s data interval, as 2024-05-01T10:00:00+00:00.'),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say what the next run would take, or why nothing, and how the tables differ from the spec; change nothing."""
    from ratchet.operate.upcoming import lines_of, upcoming
    from ratchet.source.kafka import Kafka
    from ratchet.spec.loading import load_pipeline

    spec, until = load_pipeline(name), moment_given(interval_end, "--interval-end")
    with ledger_of_environment(lock_seconds=5) as ledger, Kafka(kafka_properties()) as brokers:
        offsets = partial(brokers.offsets, spec.source)
        found = upcoming(ledger, spec, offsets, until)
    print_done(found, [*lines_of(found)], as_json)


def preview(
    name: Annotated[str, NAME],
    records: Annotated[int, typer.Option(help="So many offsets at most.", min=1, max=100_000)] = 10,
    topic: Annotated[str | None, TOPIC] = None,
    partition: Annotated[int | None, typer.Option(help="Of this partition, from --offset on.", min=0)] = None,
    offset: Annotated[int | None, typer.Option(help="The first one, in --partition.", min=0)] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show what the next records become: the rows of each sink, and dead letters with their reasons; write nothing."""
    from ratchet.ledger.transactions import read_line
    from ratchet.operate.excerpt import next_records, records_at
    from ratchet.protocol.beginning import times
    from ratchet.source.kafka import Kafka
    from ratchet.source.offsets import KnownLogs
    from ratchet.spark.engine import session_for
    from ratchet.spark.preview import preview as look
    from ratchet.spec.loading import load_pipeline

    if (partition is None) != (offset is None):
        raise typer.BadParameter("--partition and --offset go together")
    spec = load_pipeline(name)
    asked = servers(spec)
    with Kafka(asked.kafka) as brokers:
        if partition is not None and offset is not None:
            work = records_at(spec, brokers.offsets(spec.source), partition, offset, records, topic)
        else:
            with ledger_of_environment() as ledger:
                with ledger.snapshot() as conn:
                    line = read_line(conn, spec.name)
                known = KnownLogs(line.topics) if line else None
                offsets = brokers.offsets(spec.source, None, known, *times(spec))
                work = next_records(ledger, spec, offsets, records)
    url = variables().get("RATCHET_SPARK")
    with ExitStack() as stack:
        stack.enter_context(progress(f"{spec.name}: reading and transforming"))
        session = stack.enter_context(session_for(spec, url)) if url and work.ranges else None
        found = look(spec, work, asked, session)
    if as_json:
        print_json({**asdict(found), "sinks": {name: [*map(_plain, rows)] for name, rows in found.sinks.items()}})
    else:
        print_parts(_shown(found))


def _shown(found: Preview) -> Iterator[Text | Table]:
    """A table for each sink."""
    if not found.ranges:
        yield Text(f"{found.pipeline}: no records wait")
        return
    said = ", ".join(map(str, found.ranges))
    yield Text(f"{found.pipeline}: {counted(sum(map(len, found.ranges)), 'offset')}, {said}, by {found.engine}")
    for sink, rows in found.sinks.items():
        table = Table(title=Text(f"{sink}: {counted(len(rows), 'row')}"), title_justify="left")
        names = list(dict.fromkeys(column for row in rows for column in row))
        for column in names:
            table.add_column(Text(column), overflow="fold")
        for row in rows:
            table.add_row(*(_cell(row.get(column)) for column in names))
        yield table if rows else Text(f"{sink}: no rows")


def _cell(value: object) -> Text:
    """A value as a person reads it; what a terminal would obey is escaped."""
    if value is None:
        return Text("null", style="dim")
    said = str(_plain_value(value))
    return Text("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in said))


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {column: _plain_value(value) for column, value in row.items()}


def _plain_value(value: object) -> object:
    """Bytes as the text that they are, or in hexadecimal digits."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
