"""The commands that look and change nothing: at a transaction, the lag, a record, a row's origin, dead letters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ratchet.command import (
    JSON,
    NAME,
    TOPIC,
    TXID,
    kafka_properties,
    ledger_of_environment,
    print_json,
    print_json_each,
)
from ratchet.errors import SettingsError
from ratchet.ledger.topics import titled
from ratchet.ledger.work import counted, name_of, utc
from ratchet.printing import print_parts
from ratchet.protocol.pause import why_paused
from ratchet.values.plain import plain

if TYPE_CHECKING:
    from ratchet.operate.snapshot.lag import Lag
    from ratchet.operate.snapshot.letters import Counts, Letter
    from ratchet.operate.snapshot.places import Found, Origins, Where
    from ratchet.operate.snapshot.transaction import Whole


def show(
    name: Annotated[str, NAME],
    txid: Annotated[int, TXID],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show one transaction: its ranges, slices, tries, votes, gates, claims and history."""
    from ratchet.operate.snapshot.transaction import transaction
    from ratchet.spec.loading import load_pipeline

    with ledger_of_environment() as ledger:
        found = transaction(ledger, load_pipeline(name).name, txid)
    if as_json:
        print_json(asdict(found))
    else:
        print_parts(_whole(found))


def lag(
    name: Annotated[str | None, NAME] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say how far lines are behind Kafka, and when retention deletes what waits; needs RATCHET_KAFKA."""
    from ratchet.operate.snapshot.lag import lags, topics_asked
    from ratchet.source.topics import Topics
    from ratchet.spec.loading import load_pipeline, load_pipelines

    specs = [load_pipeline(name)] if name else list(load_pipelines().values())
    # Kafka is asked first: what the ledger has committed since then is no lag.
    with ledger_of_environment() as ledger, Topics(kafka_properties()) as brokers:
        with ledger.snapshot() as conn:
            names = topics_asked(conn, specs)
        ends = brokers.ends(names)
        with ledger.snapshot() as conn:
            found = lags(conn, [spec.name for spec in specs], ends, brokers.times)
    if as_json:
        print_json([asdict(each) for each in found.values()])
    else:
        # A line that no run has begun has no place from which it could be behind.
        rest = [
            f"{spec.name} has not begun; `ratchet plan {spec.name}` says what its first run takes"
            for spec in specs
            if spec.name not in found
        ]
        print_parts([*([_lags(found.values())] if found else []), *rest])


def where(
    name: Annotated[str, NAME],
    partition: Annotated[int, typer.Argument(help="Of the topic.", min=0, show_default=False)],
    offset: Annotated[int, typer.Argument(help="Of the record.", min=0, show_default=False)],
    topic: Annotated[str | None, TOPIC] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say which transaction has a record, and which rows it has given in each sink."""
    from ratchet.operate.snapshot.places import where as look
    from ratchet.spec.loading import load_pipeline

    with ledger_of_environment() as ledger:
        found = look(ledger, load_pipeline(name), partition, offset, topic)
    if as_json:
        print_json(asdict(found))
    else:
        print_parts(_where(found))


def origin(
    name: Annotated[str, NAME],
    sink: Annotated[str, typer.Argument(help="A sink of it.", show_default=False)],
    key: Annotated[list[str], typer.Argument(metavar="COLUMN=VALUE…", help="Which rows.", show_default=False)],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say which transactions and records have made the rows in which columns have these values."""
    from ratchet.operate.erase import key_given
    from ratchet.operate.snapshot.places import origins
    from ratchet.spec.loading import load_pipeline

    with ledger_of_environment() as ledger:
        found = origins(ledger, load_pipeline(name), sink, key_given(key))
    if as_json:
        print_json(asdict(found))
    else:
        print_parts(_origins(found))


def dlq(
    name: Annotated[str, NAME],
    reason: Annotated[str | None, typer.Option(help="Only those with this reason.", show_default=False)] = None,
    txid: Annotated[int | None, typer.Option(help="Only those of this transaction.", min=1, show_default=False)] = None,
    limit: Annotated[int, typer.Option(help="At most so many letters; 0 gives counts alone.", min=0)] = 20,
    raw: Annotated[bool, typer.Option("--raw", help="Keys and values as base64, whatever they are.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the letters there, as JSON lines.", dir_okay=False, show_default=False)
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Count dead letters by reason, and show them, the newest transaction first."""
    from ratchet.operate.snapshot.letters import counts, each
    from ratchet.spec.loading import load_pipeline

    named = load_pipeline(name).name
    with ledger_of_environment() as ledger:
        found = each(ledger, named, reason, txid, limit)
        if out is not None:
            typer.echo(f"{counted(_write(out, found), 'letter is', 'letters are')} written to {out}", err=as_json)
        elif as_json:
            print_json_each(map(asdict, found))
        else:
            print_parts(_letters(counts(ledger, named), found, raw))


def _table(*columns: str, numbers: tuple[str, ...] = (), title: str | None = None) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def _cells(*values: object) -> list[str]:
    """Cells of a table; rich must not read a value of a record as markup."""
    from rich.markup import escape

    said = (f"{value:,}" if isinstance(value, int) else _moment(value) for value in values)
    return [escape(_shown(cell)) for cell in said]


def _shown(text: str) -> str:
    """What a record says, without what a terminal would obey."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _moment(value: object) -> str:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%m-%d %H:%M:%S}"
    return "" if value is None else str(value)


def _whole(of: Whole) -> Iterator[str | Table]:
    from ratchet.operate.snapshot.words import what_of

    if of.result and of.result.releases:
        rows = ", ".join(f"{count:,} in {sink}" for sink, count in of.result.rows.items())
        added = counted(len(of.result.releases), "release")
        yield f"{of.pipeline}: {name_of(of.txid)}, with {added}: {counted(of.result.records, 'record')}; rows: {rows}"
    seen = (of.result.revision, *of.result.releases) if of.result else ()
    for row in of.revisions:
        shown = ", which sinks show" if row.revision in seen else ""
        what = f", {what_of(row)}," if row.revision else ""
        yield f"{of.pipeline}: {name_of(of.txid, row.revision)}{what} is {row.state}{shown}; the head is {of.head}"
        yield f"  epoch {row.epoch}, claim {row.claim}, run {row.run_id}, code {row.code}"
        yield f"  opened {utc(row.opened_at)}, prepared {utc(row.prepared_at)}, committed {utc(row.committed_at)}"
        if row.reason:
            yield f"  {row.reason}"
        if row.rows:
            rows = ", ".join(f"{count:,} in {sink}" for sink, count in row.rows.items())
            read = counted(row.records or 0, "record")
            yield f"  {read} {'read' if row.releases is None else 'released'}; rows: {rows}"
    if of.pause:
        yield why_paused(of.pipeline, of.pause)
    table = _table("partition", "from", "until", "offsets", numbers=("from", "until", "offsets"), title="ranges")
    for r in of.ranges:
        at = r.from_offset, r.until_offset, r.until_offset - r.from_offset
        table.add_row(*_cells(f"{r.topic}-{r.partition}", *at))
    yield table
    for lost in of.losses:
        named = f"{lost.topic}-" if len({r.topic for r in of.ranges}) > 1 else ""
        where = f"{named}{lost.partition}[{lost.from_offset},{lost.until_offset})"
        yield f"{where} is taken out by {lost.who}: {lost.reason}"
    table = _table(
        "epoch", "slice", "try", "voted", "records", "dead", "seconds", "rows", "application", title="slices"
    )
    for part in of.slices:
        seconds = f"{sum(part.seconds.values()):.1f}" if part.seconds else None
        rows = ", ".join(f"{vote.sink} {vote.rows:,}" for vote in part.sinks if vote.rows)
        numbers = part.epoch, part.slice, part.try_number, part.voted_at, part.records, part.dead_letters
        table.add_row(*_cells(*numbers, seconds, rows, part.application_id))
    yield table
    for gate in of.gates:
        numbers = ", ".join(f"{name} {number}" for name, number in gate.numbers.items())
        said = "; ".join(filter(None, (gate.why, numbers)))
        yield f"gate {gate.gate}, epoch {gate.epoch}: {'yes' if gate.yes else 'NO'}{f', {said}' if said else ''}"
    if of.replay:
        given_up = f", and it is given up: {of.replay.given_up}" if of.replay.given_up else ""
        what = "a revision" if of.replay.releases is None else "a release of dead letters"
        yield f"{what} is asked for by {of.replay.who}: {of.replay.reason}{given_up}"
    table = _table("at (UTC)", "epoch", "move", "who", "why", title="history")
    for event in of.history:
        table.add_row(*_cells(event.at, event.epoch, event.move, event.who, event.detail.get("why")))
    yield table


def _lags(found: Iterable[Lag]) -> Table:
    table = _table("pipeline", "records", "waiting", "oldest", "deleted in", "", numbers=("records", "waiting"))
    for of in found:
        odd = "" if of.paused_behind is None else f"paused behind {of.paused_behind}"
        named = titled(of.topic.split(", "))
        odd = odd if of.is_told else f"{named} {'are not all' if ', ' in named else 'is not'} shown"
        odd = f"{named} was made again" if of.is_made_again else odd
        odd = f"{counted(of.lost, 'offset is', 'offsets are')} LOST" if of.lost else odd
        left = (of.deleted_at - of.at).total_seconds() if of.deleted_at else None
        table.add_row(*_cells(of.pipeline, of.records, of.waiting, _span(of.seconds), _span(left), odd))
    return table


def _span(seconds: float | None) -> str:
    """`17 s`, `12 min`, `5.2 h`, `6.1 d`."""
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} min" if abs(seconds) >= 120 else f"{seconds:.0f} s"


def _where(of: Where) -> Iterator[str]:
    at = f"{of.pipeline}: offset {of.offset} of partition {of.partition}{f' of {of.topic}' if of.is_of_several else ''}"
    if not of.places:
        if of.planned_until is None:
            yield f"{at}: no plan has this partition"
        elif of.offset >= of.planned_until:
            yield f"{at} is not planned yet; plans end at {of.planned_until}"
        else:
            yield f"{at} was never planned, or is pruned; the ledger has plans from {of.planned_from} on"
    for place in of.places:
        span = f"{place.topic}-{of.partition}[{place.from_offset},{place.until_offset})"
        yield f"{at} is of {name_of(place.txid, place.revision)}, which is {place.state}: {span}, source {place.source}"
        if place.lost_why:
            yield f"  a person took it out of the plan: {place.lost_why}"
        for found in place.sinks:
            yield from (f"  {line}" for line in _found(found))


def _found(found: Found) -> Iterator[str]:
    from ratchet.operate.snapshot.places import Unknown

    why = {
        Unknown.NOT_COMMITTED: "nobody sees rows of this transaction",
        Unknown.COMBINED: "not known; a row stands for many records",
        Unknown.MERGED: "not known; old transactions are merged, and the last row of each key is kept",
        Unknown.REPLACED: "no row; the transform gave none, or a later record of its key took its place",
        Unknown.EXPIRED: "its rows have expired",
        None: "no row",
    }
    if not found.rows:
        yield f"{found.sink}: {why[found.unknown]}"
    for row in found.rows:
        yield f"{found.sink}: {json.dumps(row, ensure_ascii=False)}"


def _origins(of: Origins) -> Iterator[str | Table]:
    if not of.made:
        yield f"{of.pipeline}: {of.sink} has no row with these values in {', '.join(of.columns)}"
        return
    table = _table("transaction", "record")
    for made in of.made:
        record = "one of its records" if made.offset is None else f"{made.topic}-{made.partition} at {made.offset}"
        table.add_row(*_cells(name_of(made.txid, made.revision), record))
    yield table
    if of.more:
        yield f"these are the first {len(of.made)}; there are more"
    if of.merged:
        yield f"up to transaction {of.merged} one stands for those before it"


def _letters(of: Counts, found: Iterable[Letter], raw: bool) -> Iterator[str | Table]:
    said = counted(of.counted, "dead letter") if of.is_all else f"{of.counted:,} of the newest dead letters"
    yield f"{of.pipeline}: {said}"
    table = _table("letters", "first", "last", "reason", numbers=("letters", "first", "last"))
    for reason in of.reasons:
        table.add_row(*_cells(reason.letters, reason.first_txid, reason.last_txid, reason.reason))
    yield table
    for letter in found:
        at = f"{letter.topic}-{letter.partition} at {letter.offset}"
        yield f"{at}, transaction {letter.txid}: {_shown(letter.reason)}"
        said = (("key", letter.key_text, letter.key_base64), ("value", letter.value_text, letter.value_base64))
        for what, text, base64 in said:
            if base64 is not None:
                yield f"  {what}: {_shown(text) if text is not None and not raw else f'base64 {base64}'}"


def _write(out: Path, found: Iterable[Letter]) -> int:
    count = 0
    try:
        with out.open("w", encoding="utf-8") as file:
            for letter in found:
                file.write(json.dumps(asdict(letter), default=plain, ensure_ascii=False) + "\n")
                count += 1
    except OSError as error:
        raise SettingsError(f"{out} cannot be written: {error.strerror}") from error
    return count
