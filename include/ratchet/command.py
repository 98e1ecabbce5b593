"""What the commands share: options, the servers that the environment names, and how answers are printed."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import cache
from textwrap import indent
from typing import TYPE_CHECKING

import typer

from ratchet.errors import RatchetError, SettingsError
from ratchet.printing import print_lines
from ratchet.values.plain import plain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ratchet.destinations.port import Destination, Owner, Reach
    from ratchet.ledger.connection import Ledger
    from ratchet.operate.outcome import Outcome
    from ratchet.protocol.follow import Open
    from ratchet.spark.servers import Servers
    from ratchet.spec.pipeline import Pipeline
    from ratchet.values.endpoint import Endpoint

JSON = typer.Option("--json", help="Print one JSON document instead of lines for people.")
REASON = typer.Option("--reason", help="Why; it is kept in the history.", show_default=False)
DRY_RUN = typer.Option("--dry-run", help="Say what would be done, and change nothing.")


def _pipelines(begun: str) -> list[str]:
    """The names of pipelines that begin so, for a shell; one whose spec is wrong is left out."""
    from ratchet.spec.loading import read_specs

    try:
        return [name for name in read_specs()[0] if name.startswith(begun)]
    except (ImportError, RatchetError):
        return []


NAME = typer.Argument(help="The pipeline.", show_default=False, autocompletion=_pipelines)
NAMES = typer.Argument(help="The pipelines; all, where none is named.", show_default=False, autocompletion=_pipelines)
TXID = typer.Argument(help="The transaction.", min=1, show_default=False)

TOPIC = typer.Option(help="Which topic is meant, where the line is of several.", show_default=False)
REGISTRY = '{"url": "https://HOST:8081", "login": "…", "password": "…"}'
"""An example of the endpoint of a registry of schemas."""
FAULTS = 3
"""The exit status where something is not as it should be."""
_SERVERS = ("RATCHET_LEDGER_URL", "RATCHET_KAFKA", "RATCHET_SPARK", "RATCHET_AIRFLOW_URL", "RATCHET_AIRFLOW_TOKEN")


@cache
def variables() -> Mapping[str, str]:
    """The environment, by which servers are named: an argument could be read by everybody on the machine.

    Where it names none, that of the stack that runs in this checkout. Never some of one and some of the other: the
    offsets of one Kafka say nothing of another one's ledger.
    """
    from ratchet.dev.stack.addresses import DEMO, published

    # One that is empty is set: it names nothing.
    if any(name in os.environ for name in _SERVERS):
        return os.environ
    found = published(DEMO)
    if found is None:
        return os.environ
    typer.echo("using the stack of this checkout", err=True)
    return {**os.environ, **found.variables}


def ledger_url() -> str:
    """The libpq URL of the ledger's database."""
    url = variables().get("RATCHET_LEDGER_URL")
    if not url:
        raise SettingsError(
            "no ledger is named; set RATCHET_LEDGER_URL=postgresql://USER@HOST/DATABASE, or start the embedded "
            "servers with `ratchet stack up`"
        )
    return url


@contextmanager
def ledger_of_environment(lock_seconds: float = 0) -> Iterator[Ledger]:
    """The ledger that the environment names, open; with `lock_seconds` no lock is waited for any longer."""
    from ratchet.ledger.connection import Ledger

    # A person sees what is in the way, and tries again.
    with Ledger(ledger_url(), waits=False, lock_seconds=lock_seconds) as opened:
        yield opened


def who() -> str:
    """Who makes a move, as the history has it."""
    return f"{getpass.getuser()} by command"


def say(outcome: Outcome, as_json: bool) -> None:
    """Print what a move has done."""
    from ratchet.operate.outcome import lines_of

    print_done(outcome, lines_of(outcome), as_json)


def print_done(done: DataclassInstance, said: list[str], as_json: bool) -> None:
    """Print the lines that a person reads of what was done; as JSON, its fields with them."""
    if as_json:
        print_json({**asdict(done), "said": said})
    else:
        print_lines(said)


def print_json(document: object) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(document, indent=2, default=plain, ensure_ascii=False))


def print_json_each(documents: Iterable[object]) -> None:
    """Print one JSON document, an array, of which one element at a time is in memory."""
    typer.echo("[", nl=False)
    for number, document in enumerate(documents):
        said = json.dumps(document, indent=2, default=plain, ensure_ascii=False)
        typer.echo((",\n" if number else "\n") + indent(said, "  "), nl=False)
    typer.echo("\n]")


def print_tried(found: Iterable[DataclassInstance], fails: bool, as_json: bool) -> None:
    """The end of a dry run that has said each result already; exit status 1 where one of them says that it fails."""
    if as_json:
        print_json([asdict(of) for of in found])
    else:
        typer.echo("this was a dry run: nothing was changed")
    if fails:
        raise typer.Exit(1)


def moment_given(said: str | None, option: str = "--at") -> datetime | None:
    """The moment that an option names, if it was given."""
    if said is None:
        return None
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise SettingsError(f"{option} {said} is no moment with a time zone; give it as 2024-05-01T10:00:00+00:00")
    return moment


def check_order(first: int, last: int) -> None:
    """SettingsError where the last of some transactions is before the first."""
    if last < first:
        raise SettingsError(f"--to {last} is before --from {first}; --to is the last one, so give it {first} or more")


def spark_url() -> str:
    """The address of Spark Connect."""
    url = variables().get("RATCHET_SPARK")
    if not url:
        raise SettingsError("no Spark is named; set RATCHET_SPARK=sc://HOST:15002")
    return url


def endpoints(spec: Pipeline) -> dict[str, Endpoint]:
    """The servers that a spec's formats name, by their connections; SettingsError where one is missing."""
    return _registries(spec, spec.connections)


def _registries(spec: Pipeline, names: Iterable[str]) -> dict[str, Endpoint]:
    return {name: endpoint(name, spec.name, REGISTRY) for name in names}


def opener(spec: Pipeline) -> Open:
    """Opens a destination of a pipeline by its connection; SettingsError where that is missing."""

    def opens(destination: Destination, owner: Owner) -> Reach:
        by = connection_of(spec, destination)
        return destination.open(owner, by, _registries(spec, destination.registries))

    return opens


def connection_of(spec: Pipeline, destination: Destination) -> str:
    """What a destination of a pipeline is opened by; SettingsError where its connection is missing."""
    from ratchet.destinations.object_store import EXAMPLE, options_of
    from ratchet.values.endpoint import CONNECTIONS

    name = destination.connection or ""
    match destination.reached_by:
        case "path":
            return ""
        case "postgres":
            return endpoint(name, spec.name, '{"url": "postgresql://USER@HOST/DATABASE"}').url
        case "aws":
            of = endpoint(name, spec.name, EXAMPLE)
            where = f"{CONNECTIONS}: connection {name!r}"
            return json.dumps(options_of(where, of.url, of.login, of.password, of.extra))
        case "iceberg":
            from ratchet.destinations.iceberg_catalog import properties_of

            of = endpoint(name, spec.name, '{"url": "https://HOST/…", "extra": {"warehouse": "…"}}')
            return properties_of(f"{CONNECTIONS}: connection {name!r}", of.url, of.login, of.password, of.extra)
        case "kafka":
            properties = kafka_properties()
            if name and name != spec.kafka:
                of = endpoint(name, spec.name, '{"url": "HOST:9092", "extra": {"security.protocol": "SSL"}}')
                properties = {"bootstrap.servers": of.url, **of.extra}
            return json.dumps(properties)


def endpoint(name: str, user: str, example: str) -> Endpoint:
    """The server of a connection that `user` names; SettingsError, with an example of one, where it is missing."""
    from ratchet.values.endpoint import CONNECTIONS, endpoints_of

    try:
        given = endpoints_of(CONNECTIONS, json.loads(variables().get(CONNECTIONS) or "{}"))
    except (ValueError, RecursionError):
        raise SettingsError(f"{CONNECTIONS}: what it holds is no JSON") from None
    if name not in given:
        raise SettingsError(
            f"{user}: connection {name!r} is not in {CONNECTIONS}; set that to a JSON object of endpoints, "
            f'for example {{"{name}": {example}}}'
        )
    return given[name]


def servers(spec: Pipeline) -> Servers:
    """What the jobs of a pipeline ask besides Spark and the ledger."""
    from ratchet.spark.servers import Servers

    return Servers(kafka_properties(), endpoints(spec))


def kafka_properties() -> dict[str, str]:
    """Kafka's client properties; SettingsError where they cannot be read."""
    from ratchet.source.configured import configured

    try:
        properties = json.loads(variables().get("RATCHET_KAFKA", ""))
    except (ValueError, RecursionError):
        properties = None
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise SettingsError(
            "RATCHET_KAFKA names no Kafka; set it to a JSON object of client properties, all texts, "
            'for example {"bootstrap.servers": "HOST:9092"}'
        )
    given = configured(properties)
    if given.ignored:
        typer.echo(f"RATCHET_KAFKA: {given}", err=True)
    return given.properties
