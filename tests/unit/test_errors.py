"""Every error has a code of its own, which is explained."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from typer.main import get_command

from ratchet import errors
from ratchet.cli import app, main
from ratchet.errors import RatchetError
from ratchet.explained import EXPLAINED

DOCS = Path(__file__).resolve().parents[2] / "docs"
RAISED = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, RatchetError) and error is not RatchetError
]


def test_every_error_has_a_code_of_its_own_and_is_explained_once():
    assert all("code" in vars(error) for error in RAISED)
    assert sorted(one.code for one in EXPLAINED) == sorted(error.code for error in RAISED)
    assert all(one.code < other.code for one, other in pairwise(EXPLAINED))
    assert {one.error for one in EXPLAINED} == set(RAISED)


@pytest.mark.parametrize("one", EXPLAINED, ids=lambda one: one.code)
def test_what_a_remedy_names_is_there(one):
    commands = get_command(app).commands
    for step in one.steps:
        for command, rest in re.findall(r"`ratchet ([a-z-]+)([^`]*)`", step):
            options = {name for param in commands[command].params for name in param.opts}
            assert options >= set(re.findall(r"--[a-z-]+", rest)), step
        for page in re.findall(r"docs/[a-z-]+\.md", step):
            assert (DOCS.parent / page).exists(), step


@pytest.mark.parametrize("said", ["RAT-306", "rat-306", "306"])
def test_a_code_is_explained_however_it_is_written(said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(lambda: app(["explain", said]))
    said = capsys.readouterr().out
    assert ended.value.code == 0 and said.startswith("RAT-306 RecordsLost: Kafka no longer has records")
    assert "ratchet accept-loss NAME --dry-run" in said


def test_a_code_that_is_none_is_refused_with_all_there_are(capsys):
    with pytest.raises(SystemExit) as ended:
        main(lambda: app(["explain", "RAT-999"]))
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert said.startswith("error RAT-102: there is no error code RAT-999; there are RAT-101, ")
