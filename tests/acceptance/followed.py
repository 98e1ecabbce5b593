"""A page of the docs, followed to the letter in a directory of its own: its files written, its commands run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ratchet.dev.stack import CHECKOUT, Stack

BLOCK = re.compile(r"^## (.*?)$|^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = "elsewhere"
"""Marks what is not run here: the tests are installed already, and the terminal with the servers is `Followed`."""


@dataclass(frozen=True)
class Followed:
    """What a page finds: the installation, the packages that it adds modules to, and the servers."""

    home: Path
    env: dict[str, str]

    def run(self, page: str, seconds: int) -> dict[str, str]:
        """{number of a section: what its commands printed}; AssertionError where one fails."""
        command = ["bash", "-c", script(CHECKOUT / "docs" / page)]
        done = subprocess.run(command, cwd=self.home, env=self.env, capture_output=True, text=True, timeout=seconds)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        parts = re.split(r"^## (\d+)\. .*$", done.stdout, flags=re.MULTILINE)
        return dict(zip(parts[1::2], parts[2::2], strict=True))


@contextmanager
def followed(home: Path, servers: Path) -> Iterator[Followed]:
    """A checkout of its own after `ratchet stack up` and `ratchet stack env`."""
    for package in ("include/pipelines", "jobs"):
        shutil.copytree(CHECKOUT / package, home / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".venv", ".jars"):
        (home / name).symlink_to(CHECKOUT / name)
    path = os.pathsep.join([str(home / "include"), str(home)])
    with Stack(servers, env={"PYTHONPATH": path}) as stack:
        env = {
            **os.environ,
            "PYTHONPATH": path,
            "RATCHET_LEDGER_URL": stack.ledger_url,
            "RATCHET_KAFKA": json.dumps(stack.kafka),
            "RATCHET_SPARK": stack.spark,
            "RATCHET_AIRFLOW_URL": stack.airflow_url,
        }
        yield Followed(home, env)


def script(page: Path) -> str:
    """The page as one script for bash, which says in whose section it is."""
    lines = ["set -eu -o pipefail"]
    for heading, language, file, text in BLOCK.findall(page.read_text()):
        if heading:
            lines.append(f"echo '## {heading}'")
        elif language == "sh" and file != ELSEWHERE:
            lines.append(text)
        elif file and file != ELSEWHERE:
            lines.append(f"cat > {file} <<'end of file'\n{text}end of file")
    return "\n".join(lines)


def table(printed: str) -> list[list[str]]:
    """The rows that psql printed, header rows among them."""
    return [[cell.strip() for cell in line.split("|")] for line in printed.splitlines() if "|" in line]
