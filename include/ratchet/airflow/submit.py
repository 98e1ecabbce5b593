"""A try at a slice by spark-submit, through the provider's operator; secrets go by a file, never by an argument."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from ratchet.airflow.connections import SparkTarget
from ratchet.errors import FAILED_FOR_GOOD, Fenced, Refused, SettingsError, TransformError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import SliceToken
from ratchet.spark.servers import Servers

SECRETS_FILE = "RATCHET_SECRETS_FILE"
"""Names the file, readable by its user alone, that tells the driver the ledger's URL, Kafka's properties and the
connections that the spec's formats name."""
SPARK_JARS = "RATCHET_SPARK_JARS"
"""Spark's Kafka jars, separated by commas, where the connection's extra names none."""


def check(target: SparkTarget) -> None:
    """SettingsError if a driver started there could not be told the secrets."""
    if target.cluster_mode and not _is_yarn(target) and "secrets-file" not in target.extra:
        raise SettingsError(
            f"connection {target.connection!r}: in deploy-mode cluster the driver cannot see this machine's files; "
            "mount a JSON file with ledger_url and kafka into the driver and put its path into the connection's "
            "extra as secrets-file, or use deploy-mode client"
        )


class SubmitJob:
    """spark-submit of `jobs/process_slice.py`; its arguments are the token and nothing else."""

    def __init__(self, target: SparkTarget, token: SliceToken, ledger: Ledger, servers: Servers, context: Any):
        self._target, self._token, self._ledger, self._context = target, token, ledger, context
        self._secrets = {
            "ledger_url": ledger.url,
            "kafka": servers.kafka,
            "connections": {name: asdict(endpoint) for name, endpoint in servers.endpoints.items()},
        }
        self._operator: SparkSubmitOperator | None = None

    def run(self) -> str:
        """Raises Refused with the reason when the driver voted no, TransformError when another try cannot mend it, else
        what the provider raises.
        """
        token = self._token
        with secrets_file(self._secrets) as path:
            # The driver is our child's child: it inherits this, and no command line shows it.
            os.environ[SECRETS_FILE] = str(path)
            os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            self._operator = self._compose(path)
            try:
                # Past the guard against operators inside operators, which would warn in every log.
                unguarded = SparkSubmitOperator.execute.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]: functools.wraps
                unguarded(self._operator, self._context)
            except Exception as error:
                raise self._reason() or _final(error) or error from error
        return f"{token}: the submitted driver has voted"

    def stop(self) -> None:
        if self._operator is not None:
            self._operator.on_kill()

    def _compose(self, secrets: Path) -> SparkSubmitOperator:
        token, extra = self._token, self._target.extra
        where: dict[str, Any] = {}
        if self._target.cluster_mode:
            shipped = _is_yarn(self._target)
            where["env_vars"] = {SECRETS_FILE: secrets.name if shipped else extra["secrets-file"]}
            where["files"] = str(secrets) if shipped else None
        return SparkSubmitOperator(
            task_id="submit",
            conn_id=self._target.connection,
            application=str(_application()),
            application_args=[token.pipeline, *map(str, token.numbers)],
            name=f"{token.pipeline} {token.dotted}",
            jars=extra.get("jars") or os.environ.get(SPARK_JARS),
            py_files=extra.get("py-files"),
            conf=dict(extra.get("conf") or {}),
            # A saved driver id survives a clear and would answer for another try.
            durable=False,
            **where,
        )

    def _reason(self) -> Exception | None:
        """Why the ledger says that this try is over; the driver's own words come back this way."""
        token = self._token
        with self._ledger.begin() as conn:
            row = read_transaction(conn, token.pipeline, token.txid, token.revision)
        where = f"{token.pipeline}: {token}"
        if row.epoch != token.epoch:
            return Fenced(f"{where}: epoch {row.epoch} has begun; this try of epoch {token.epoch} counts for nothing")
        if row.state == State.ABORTED:
            return Refused(f"{where} is aborted: {row.reason}; the next run tries it again in a new epoch")
        return None


def _final(error: Exception) -> TransformError | None:
    """What the driver's exit status says; only a driver that is our child's child has one."""
    if f"Error code is: {FAILED_FOR_GOOD}." not in str(error):
        return None
    return TransformError("the submitted driver failed for good; its last lines, above, say why")


@contextmanager
def secrets_file(secrets: dict[str, Any]) -> Iterator[Path]:
    """A JSON file that its user alone can read, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="ratchet-") as directory:
        path = Path(directory, "secrets.json")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(secrets, file)
        yield path


def _application() -> Path:
    """`jobs/process_slice.py`, wherever package `jobs` is installed."""
    found = importlib.util.find_spec("jobs.process_slice")
    if found is None or not found.origin:
        raise SettingsError("package jobs has no module process_slice; install the project again")
    return Path(found.origin)


def _is_yarn(target: SparkTarget) -> bool:
    return "yarn" in target.url
