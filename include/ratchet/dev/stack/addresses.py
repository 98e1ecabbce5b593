"""The addresses of a stack that runs, in a file by which the `ratchet` command of the same checkout finds it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ratchet.dev.stack.checkout import CHECKOUT

DEMO = CHECKOUT / ".state" / "demo"
"""The state of the stack that `make demo` and `ratchet stack up` start."""


@dataclass(frozen=True)
class Addresses:
    """How a client reaches each server of a stack; None for one that the stack does not have."""

    ledger: str | None
    kafka: Mapping[str, str] | None
    spark: str | None
    airflow: str | None

    @property
    def variables(self) -> dict[str, str]:
        """The environment that names these servers to the `ratchet` command."""
        kafka = None if self.kafka is None else json.dumps(self.kafka)
        said = {
            "RATCHET_LEDGER_URL": self.ledger,
            "RATCHET_KAFKA": kafka,
            "RATCHET_SPARK": self.spark,
            "RATCHET_AIRFLOW_URL": self.airflow,
        }
        return {name: value for name, value in said.items() if value is not None}


def publish(home: Path, addresses: Addresses) -> None:
    """Write them for the other processes of this user; the ledger's has a password."""
    fresh = _file(home).with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(addresses), file)
    fresh.rename(_file(home))


def withdraw(home: Path) -> None:
    """Let nobody find the stack any more."""
    _file(home).unlink(missing_ok=True)


def published(home: Path) -> Addresses | None:
    """Those of the stack whose state is below `home`, if it is up; what a killed one has left counts for nothing."""
    if running(home) is None:
        return None
    try:
        return Addresses(**json.loads(_file(home).read_text()))
    except (OSError, ValueError, TypeError):
        # It is starting, is another user's, or is one of another version.
        return None


def running(home: Path) -> psutil.Process | None:
    """The process that runs the servers of `home`, if that very one lives; its id alone may be a stranger's by now."""
    try:
        pid, started = json.loads((Path(home) / "supervisor.pid").read_text())
        process = psutil.Process(pid)
        return process if abs(process.create_time() - started) < 1 else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None


def _file(home: Path) -> Path:
    return home / "addresses.json"
