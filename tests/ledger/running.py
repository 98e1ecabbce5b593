"""The command `ratchet`: (exit status, stdout, stderr) of a call with some variables in its environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest
from typer.testing import CliRunner

from ratchet.cli import app, main
from ratchet.command import variables


def apart(arguments: Sequence[str], env: dict[str, str]) -> tuple[int, str, str]:
    """What it is in a process of its own."""
    command = [sys.executable, "-m", "ratchet", *arguments]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def here(arguments: Sequence[str], env: dict[str, str]) -> tuple[int, str, str]:
    """What it is in this process, which takes a tenth of the time."""
    variables.cache_clear()
    with CliRunner().isolation(env=env) as (out, err, _):
        with pytest.raises(SystemExit) as ended:
            main(lambda: app(list(arguments), prog_name="ratchet"))
        said = out.getvalue().decode(), err.getvalue().decode()
    status = ended.value.code or 0
    assert isinstance(status, int)
    return status, *said
