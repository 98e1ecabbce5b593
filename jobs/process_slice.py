"""The application that spark-submit runs: one try at one slice.

`process_slice.py PIPELINE TXID REVISION EPOCH SLICE TRY NONCE`

The ledger's URL, Kafka's properties and the connections that formats name come from the environment
(RATCHET_LEDGER_URL, RATCHET_KAFKA, RATCHET_CONNECTIONS) or from the JSON file that RATCHET_SECRETS_FILE names; never
from an argument, which everybody on the machine can read.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from threading import Thread

from ratchet.errors import FAILED_FOR_GOOD, WORTH_ANOTHER_TRY, RatchetError, SettingsError
from ratchet.ledger.connection import Ledger
from ratchet.ledger.work import SliceToken
from ratchet.logs import about, choose_form, get_logger
from ratchet.protocol.failures import errors_recorded
from ratchet.protocol.process import process_slice
from ratchet.protocol.votes import load_work
from ratchet.spark.engine import driver_session
from ratchet.spark.servers import Servers
from ratchet.spark.slice import run_slice
from ratchet.spec.loading import load_pipeline
from ratchet.values.endpoint import CONNECTIONS, endpoints_of
from ratchet.values.withheld import kept_out


def main(arguments: list[str]) -> None:
    """Process the slice that the arguments name."""
    token = token_of(arguments)
    ledger_url, servers = secrets()
    spec = load_pipeline(token.pipeline)
    with kept_out(spec.private), Ledger(ledger_url) as ledger, errors_recorded(ledger, token):
        work = load_work(ledger, spec, token)
        spark = driver_session(f"{token.pipeline} {token.dotted}", quiet=spec.private)
        try:
            with about(token):
                done = process_slice(ledger, spec, work, lambda: run_slice(spark, spec, work, ledger_url, servers))
                get_logger().info(str(done))
        finally:
            spark.stop()


def end_with_parent(seconds: float = 1.0) -> None:
    """End this process soon after the JVM that has started it.

    A JVM that is killed takes nobody along: its driver would stay for as long as the transform does not ask it.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=watch, daemon=True, name="end with parent").start()


def token_of(arguments: list[str]) -> SliceToken:
    """The token that the arguments name; SettingsError when they name none."""
    if len(arguments) != 7 or not all(re.fullmatch("[0-9]{1,19}", number) for number in arguments[1:]):
        raise SettingsError(
            f"process_slice takes PIPELINE TXID REVISION EPOCH SLICE TRY NONCE, six numbers, not {arguments}"
        )
    txid, revision, epoch, number, try_number, nonce = map(int, arguments[1:])
    return SliceToken(arguments[0], txid, epoch, number, try_number, revision, nonce)


def secrets() -> tuple[str, Servers]:
    """The ledger's URL and the other servers; SettingsError when they are missing, unfit or open to others."""
    file = os.environ.get("RATCHET_SECRETS_FILE")
    if file:
        said = _json("RATCHET_SECRETS_FILE", _private(Path(file)))
        if not isinstance(said, dict) or not isinstance(said.get("ledger_url"), str):
            raise SettingsError(
                "the file that RATCHET_SECRETS_FILE names has no ledger_url; give it ledger_url and kafka"
            )
        kafka = _properties("RATCHET_SECRETS_FILE", said.get("kafka"))
        return said["ledger_url"], Servers(kafka, endpoints_of("RATCHET_SECRETS_FILE", said.get("connections", {})))
    try:
        url, kafka = os.environ["RATCHET_LEDGER_URL"], os.environ["RATCHET_KAFKA"]
    except KeyError as missing:
        raise SettingsError(f"{missing.args[0]} is not set, nor is RATCHET_SECRETS_FILE; set one of them") from None
    connections = _json(CONNECTIONS, os.environ.get(CONNECTIONS, "{}").encode())
    properties = _properties("RATCHET_KAFKA", _json("RATCHET_KAFKA", kafka.encode()))
    return url, Servers(properties, endpoints_of(CONNECTIONS, connections))


def _json(where: str, said: bytes) -> object:
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        # Not shown: it may hold a password.
        raise SettingsError(f"{where}: what it holds is no JSON") from None


def _properties(where: str, said: object) -> dict[str, str]:
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        raise SettingsError(f'{where}: Kafka\'s properties are no JSON object of texts, as {{"bootstrap.servers": …}}')
    return said


def _private(file: Path) -> bytes:
    """What is in the file of secrets; SettingsError when it cannot be read, or can be by others."""
    try:
        _check_private(file)
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(f"RATCHET_SECRETS_FILE: {error}") from None


def _check_private(file: Path) -> None:
    """As libpq has it for keys: the owner alone, or root's file that a group may read, as Kubernetes mounts it."""
    found = file.stat()
    root_s = found.st_uid == 0 and os.geteuid() != 0
    if found.st_mode & (0o037 if root_s else 0o077):
        raise SettingsError(f"{file} can be read by other users; chmod 600 it")


if __name__ == "__main__":
    try:
        end_with_parent()
        choose_form()
        main(sys.argv[1:])
    except RatchetError as error:
        # The lines of a person's own code that led to it are its notes.
        said = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        get_logger().error(said, code=error.code)
        sys.exit(1 if isinstance(error, WORTH_ANOTHER_TRY) else FAILED_FOR_GOOD)
