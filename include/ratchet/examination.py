"""The command that examines everything a pipeline needs: `ratchet doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.command import FAULTS, JSON, NAME, kafka_properties, ledger_url, opener, print_json, spark_url, variables
from ratchet.errors import SettingsError

if TYPE_CHECKING:
    from ratchet.operate.doctor.finding import Check, Finding
    from ratchet.spec.pipeline import Pipeline

MARKS = {"ok": "ok   ", "warning": "WARN ", "fault": "FAULT"}


def doctor(
    name: Annotated[str | None, NAME] = None,
    seconds: Annotated[float, typer.Option(help="So long one check may take.", min=0.1)] = 30.0,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Examine servers, versions, rights, clocks, topics, lines, destinations, and say what to do; exit 3 at a fault."""
    from ratchet.operate.doctor.finding import Severity, examine

    found: list[Finding] = []
    with ExitStack() as stack:
        for each in examine(_checks(name, stack), seconds):
            found.append(each)
            if not as_json:
                typer.echo("\n".join(_lines(each)))
    if as_json:
        print_json([asdict(each) for each in found])
    if any(each.severity is Severity.FAULT for each in found):
        raise typer.Exit(FAULTS)


def _checks(name: str | None, stack: ExitStack) -> Iterator[Check]:
    """Every check, of one pipeline or of all; what is not named in the environment is said to be left out."""
    from ratchet.ledger.connection import Ledger
    from ratchet.operate.doctor import database, destinations, lines, surroundings, topics
    from ratchet.spec.loading import load_pipeline, read_specs

    specs, unread = ([load_pipeline(name)], []) if name else _read(read_specs())
    yield from surroundings.checks(unread)
    ledger = None
    try:
        ledger = stack.enter_context(Ledger(ledger_url(), name="ratchet doctor", waits=False, lock_seconds=5))
    except SettingsError as error:
        yield _unnamed("ledger", error)
    if ledger:
        yield from database.checks(ledger)
        yield from lines.checks(ledger, specs)
        yield from destinations.checks(ledger, specs, opener)
    try:
        yield from topics.checks(kafka_properties(), ledger, specs)
    except SettingsError as error:
        yield _unnamed("kafka", error)
    try:
        yield _spark(spark_url())
    except SettingsError as error:
        yield _unnamed("spark", error)
    url = variables().get("RATCHET_AIRFLOW_URL")
    if url:
        api = surroundings.Api(url, variables().get("RATCHET_AIRFLOW_TOKEN"))
        yield from surroundings.airflow_checks(api, specs)
    else:
        yield _unnamed("airflow", SettingsError("no Airflow is named; set RATCHET_AIRFLOW_URL=http://HOST:PORT"))


def _read(found: tuple[dict[str, Pipeline], list[str]]) -> tuple[list[Pipeline], list[str]]:
    return list(found[0].values()), found[1]


def _unnamed(code: str, error: SettingsError) -> Check:
    from ratchet.operate.doctor.finding import Check, warning

    return Check(code, lambda: [warning(code, f"not checked: {error}", "Set it, and examine again.")])


def _spark(url: str) -> Check:
    from ratchet.operate.doctor.finding import Check, ok, warning

    def look() -> Iterator[Finding]:
        import pyspark

        from ratchet.spark.engine import shared_session

        with shared_session(url, "doctor", "") as session:
            held, answer = session.version, session.range(3).count()
        where = url.partition(";")[0]
        if answer != 3:
            yield warning("spark", f"Spark at {where} counts {answer} rows of 3", "Start it anew.")
        elif held != pyspark.__version__:
            said = f"Spark at {where} is {held}, the client here is {pyspark.__version__}"
            yield warning("spark", said, "Run the same version on both sides; others are not tried.")
        else:
            yield ok("spark", f"Spark {held} at {where} answers")

    return Check("spark", look)


def _lines(found: Finding) -> Iterator[str]:
    about = f"{found.pipeline}: " if found.pipeline else ""
    error = f" ({found.error})" if found.error else ""
    yield f"{MARKS[found.severity]} {found.code}{error}: {about}{found.what.removeprefix(about)}"
    if found.remedy and found.severity != "ok":
        yield f"      → {found.remedy}"
