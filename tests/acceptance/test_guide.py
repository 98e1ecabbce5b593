"""docs/guide.md, followed to the letter in a directory of its own: its files written, its commands run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.dev.stack import CHECKOUT, Stack

pytestmark = pytest.mark.timeout(420)

BLOCK = re.compile(r"^## (.*?)$|^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = "elsewhere"
"""Marks what is not run here: the tests are installed already, and a fixture is the terminal with the servers."""


@pytest.fixture(scope="module")
def checkout(scratch: Path) -> Path:
    """What the guide finds: the installation, and the packages that it adds modules to."""
    home = scratch / "guide"
    for package in ("include/pipelines", "jobs"):
        shutil.copytree(CHECKOUT / package, home / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".venv", ".jars"):
        (home / name).symlink_to(CHECKOUT / name)
    return home


@pytest.fixture(scope="module")
def env(checkout: Path, scratch: Path) -> Iterator[dict[str, str]]:
    """The environment after `ratchet stack up` and what `ratchet stack env` prints."""
    path = os.pathsep.join([str(checkout / "include"), str(checkout)])
    with Stack(scratch / "guide-stack", env={"PYTHONPATH": path}) as stack:
        yield {
            **os.environ,
            "PYTHONPATH": path,
            "RATCHET_LEDGER_URL": stack.ledger_url,
            "RATCHET_KAFKA": json.dumps(stack.kafka),
            "RATCHET_SPARK": stack.spark,
            "RATCHET_AIRFLOW_URL": stack.airflow_url,
        }


def script() -> str:
    """The guide as one script for bash, which says in whose section it is."""
    lines = ["set -eu -o pipefail"]
    for heading, language, file, text in BLOCK.findall((CHECKOUT / "docs" / "guide.md").read_text()):
        if heading:
            lines.append(f"echo '## {heading}'")
        elif language == "sh" and file != ELSEWHERE:
            lines.append(text)
        elif file and file != ELSEWHERE:
            lines.append(f"cat > {file} <<'end of file'\n{text}end of file")
    return "\n".join(lines)


def sections(output: str) -> dict[str, str]:
    """{number of a section: what its commands printed}."""
    parts = re.split(r"^## (\d+)\. .*$", output, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table(printed: str) -> list[list[str]]:
    """The rows that psql printed, header rows among them."""
    return [[cell.strip() for cell in line.split("|")] for line in printed.splitlines() if "|" in line]


@pytest.mark.all
def test_the_guide_works_as_it_is_written(checkout, env):
    done = subprocess.run(["bash", "-c", script()], cwd=checkout, env=env, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said = sections(done.stdout)

    assert re.search(r"^1 passed", said["4"], re.MULTILINE)
    assert "orders: orders → jobs.orders:transform over pyspark.sql.DataFrame → orders, turnover" in said["5"]
    assert re.search(r"orders: orders: created .*public\.orders.*, created view orders\n", said["5"])
    assert said["7"].strip() == '"state":"success"'

    rows = table(said["8"])
    orders = [row[:3] + row[5:] for row in rows if len(row) == 6]
    assert orders == [
        ["id", "customer", "amount", "_txid"],
        ["1", "ada", "12.50", "1"],
        ["2", "bob", "3.00", "1"],
        ["3", "ada", "0.99", "1"],
    ]
    assert ["ada", "13.49", "2", "1"] in rows and ["bob", "3.00", "1", "1"] in rows
    errors = {row[3]: row[2] for row in rows if len(row) == 4 and row[0].isdigit()}
    assert errors == {
        '{"id": 4, "amount": 7.00}': "an order without id, customer or amount",
        '{"id": 5, "customer": "eve", "amou': 'the value: found {"id": 5, "customer": "eve", "amou, wanted one JSON '
        "object (Input data was truncated)",
    }
    assert ["1", "COMMITTED", "1", "5", "first"] in rows

    failed, ended = re.findall(r'"state":"(\w+)"', said["9"])
    assert (failed, ended) == ("failed", "success")
    rows = table(said["9"])
    assert ["bob", "7.25", "2", "2"] in rows and ["ada", "13.49", "2", "1"] in rows
    assert ["2", "COMMITTED", "2", "1", "second"] in rows
