"""Loads what tasks import where tasks are forked from, so that none of them spends its first half second on imports.

What users write is read from disk by each task, as it is then. So is this project, where its files have changed since
they were loaded here: a task whose code is not that of its checkout would work with an older version for as long as
the scheduler runs.
"""

import importlib
import os
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = (
    "kafka",
    "pandas",
    "psycopg",
    "pyarrow",
    "pyspark.sql.connect.session",
    "sqlalchemy.dialects.postgresql",
    "airflow.sdk.execution_time.task_runner",
)
OWN = (
    "ratchet.airflow.connect",
    "ratchet.airflow.factory",
    "ratchet.airflow.maintenance",
    "ratchet.operate.attention",
    "ratchet.protocol.another",
    "ratchet.protocol.begin",
    "ratchet.protocol.commit",
    "ratchet.operate.upkeep",
    "ratchet.source.kafka",
)
FORKS_TASKS = {"scheduler", "worker"}
"""`airflow scheduler` with the LocalExecutor, `airflow celery worker`."""


def forget_changed(loaded: bytes) -> None:
    """In a process that was just forked: forget this project's modules if their files are not what was loaded."""
    if digest() != loaded:
        for module in [name for name in sys.modules if name.partition(".")[0] == "ratchet"]:
            del sys.modules[module]


def digest() -> bytes:
    """A hash of this project's files; of none, while somebody puts others in their place."""
    found = sha256()
    try:
        for file in sorted(Path(root()).rglob("*.py")):
            found.update(file.read_bytes())
    except OSError:
        return b""
    return found.digest()


def root() -> str:
    """Where the package is."""
    spec = find_spec("ratchet")
    assert spec is not None and spec.submodule_search_locations is not None, "the package is installed"
    return spec.submodule_search_locations[0]


if FORKS_TASKS & set(sys.argv):
    for library in LIBRARIES:
        importlib.import_module(library)
    # Before it is loaded: what changes meanwhile is then taken for changed. And whether or not all of it can be loaded:
    # what a broken version has left here must go once it is mended.
    LOADED = digest()
    os.register_at_fork(after_in_child=lambda: forget_changed(LOADED))
    for module in OWN:
        importlib.import_module(module)
