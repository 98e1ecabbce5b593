"""A try at a slice through a Spark Connect server, in this process, with a tag that can be interrupted."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import SliceWork
from ratchet.logs import get_logger
from ratchet.protocol.failures import errors_recorded
from ratchet.protocol.process import process_slice
from ratchet.spark import failure
from ratchet.spark.engine import session_for
from ratchet.spark.servers import Servers
from ratchet.spark.slice import run_slice
from ratchet.spec.pipeline import Pipeline

SECONDS_TO_STOP = 10
"""A server that does not answer cannot be told to stop, and holds up nobody for longer."""


class ConnectJob:
    """The job function in a kept session of the server at `url`; every operation carries the try's tag."""

    def __init__(self, url: str, spec: Pipeline, work: SliceWork, ledger: Ledger, servers: Servers):
        self._url, self._spec, self._work, self._ledger, self._servers = url, spec, work, ledger, servers
        token = work.token
        self.tag = f"ratchet-{token.pipeline}-{token.txid}-{token.epoch}-{token.slice}-{token.try_number}"
        self._session: Any = None
        self._left = threading.Event()

    def run(self) -> str:
        recorded = errors_recorded(self._ledger, self._work.token)
        with recorded, session_for(self._spec, self._url) as session:
            session.addTag(self.tag)
            self._session = session
            try:
                run = partial(run_slice, session, self._spec, self._work, self._ledger.url, self._servers)
                return str(process_slice(self._ledger, self._spec, self._work, run))
            finally:
                self._session = None
                self._left.set()

    def stop(self) -> None:
        session = self._session
        if session is not None:
            threading.Thread(target=self._interrupt, args=(session,), daemon=True, name=f"stop of {self.tag}").start()
            # What the job has persisted in the kept session goes when it ends; this process may end sooner.
            self._left.wait(SECONDS_TO_STOP)

    def _interrupt(self, session: Any) -> None:
        try:
            session.interruptTag(self.tag)
        except Exception as error:
            # The try is fenced by the ledger, so it matters to nobody but the server.
            get_logger().warning(f"{self.tag} was not interrupted: {failure.said(error)}")
