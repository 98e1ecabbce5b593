"""The pipelines that the page knows: their specs as they are on disk, and the ledgers that these name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from ratchet.airflow.connections import ledger_url
from ratchet.errors import SpecError
from ratchet.ledger.connection import Ledger
from ratchet.spec.loading import modules, package, read_specs
from ratchet.spec.pipeline import Pipeline

LOCK_SECONDS = 5
"""A migration may hold a table for longer than a person looks at a page."""
_Stamp = tuple[tuple[str, int, int], ...]


class Pipelines:
    """Specs and ledgers, kept between requests; a spec is read anew once a file of its package has changed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._specs: Mapping[str, Pipeline] = {}
        self._stamp: _Stamp | None = None
        self._ledgers: dict[tuple[str, bool], Ledger] = {}

    def specs(self) -> Mapping[str, Pipeline]:
        """Every spec that can be read, by name."""
        with self._lock:
            stamp = _stamp()
            if stamp != self._stamp:
                # The server outlives a deploy, and Python reads a module once.
                for module in modules():
                    sys.modules.pop(module, None)
                importlib.invalidate_caches()
                self._specs, self._stamp = read_specs()[0], stamp
            return self._specs

    def spec(self, name: str) -> Pipeline:
        """The spec of a pipeline; SpecError where there is none, or it cannot be read."""
        found = self.specs().get(name)
        if found is None:
            raise SpecError(f"there is no pipeline {name!r}, or its spec cannot be read; `ratchet validate` says why")
        return found

    def ledger(self, spec: Pipeline, *, waits: bool = False) -> Ledger:
        """The ledger that a spec names; SettingsError where its connection is missing or unfit.

        Locks are waited for only where it `waits`, as for a move: else Locked is raised after some seconds, since
        whoever waits keeps others from the page.
        """
        url, named = ledger_url(spec.ledger), (spec.ledger, waits)
        with self._lock:
            before = self._ledgers.get(named)
            if before is None or before.url != url:
                # Whoever works with the old one still has its connections until the request ends.
                seconds = 0 if waits else LOCK_SECONDS
                self._ledgers[named] = Ledger(url, "ratchet page", waits=False, lock_seconds=seconds)
            return self._ledgers[named]


def _stamp() -> _Stamp:
    """What tells the files of the specs' package from those of before."""
    files = sorted(file for folder in package().__path__ for file in Path(folder).glob("*.py"))
    stats = [(str(file), file.stat()) for file in files]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
