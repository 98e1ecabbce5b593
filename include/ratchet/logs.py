"""Logs: one line says what was decided and why; every line names the pipeline, the txid and the epoch."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars

from ratchet.errors import SettingsError
from ratchet.ledger.work import Claim, SliceToken

FORM = "RATCHET_LOGS"
"""How the lines of a process of ours look: `text`, or `json` for one JSON object a line."""


def get_logger() -> Any:
    """The logger of the library; inside Airflow its lines go to the task's log."""
    return structlog.get_logger("ratchet")


def choose_form(variables: Mapping[str, str] = os.environ) -> None:
    """Write the lines of this process to stderr as RATCHET_LOGS says; SettingsError if that is nothing known.

    For processes of our own alone: Airflow's have its `[logging]`.
    """
    form = variables.get(FORM) or "text"
    if form not in ("text", "json"):
        raise SettingsError(f"{FORM}={form} is unknown; set it to text or json")
    last = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without local variables, which may hold passwords.
            structlog.processors.format_exc_info,
            last,
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def quiet_clients() -> None:
    """Keep the chatter of client libraries out of a task's log, so that its one line can be found."""
    for name in ("kafka", "py4j", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def context_of(subject: Claim | SliceToken | str) -> dict[str, str | int]:
    """What a line says of its subject: a claim, a slice's token, or the name of a pipeline."""
    match subject:
        case Claim():
            return {"pipeline": subject.pipeline, "txid": subject.txid, "epoch": subject.epoch}
        case SliceToken():
            return {
                "pipeline": subject.pipeline,
                "txid": subject.txid,
                "epoch": subject.epoch,
                "slice": subject.slice,
                "try": subject.try_number,
            }
        case _:
            return {"pipeline": subject}


@contextmanager
def about(subject: Claim | SliceToken | str) -> Iterator[None]:
    """Bind the subject to every line written in this block, by this library or by any other."""
    with bound_contextvars(**context_of(subject)):
        yield
