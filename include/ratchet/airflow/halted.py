"""Calls what a spec names in `on_halt`: functions, and notifiers of Airflow's own kind."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING

from airflow.sdk.bases.notifier import BaseNotifier

from ratchet.airflow.arguments import called
from ratchet.logs import get_logger
from ratchet.values.withheld import named

if TYPE_CHECKING:
    from ratchet.ledger.connection import Ledger
    from ratchet.protocol.halt import Halt
    from ratchet.spec.pipeline import Pipeline

LONGEST_SECONDS = 30
"""Who has not returned by then was not told; the task that calls goes on."""


def tell(ledger: Ledger, spec: Pipeline, who: str) -> None:
    """Tell those whom the spec names of the halt of its line, if it is halted and they have not been; never raises."""
    if not spec.on_halt:
        return
    from ratchet.protocol import notices

    try:
        for notice in notices.tell(ledger, spec, who, lambda name, halt: _told(spec, name, halt)):
            log = get_logger()
            (log.info if notice.error is None else log.error)(str(notice))
    except Exception as error:
        # What a task is there for is done, and maintenance tells what is left to be told.
        said = named(error) if spec.private else f"{type(error).__name__}: {error}"
        get_logger().error(f"nobody may have been told of the halt: {said}")


def _told(spec: Pipeline, name: str, halt: Halt) -> str | None:
    """Call what is named so, for so long at most; what went wrong, in a line."""
    went_wrong = [f"it has not returned within {LONGEST_SECONDS} s"]

    def work() -> None:
        try:
            _call(name, halt)
            went_wrong.clear()
        except Exception as error:
            went_wrong[:] = [named(error) if spec.private else " ".join(f"{type(error).__name__}: {error}".split())]

    # A daemon: a task ends though what it has called does not.
    thread = threading.Thread(target=work, name=f"on_halt {name}", daemon=True)
    thread.start()
    thread.join(LONGEST_SECONDS)
    return next(iter(list(went_wrong)), None)


def _call(name: str, halt: Halt) -> None:
    found = called(name, "on_halt")
    if isinstance(found, BaseNotifier):
        # It renders its templates in place.
        copy.copy(found)({"halt": halt})
    else:
        found(halt)
