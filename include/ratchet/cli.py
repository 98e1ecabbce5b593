"""The `ratchet` command.

The ledger is named by RATCHET_LEDGER_URL, Kafka by RATCHET_KAFKA; `ratchet.answers` has the exit statuses.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ratchet.beginning import init
from ratchet.command import (
    DRY_RUN,
    JSON,
    NAME,
    NAMES,
    REASON,
    TXID,
    check_order,
    kafka_properties,
    ledger_of_environment,
    ledger_url,
    moment_given,
    print_done,
    print_json,
    print_json_each,
    print_tried,
    say,
    servers,
    spark_url,
    who,
)
from ratchet.comparing import columns
from ratchet.dev.stack.cli import stack_app
from ratchet.errors import RatchetError, SpecError
from ratchet.examination import doctor
from ratchet.exporting import exporter
from ratchet.ledger.work import name_of, utc
from ratchet.logs import choose_form
from ratchet.operate.reason import reason_given
from ratchet.outlook import plan, preview
from ratchet.pausing import pause_at, resume
from ratchet.printing import print_lines
from ratchet.progress import progress
from ratchet.releasing import release
from ratchet.removals import drop, erase, prune
from ratchet.sending import attach, detach
from ratchet.traces import dlq, lag, origin, show, where
from ratchet.values.plain import plain
from ratchet.values.withheld import named
from ratchet.verification import verify

if TYPE_CHECKING:
    from ratchet.ledger.history import Event
    from ratchet.spec.pipeline import Pipeline

app = typer.Typer(no_args_is_help=True, help="Exactly-once transactions over Kafka and Spark.")
app.add_typer(stack_app, name="stack")
_OF_OTHER_MODULES = (
    init, columns, verify, preview, doctor, plan, show, lag, where, origin, dlq, release, pause_at, resume, detach,
    attach, erase, prune, drop, exporter,
)  # fmt: skip
for command in _OF_OTHER_MODULES:
    app.command()(command)


@app.command()
def migrate(
    names: Annotated[list[str] | None, NAMES] = None,
    pipeline_role: Annotated[str | None, typer.Option(help="A role to give what runs and operators need.")] = None,
    reader_role: Annotated[str | None, typer.Option(help="A role to let read the tables and the ledger.")] = None,
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Create or upgrade the ledger, bring the tables of some or of all pipelines to their specs, and grant rights."""
    from ratchet.operate.migrate import PartlyMigrated, lines_of
    from ratchet.operate.migrate import migrate as run
    from ratchet.spec.loading import load_pipeline, read_specs

    if names:
        specs, faults = [load_pipeline(name) for name in dict.fromkeys(names)], []
    else:
        found, faults = read_specs()
        specs = list(found.values())
    refused: RatchetError | None = None
    try:
        with progress("migrating") as told:
            done = run(ledger_url(), specs, pipeline_role, reader_role, say=told.say, who=who(), dry_run=dry_run)
    except PartlyMigrated as error:
        done, refused = error.done, error
    print_done(done, lines_of(done), as_json)
    # A spec that cannot be read holds up no other pipeline either.
    if faults:
        raise SpecError("; ".join([*faults, *([str(refused)] if refused else [])]))
    if refused:
        raise refused


@app.command()
def validate() -> None:
    """Check every spec, and that its transform and what it names besides can be imported, without any server."""
    from ratchet.spec.loading import load_pipelines
    from ratchet.spec.reference import load
    from ratchet.transforms.kinds import kind_of

    for spec in load_pipelines().values():
        for field, reference in spec.references:
            load(reference, field)
        kind = kind_of(spec)
        by = f"{spec.transform} over {kind}" if isinstance(spec.transform, str) else str(kind)
        typer.echo(f"{spec.name}: {spec.source.title} → {by} → {', '.join(s.name for s in spec.sinks)}")


@app.command()
def status(
    name: Annotated[str | None, NAME] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say where a line stands, or every line, and why each unfinished transaction waits."""
    from ratchet.operate.snapshot.status import statuses
    from ratchet.operate.snapshot.words import lines_of
    from ratchet.spec.loading import load_pipeline, load_pipelines

    names = [load_pipeline(name).name] if name else list(load_pipelines())
    with ledger_of_environment() as ledger, ledger.snapshot() as conn:
        found = statuses(conn, names).values()
    if as_json:
        print_json([{**asdict(each), "said": lines_of(each)} for each in found])
    else:
        print_lines(line for each in found for line in lines_of(each))


@app.command()
def history(
    name: Annotated[str, NAME],
    txid: Annotated[int | None, TXID] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print every move of a pipeline, or of one transaction, in order: when, what, who, why."""
    from ratchet.ledger.history import each
    from ratchet.ledger.transactions import read_line
    from ratchet.spec.loading import load_pipeline

    name = load_pipeline(name).name
    with ledger_of_environment() as ledger:
        with ledger.snapshot() as conn:
            line = read_line(conn, name)
        if line and txid is not None and txid <= line.pruned:
            typer.echo(f"{name_of(txid)} is pruned from the ledger", err=True)
        events = each(ledger, name, txid)
        if as_json:
            print_json_each(asdict(event) for event in events)
            return
        for e in events:
            of = f"{name_of(e.txid, e.revision)}, epoch {e.epoch}" if e.txid else "tables"
            print_lines([f"{utc(e.at)}  {of}: {e.move} by {e.who}: {_why(e)}"])


def _why(event: Event) -> str:
    """Why a move was made, or what the history has of it, without the sums that only `verify` needs."""
    parts = {key: value for key, value in event.detail.items() if key != "from"}
    if "sinks" in parts:
        parts["rows"] = ", ".join(f"{of['rows']:,} in {sink}" for sink, of in parts.pop("sinks").items())
    # What has parts itself can be copied as JSON, as --json has it.
    said = {key: value if isinstance(value, str) else json.dumps(value, default=plain) for key, value in parts.items()}
    return event.detail.get("why") or ", ".join(f"{key} {value}" for key, value in said.items())


@app.command()
def retry(
    name: Annotated[str, NAME],
    txid: Annotated[int | None, TXID] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Lift a halt after its cause is corrected; the next run of any kind goes on."""
    from ratchet.operate import actions
    from ratchet.spec.loading import load_pipeline

    with ledger_of_environment() as ledger:
        say(actions.retry(ledger, load_pipeline(name), txid, who()), as_json)


@app.command()
def abort(
    name: Annotated[str, NAME],
    txid: Annotated[int, TXID],
    reason: Annotated[str, REASON],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Let what a transaction has staged count for nothing; the next run tries it again in a new epoch."""
    from ratchet.operate import actions
    from ratchet.spec.loading import load_pipeline

    with ledger_of_environment() as ledger:
        say(actions.abort(ledger, load_pipeline(name), txid, reason_given(reason), who()), as_json)


@app.command()
def void(
    name: Annotated[str, NAME],
    txid: Annotated[int, TXID],
    reason: Annotated[str, REASON],
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Decide that a transaction commits nothing, so that the line goes on without its records."""
    from ratchet.operate import actions
    from ratchet.spec.loading import load_pipeline

    with ledger_of_environment() as ledger:
        say(actions.void(ledger, load_pipeline(name), txid, reason_given(reason), who(), dry_run=dry_run), as_json)


@app.command()
def replay(
    name: Annotated[str, NAME],
    first: Annotated[int, typer.Option("--from", help="The first transaction.", min=1, show_default=False)],
    reason: Annotated[str | None, REASON] = None,
    last: Annotated[
        int | None, typer.Option("--to", help="The last one.", min=1, show_default="the first, alone")
    ] = None,
    voided: Annotated[bool, typer.Option("--voided", help="Also those that are voided.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take back what was asked for and is not begun.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Process them now, and say what would change; needs RATCHET_SPARK.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Process committed transactions once more with today's code; the new results take the place of the old ones."""
    from ratchet.operate import replay as replays
    from ratchet.spec.loading import load_pipeline

    if dry_run and cancel:
        raise typer.BadParameter("--cancel has no dry run")
    until = first if last is None else last
    check_order(first, until)
    spec = load_pipeline(name)
    if dry_run:
        _differences(spec, first, until, voided=voided, as_json=as_json)
        return
    if reason is None:
        raise typer.BadParameter("say why; it is kept in the history", param_hint="--reason")
    why = reason_given(reason)
    with ledger_of_environment() as ledger:
        if cancel:
            done = replays.take_back(ledger, spec, first, until, why, who())
        else:
            done = replays.ask(ledger, spec, first, until, why, who(), voided=voided)
    print_done(done, replays.lines_of(done), as_json)


@app.command(name="accept-loss")
def accept_loss(
    name: Annotated[str, NAME],
    reason: Annotated[str, REASON],
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Go on without records that Kafka has deleted before they were processed, or with what a topic has become."""
    from ratchet.operate import actions
    from ratchet.source.kafka import Kafka
    from ratchet.spec.loading import load_pipeline

    spec = load_pipeline(name)
    with ledger_of_environment() as ledger, Kafka(kafka_properties()) as brokers:
        said = actions.accept_loss(
            ledger,
            spec,
            partial(brokers.offsets, spec.source),
            reason_given(reason),
            who(),
            dry_run=dry_run,
        )
        say(said, as_json)


@app.command()
def repartitioned(
    name: Annotated[str, NAME],
    reason: Annotated[str, REASON],
    at: Annotated[
        str | None,
        typer.Option(help="Since when producers give keys to other partitions, as 2024-05-01T10:00:00+00:00."),
    ] = None,
    dry_run: Annotated[bool, DRY_RUN] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Go on where keys have gone to other partitions, as after partitions were added to the topic."""
    from ratchet.operate import repartition
    from ratchet.source.kafka import Kafka
    from ratchet.spec.loading import load_pipeline

    spec, since = load_pipeline(name), moment_given(at)
    with ledger_of_environment() as ledger, Kafka(kafka_properties()) as brokers:
        offsets = partial(brokers.offsets, spec.source)
        say(
            repartition.repartitioned(ledger, spec, offsets, reason_given(reason), who(), since, dry_run=dry_run),
            as_json,
        )


def _codes(begun: str) -> list[str]:
    from ratchet.explained import EXPLAINED

    return [one.code for one in EXPLAINED if one.code.startswith(begun.upper())]


@app.command()
def explain(
    code: Annotated[
        str,
        typer.Argument(
            help="As it stands before an error, such as RAT-306.", show_default=False, autocompletion=_codes
        ),
    ],
) -> None:
    """Say what an error code means, what was changed, and what to do."""
    from ratchet.explained import explained

    print_lines(explained(code).lines())


def _differences(spec: Pipeline, first: int, last: int, *, voided: bool, as_json: bool) -> None:
    from ratchet.operate.difference import Difference, differences, lines_of
    from ratchet.spark.engine import session_for
    from ratchet.spark.slice import encode

    asked = servers(spec)
    found: list[Difference] = []
    with (
        ledger_of_environment() as ledger,
        progress(f"{spec.name}: processing once more", last - first + 1) as told,
        session_for(spec, spark_url()) as session,
    ):
        again = partial(encode, session, spec, servers=asked)
        for of in differences(ledger, spec, lambda works, take: again(works, take=take), first, last, voided=voided):
            if isinstance(of, Difference):
                found.append(of)
                lines = lines_of(of)
            else:
                lines = [f"transaction {of[0]} is left out: {of[1]}"]
            told.step()
            typer.echo("\n".join(lines), err=as_json)
    print_tried(found, any(of.fails for of in found), as_json)


def main(run: Callable[[], None] = app) -> None:
    """Run the command; an error of ours is one line, not a traceback.

    Of another one the words are left out where a pipeline is private, and RATCHET_DEBUG is not set.
    """
    try:
        choose_form()
        run()
    except RatchetError as error:
        print_lines([Text.assemble((f"error {error.code}:", "red"), f" {error}")], err=True)
        raise SystemExit(1) from (error if os.environ.get("RATCHET_DEBUG") else None)
    except Exception as error:
        if os.environ.get("RATCHET_DEBUG") or not _some_are_private():
            raise
        typer.echo("".join(traceback.format_tb(error.__traceback__)), err=True, nl=False)
        said = f"error: {named(error)}; with RATCHET_DEBUG=1 it is said in full, and may quote values of records"
        typer.echo(said, err=True)
        raise SystemExit(1) from None


def _some_are_private() -> bool:
    from ratchet.spec.loading import read_specs

    try:
        return any(spec.private for spec in read_specs()[0].values())
    except ImportError:
        return True
