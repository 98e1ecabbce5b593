"""The routes that show something and change nothing; a list has what the user may read, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse

from ratchet.airflow.connections import kafka_properties, spark_page
from ratchet.errors import Fenced, RatchetError
from ratchet.operate.erase import key_given
from ratchet.operate.snapshot import letters as dead
from ratchet.operate.snapshot import words
from ratchet.operate.snapshot.lag import Lag, lags, topics_asked
from ratchet.operate.snapshot.places import origins, where
from ratchet.operate.snapshot.status import Status, statuses
from ratchet.operate.snapshot.timeline import timeline
from ratchet.operate.snapshot.transaction import of_run, transaction
from ratchet.page.access import MAY_READ, User, editable, readable
from ratchet.page.answers import answer, document, failed
from ratchet.page.pipelines import Pipelines
from ratchet.source.topics import Topics
from ratchet.spec.pipeline import Pipeline

SECONDS = 10
"""How long a search for rows may take; they may be many, and have no index."""
VALUE_BYTES = 10_000
"""So much of a value is on a page of dead letters; a download has all of it."""

router = APIRouter(prefix="/api")


def known(request: Request) -> Pipelines:
    """The pipelines, as the application keeps them."""
    return request.app.state.pipelines


@router.get("/pipelines")
def all_pipelines(request: Request, user: User) -> JSONResponse:
    """Where every line stands that the user may read.

    `{"pipelines": [{…status, "said": lines, "halted_why", "paused_why", "may_move", "sinks", "title"}], "unknown":
    [{"pipelines", "code", "message"}]}`; `unknown` are those whose ledger does not answer.
    """
    pipelines = known(request)
    may_read = readable(user, pipelines.specs())
    may_move = editable(user, may_read)
    found: list[dict[str, object]] = []
    unknown: list[dict[str, object]] = []
    for name in sorted({spec.ledger for each, spec in pipelines.specs().items() if each in may_read}):
        specs = [spec for each, spec in pipelines.specs().items() if each in may_read and spec.ledger == name]
        try:
            with pipelines.ledger(specs[0]).snapshot() as conn:
                lines = statuses(conn, [spec.name for spec in specs])
        except RatchetError as error:
            unknown.append({"pipelines": [s.name for s in specs], "code": error.code, "message": str(error)})
            continue
        found += [_line(spec, lines[spec.name], spec.name in may_move) for spec in specs]
    return answer({"pipelines": sorted(found, key=lambda of: str(of["pipeline"])), "unknown": unknown})


@router.get("/lag")
def all_lags(request: Request, user: User) -> JSONResponse:
    """How far every line is behind Kafka that the user may read.

    `{"lags": [{…}], "unknown": [{"pipelines", "code", "message"}]}`; `unknown` are those whose Kafka or ledger does not
    answer.
    """
    pipelines = known(request)
    may_read = readable(user, pipelines.specs())
    of: dict[tuple[str, str], list[Pipeline]] = {}
    for spec in pipelines.specs().values():
        if spec.name in may_read:
            of.setdefault((spec.ledger, spec.kafka), []).append(spec)
    found: list[dict[str, object]] = []
    unknown: list[dict[str, object]] = []
    for specs in of.values():
        names = [spec.name for spec in specs]
        try:
            found += [document(lag) for lag in _lags(pipelines, specs)]
        except RatchetError as error:
            unknown.append({"pipelines": names, "code": error.code, "message": str(error)})
    return answer({"lags": sorted(found, key=lambda lag: str(lag["pipeline"])), "unknown": unknown})


@router.get("/pipelines/{dag_id}", dependencies=[MAY_READ])
def one_pipeline(
    request: Request,
    dag_id: str,
    user: User,
    before: Annotated[int | None, Query(ge=2)] = None,
    most: Annotated[int, Query(ge=1, le=500)] = 100,
) -> JSONResponse:
    """A pipeline's line, and a page of its transactions, the newest first; `earlier` is the next page's `before`."""
    pipelines = known(request)
    spec = pipelines.spec(dag_id)
    seen = timeline(pipelines.ledger(spec), dag_id, before, most)
    line = _line(spec, seen.status, bool(editable(user, {dag_id})))
    found = document(seen)
    for bar, said in zip(seen.bars, found["bars"], strict=True):  # pyright: ignore[reportArgumentType]: a list
        said["what"] = words.what_of(bar)
    return answer({**found, "status": line})


@router.get("/pipelines/{dag_id}/transactions/{txid}", dependencies=[MAY_READ])
def one_transaction(request: Request, dag_id: str, txid: int, user: User) -> JSONResponse:
    """All that the ledger has of a transaction; 404 where there is none, or it is pruned.

    `spark_pages` are {application id: its page in Spark's UI}, where the connection to Spark names that. `halted_why`
    says why the line is halted at it, and the ways out.
    """
    pipelines = known(request)
    spec = pipelines.spec(dag_id)
    try:
        found = transaction(pipelines.ledger(spec), dag_id, txid)
    except Fenced as error:
        return failed(404, error.code, type(error).__name__, str(error))
    page_of = spark_page(spec.spark)
    ids = {part.application_id for part in found.slices if part.application_id}
    more = {
        "revisions": [{**document(row), "what": words.what_of(row)} for row in found.revisions],
        "spark_pages": {of: page_of(of) for of in sorted(ids)} if page_of else {},
        "may_move": dag_id in editable(user, {dag_id}),
        "halted_why": words.halt_at(found.standing) if found.standing else None,
    }
    return answer({**document(found), **more})


@router.get("/pipelines/{dag_id}/runs", dependencies=[MAY_READ])
def transactions_of_run(request: Request, dag_id: str, run_id: str) -> JSONResponse:
    """Which transactions a DAG run has worked on, one for each clear, the latest first; none where it was skipped."""
    pipelines = known(request)
    found = of_run(pipelines.ledger(pipelines.spec(dag_id)), dag_id, dag_id, run_id)
    return answer({"runs": [document(row) for row in found]})


@router.get("/pipelines/{dag_id}/letters/counts", dependencies=[MAY_READ])
def letter_counts(request: Request, dag_id: str, user: User) -> JSONResponse:
    """How many dead letters there are, by reason and by transaction; `may_move` says whether the user may release."""
    pipelines = known(request)
    found = document(dead.counts(pipelines.ledger(pipelines.spec(dag_id)), dag_id))
    return answer({**found, "may_move": dag_id in editable(user, [dag_id])})


@router.get("/pipelines/{dag_id}/letters", dependencies=[MAY_READ])
def some_letters(
    request: Request,
    dag_id: str,
    user: User,
    reason: str | None = None,
    txid: int | None = None,
    after: str | None = None,
    most: Annotated[int, Query(ge=1, le=500)] = 50,
) -> JSONResponse:
    """A page of dead letters; `next` is the next page's `after`.

    Of a pipeline whose values are private, only those who may change its DAG see keys, values and headers; for the
    others these are null, and `withheld` is true.
    """
    pipelines = known(request)
    spec = pipelines.spec(dag_id)
    page = dead.letters(pipelines.ledger(spec), dag_id, reason, txid, after, most, VALUE_BYTES)
    withheld = _is_withheld(spec, user)
    found = [_letter(letter, withheld=withheld) for letter in page.letters]
    return answer({"pipeline": dag_id, "letters": found, "next": page.next, "withheld": withheld})


@router.get("/pipelines/{dag_id}/letters/download", dependencies=[MAY_READ])
def letters_to_keep(
    request: Request, dag_id: str, user: User, reason: str | None = None, txid: int | None = None
) -> StreamingResponse:
    """Dead letters with all their bytes, one JSON document a line."""
    pipelines = known(request)
    spec = pipelines.spec(dag_id)
    ledger, withheld = pipelines.ledger(spec), _is_withheld(spec, user)

    def lines() -> Iterator[str]:
        for letter in dead.each(ledger, dag_id, reason, txid, 1_000_000):
            yield json.dumps(_letter(letter, withheld=withheld), ensure_ascii=False) + "\n"

    headers = {"Content-Disposition": f'attachment; filename="{spec.name}-dead-letters.jsonl"'}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


@router.get("/pipelines/{dag_id}/where", dependencies=[MAY_READ])
def where_is(
    request: Request,
    dag_id: str,
    user: User,
    partition: Annotated[int, Query(ge=0)],
    offset: Annotated[int, Query(ge=0)],
    topic: str | None = None,
) -> JSONResponse:
    """Which transactions have a record, and its rows in each sink; of private pipelines' rows as of letters.

    Of a line of several topics `topic` says which is meant. `shown` are the rows once more, each as text: JavaScript
    rounds numbers of more than 15 digits.
    """
    pipelines = known(request)
    spec = pipelines.spec(dag_id)
    found = document(where(pipelines.ledger(spec), spec, partition, offset, topic or None))
    withheld = _is_withheld(spec, user)
    for place in found["places"]:  # pyright: ignore[reportGeneralTypeIssues]: a list
        for sink in place["sinks"]:
            sink["rows"] = [{} if withheld else row for row in sink["rows"]]
            sink["shown"] = [json.dumps(row, ensure_ascii=False) for row in sink["rows"]]
    return answer({**found, "withheld": withheld})


@router.get("/pipelines/{dag_id}/origin", dependencies=[MAY_READ])
def comes_from(
    request: Request, dag_id: str, user: User, sink: str, key: Annotated[list[str], Query(description="COLUMN=VALUE")]
) -> JSONResponse:
    """Which transactions and records have made the rows in which columns have these values.

    Of a private pipeline 403 for those to whom its rows are not shown: they could guess values.
    """
    pipelines = known(request)
    spec = pipelines.spec(dag_id)
    if _is_withheld(spec, user):
        raise HTTPException(403, f"values of {spec.name} are private")
    return answer(document(origins(pipelines.ledger(spec), spec, sink, key_given(key), SECONDS)))


def _line(spec: Pipeline, of: Status, may_move: bool) -> dict[str, object]:
    unfinished = [{**document(row), "why": words.why_of(of, row)} for row in of.unfinished]
    places = [{**document(each), "said": words.destination_of(of.pipeline, each)} for each in of.destinations]
    return {
        **document(of),
        "unfinished": unfinished,
        "destinations": places,
        "in_flight": of.in_flight,
        "topic": of.topic or spec.source.title,
        "sinks": [sink.name for sink in spec.sinks],
        "is_private": spec.private,
        "may_move": may_move,
        "halted_why": words.halt_of(of),
        "asked": words.asked_of(of),
        "paused_why": words.pause_of(of),
        "said": words.lines_of(of),
    }


def _lags(pipelines: Pipelines, specs: list[Pipeline]) -> list[Lag]:
    with Topics(kafka_properties(specs[0].kafka)) as brokers:
        # Kafka first: what the ledger has committed since then is no lag.
        with pipelines.ledger(specs[0]).snapshot() as conn:
            names = topics_asked(conn, specs)
        ends = brokers.ends(names)
        with pipelines.ledger(specs[0]).snapshot() as conn:
            return list(lags(conn, [spec.name for spec in specs], ends, brokers.times).values())


def _is_withheld(spec: Pipeline, user: BaseUser) -> bool:
    return spec.private and not editable(user, {spec.name})


def _letter(of: dead.Letter, *, withheld: bool) -> dict[str, object]:
    found = document(of)
    if withheld:
        found |= dict.fromkeys(("key_text", "key_base64", "value_text", "value_base64")) | {"headers": []}
    return found
