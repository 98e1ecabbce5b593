"""Logs: one line says what was decided and why; every line names the pipeline, the txid and the epoch."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars

from ratchet.ledger.work import Claim, SliceToken


def get_logger() -> Any:
    """The logger of the library; inside Airflow its lines go to the task's log."""
    return structlog.get_logger("ratchet")


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
