"""The commands that look ahead: what the next transaction of a line would be, and what its records would become."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ratchet.command import JSON, NAME, kafka_properties, ledger_of_environment, moment_given, print_done


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
        offsets = partial(brokers.offsets, spec.source.name)
        found = upcoming(ledger, spec, offsets, until, lambda line: typer.echo(line, err=True))
    print_done(found, [*lines_of(found)], as_json)
