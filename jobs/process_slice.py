"""The application that spark-submit runs: one try at one slice.

`process_slice.py PIPELINE TXID REVISION EPOCH SLICE TRY`


The ledger's URL and Kafka's properties come from the environment (RATCHET_LEDGER_URL, RATCHET_KAFKA) or from the
JSON file that RATCHET_SECRETS_FILE names; never from an argument, which everybody on the machine can read.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ratchet.errors import FAILED_FOR_GOOD, WORTH_ANOTHER_TRY, RatchetError, SettingsError
from ratchet.ledger import Ledger
from ratchet.spark.engine import driver_session, process_slice
from ratchet.specs import load_pipeline
from ratchet.transaction import SliceToken
from ratchet.votes import errors_recorded, load_work


def main(arguments: list[str]) -> None:
    """Process the slice that the arguments name."""
    if len(arguments) != 6:
        raise SettingsError(
            f"process_slice takes PIPELINE TXID REVISION EPOCH SLICE TRY, not {len(arguments)} arguments"
        )
    name, *numbers = arguments
    txid, revision, epoch, number, try_number = map(int, numbers)
    token = SliceToken(name, txid, epoch, number, try_number, revision)
    ledger_url, kafka = secrets()
    spec = load_pipeline(name)
    with Ledger(ledger_url) as ledger, errors_recorded(ledger, token):
        work = load_work(ledger, spec, token)
        spark = driver_session(f"{name} {'.'.join(numbers)}")
        try:
            print(process_slice(spark, ledger, spec, work, kafka))
        finally:
            spark.stop()


def secrets() -> tuple[str, dict[str, str]]:
    """The ledger's URL and Kafka's properties; SettingsError when they are missing or open to others."""
    file = os.environ.get("RATCHET_SECRETS_FILE")
    if file:
        _check_private(Path(file))
        said = json.loads(Path(file).read_text())
        return said["ledger_url"], said["kafka"]
    try:
        return os.environ["RATCHET_LEDGER_URL"], json.loads(os.environ["RATCHET_KAFKA"])
    except KeyError as missing:
        raise SettingsError(f"{missing.args[0]} is not set, nor is RATCHET_SECRETS_FILE; set one of them") from None


def _check_private(file: Path) -> None:
    """As libpq has it for keys: the owner alone, or root's file that a group may read, as Kubernetes mounts it."""
    found = file.stat()
    root_s = found.st_uid == 0 and os.geteuid() != 0
    if found.st_mode & (0o037 if root_s else 0o077):
        raise SettingsError(f"{file} can be read by other users; chmod 600 it")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except RatchetError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1 if isinstance(error, WORTH_ANOTHER_TRY) else FAILED_FOR_GOOD)
