"""The field: one whole stack with the hook in every Python process of it, and a pipeline for each line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import psycopg
from psycopg import sql

from ratchet.dev.stack import Stack
from ratchet.operate.migrate import migrate
from ratchet.spec.loading import load_pipelines
from tests.acceptance.runs import LASTING_DAGS

from . import inject
from .inject.ratchet_points import hook, points
from .lines.shape import GATE
from .points import Armoury
from .transforms import ASKED
from .victim import LINES, Victim

INJECT = Path(inject.__file__).parent


class Field:
    """The stack, the armoury that steers the hook in it, and the pipelines by name."""

    def __init__(self, stack: Stack, armoury: Armoury, victims: dict[str, Victim]):
        self.stack, self.armoury, self.victims = stack, armoury, victims

    @property
    def postgres_log(self) -> Path:
        """What PostgreSQL has written of itself."""
        return self.stack.home / "logs" / "postgres.log"


@contextmanager
def field(home: Path, names: set[str] | None = None, *, traced: bool = False) -> Iterator[Field]:
    """The stack below `home`, ended with the block; `names` of the pipelines, by default all.

    Where it is `traced`, PostgreSQL writes down each statement in the ledger's database from now on.
    """
    armoury, asked = Armoury(home / "faults"), home / "asked"
    asked.mkdir(parents=True, exist_ok=True)
    steered = {"RATCHET_PIPELINES": LINES, ASKED: str(asked), points.DIRECTORY: str(armoury.directory)}
    env = {**steered, **LASTING_DAGS, "PYTHONPATH": str(INJECT)}
    with patch.dict(os.environ, steered):
        specs = load_pipelines()
    hook.install(str(armoury.directory), "runner")
    wanted = sorted(names or specs)

    def prepare(stack: Stack) -> None:
        migrate(stack.ledger_url, specs.values())
        with psycopg.connect(stack.ledger_url, autocommit=True) as conn:
            gate = sql.SQL("create table if not exists {} (line text, until timestamptz)")
            conn.execute(gate.format(sql.Identifier(GATE)))
            conn.execute("create schema if not exists elsewhere")
        if traced:
            armoury.trace.touch()
            _log_statements(stack)

    here = patch.dict(os.environ, {ASKED: str(asked)})
    with here, Stack(home / "stack", env=env, before_airflow=prepare, say=lambda _: None) as stack:
        victims = {name: Victim(name, stack.ledger_url, stack.kafka, stack.airflow_url, asked, env) for name in wanted}
        try:
            for victim in victims.values():
                victim.reset()
            yield Field(stack, armoury, victims)
        finally:
            for victim in victims.values():
                victim.__exit__()
            hook.rest()


def _log_statements(stack: Stack) -> None:
    with psycopg.connect(stack.database_url("postgres"), autocommit=True) as conn:
        conn.execute("alter system set log_line_prefix = '%p|%d|%a> '")
        conn.execute("select pg_reload_conf()")
        conn.execute("alter database ratchet set log_statement = 'all'")
