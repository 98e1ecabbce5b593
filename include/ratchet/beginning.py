"""The command that begins a pipeline: it writes a spec, and a transform where one is wanted."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.command import REGISTRY, endpoint, kafka_properties, ledger_url
from ratchet.errors import RatchetError, SettingsError, SpecError
from ratchet.ledger.work import counted
from ratchet.printing import print_lines

if TYPE_CHECKING:
    from ratchet.spec.pipeline import Pipeline


def init(
    name: Annotated[str | None, typer.Argument(help="The new pipeline.", show_default=False)] = None,
    topic: Annotated[str | None, typer.Option(help="The topic that it reads.", show_default="its name")] = None,
    columns: Annotated[
        str | None, typer.Option(help="As 'id bigint, at timestamp'.", show_default="those of the first records")
    ] = None,
    sink: Annotated[str | None, typer.Option(help="append, upsert or accumulate.", show_default="append")] = None,
    key: Annotated[str | None, typer.Option(help="Of an upsert or accumulate, as 'id bigint'.")] = None,
    order: Annotated[
        str | None, typer.Option(help="Of an upsert: the column by which a key's last row is told.")
    ] = None,
    total: Annotated[str | None, typer.Option("--sum", help="Of an accumulate, as 'amount decimal(12,2)'.")] = None,
    transform: Annotated[bool, typer.Option("--transform", help="Write a transform too.")] = False,
    registry: Annotated[
        str | None, typer.Option(help="The connection of a registry of schemas, whose newest schema has the columns.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(help="The subject of the values' schemas.", show_default="TOPIC-value")
    ] = None,
    message: Annotated[
        str | None, typer.Option(help="The message type, as orders.v1.Order.", show_default="the first of the schema")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; take what is suggested.")] = False,
) -> None:
    """Write the spec of a new pipeline, and check it; ask what is not given. Nothing is overwritten.

    It goes into the package of pipelines, `include/pipelines` of the checkout where RATCHET_PIPELINES names no other,
    whatever the working directory.
    """
    from ratchet.operate.draft import SINKS, Draft, write

    def ask(question: str, given: str | None, suggestion: str | None) -> str:
        if given is None and yes and suggestion is None:
            raise SettingsError(f"{question}: give it as an option, or leave --yes out")
        return given or (suggestion or "" if yes else typer.prompt(question, default=suggestion, err=True))

    name = ask("Name of the pipeline", name, None)
    topic = ask("Topic", topic, name)
    if registry is None and (subject or message):
        raise SettingsError("--subject and --message are of a registry; name its connection by --registry")
    offered = _Offered() if registry is None else _registered(registry, subject or f"{topic}-value", message, columns)
    suggested = offered.columns if registry or columns else _columns_of(topic)
    columns = ask("Columns", columns, suggested)
    sink = ask(f"Sink ({', '.join(SINKS)})", sink, SINKS[0])
    if sink not in SINKS:
        raise SettingsError(f"--sink {sink} is none of {', '.join(SINKS)}")
    if sink != "append":
        key = ask("Key, as 'id bigint'", key, None)
    if sink == "upsert":
        order = ask("Column that tells the last row of a key", order, None)
    draft = Draft(
        name, topic, columns, sink, key, total, order, transform, offered.format, offered.given, offered.notes
    )
    spec = draft.check()
    files = {_folder(os.environ.get("RATCHET_PIPELINES", "pipelines")) / f"{name}.py": draft.spec()}
    if transform:
        files[_folder("jobs") / f"{name}.py"] = draft.transform()
    write(files)
    for path in files:
        typer.echo(f"wrote {path}")
    after = "; ".join(f"{_called()} {each}" for each in ("validate", f"migrate {name}", f"preview {name}"))
    print_lines([_topic(topic), *_tables(spec), f"next: {after}"])


@dataclass(frozen=True)
class _Offered:
    """What a registry has said for a new spec."""

    columns: str | None = None
    format: str = "Json"
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: tuple[str, ...] = ()


def _registered(connection: str, subject: str, message: str | None, columns: str | None) -> _Offered:
    """What the newest schema of a subject offers, where no columns are given; its format in any case."""
    from ratchet.formats.registry import Registry
    from ratchet.operate.columns import format_of, messages_of, offer_of

    newest = Registry(connection, endpoint(connection, "a new spec", REGISTRY)).version(subject)
    messages = messages_of(newest)
    if message is not None and message not in messages:
        raise SettingsError(f"--message {message}: {newest} has {', '.join(messages) or 'no message types'}")
    chosen = message or (messages[0] if len(messages) > 1 else None)
    given = {"registry": connection, **({"message": chosen} if chosen else {})}
    kind = format_of(newest)
    if columns:
        return _Offered(columns, kind, given)
    offer = offer_of(newest, message)
    columns = ", ".join(map(str, offer.columns))
    if not columns:
        raise SpecError(f"{newest} offers no columns; {'; '.join(map(str, offer.remarks)) or 'it has no fields'}")
    for remark in offer.remarks:
        typer.echo(str(remark), err=True)
    return _Offered(columns, kind, given, (f"columns: {newest}", *map(str, offer.remarks)))


def _folder(package: str) -> Path:
    return Path(next(iter(importlib.import_module(package).__path__)))


def _columns_of(topic: str) -> str | None:
    """What the first records of the topic suggest; None where it cannot be read."""
    from ratchet.ledger.work import OffsetRange
    from ratchet.operate.draft import LOOK, suggested
    from ratchet.source.columnar import ColumnarSource
    from ratchet.source.kafka import Kafka

    try:
        kafka = kafka_properties()
        with Kafka(kafka) as brokers:
            offsets = brokers.offsets(topic)
        ranges = [
            OffsetRange(topic, p, at, min(at + LOOK, offsets.stable[p])) for p, at in sorted(offsets.beginning.items())
        ]
        with ColumnarSource(kafka).read(ranges) as reading:
            return suggested(value for batch in reading for value in batch.column("_value").to_pylist())
    except RatchetError as error:
        typer.echo(f"no columns are suggested: {error}", err=True)
        return None


def _topic(topic: str) -> str:
    """What is there of the topic, in a line."""
    from ratchet.source.kafka import Kafka

    try:
        with Kafka(kafka_properties()) as brokers:
            offsets = brokers.offsets(topic)
    except RatchetError as error:
        return f"topic {topic} is not as it should be: {error}"
    return f"topic {topic} has {counted(len(offsets.stable), 'partition')}"


def _tables(spec: Pipeline) -> list[str]:
    """What a migration would do, a line for each sink."""
    from ratchet.operate.migrate import migrate

    try:
        done = migrate(ledger_url(), [spec], dry_run=True, tries=3)
    except RatchetError as error:
        return [f"its tables are not as they should be: {error}"]
    told = [str(each).removeprefix(f"{spec.name}: ") for each in done.sinks]
    return [f"ratchet migrate {spec.name} would do this:", *(f"  sink {each}" for each in told)]


def _called() -> str:
    """The command as it was called, `.venv/bin/ratchet`, if not by its name alone."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "ratchet" and not called.is_absolute() else "ratchet"
