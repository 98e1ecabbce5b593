"""Which version of a pipeline's spec is deployed: in a campaign they change while everything happens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ratchet import Pipeline

DIRECTORY = "RATCHET_CAMPAIGN_DEPLOYED"
"""The variable that names the directory of what is deployed."""


def deployed(versions: Sequence[Pipeline]) -> Pipeline:
    """The version of which `deploy` has written the number; the first one where nothing was deployed."""
    file = Path(os.environ.get(DIRECTORY, os.devnull), versions[0].name)
    return versions[int(file.read_text()) if file.exists() else 0]


def deploy(directory: Path, name: str, number: int) -> None:
    """Let every process that imports the spec from now on have this version."""
    new = directory / f"{name}.new"
    new.write_text(str(number))
    new.rename(directory / name)
