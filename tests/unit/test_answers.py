"""The schemas of what commands print with --json: of each command that does, and as the docs have them."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator, ValidationError
from typer.main import get_command

from ratchet.answers import EXITS, answers, document
from ratchet.cli import app
from ratchet.command import FAULTS
from tests.answers import SCHEMAS, answer
from tests.unit.test_docs import ROOT, rows, section


def test_every_command_that_prints_json_has_a_schema_and_no_other():
    commands = get_command(app).commands
    printing = {name for name, of in commands.items() if any("--json" in param.opts for param in of.params)}
    assert printing == set(answers()) == {path.stem for path in SCHEMAS.glob("*.json")}


@pytest.mark.parametrize("command", sorted(answers()))
def test_the_schemas_of_the_docs_are_those_of_the_code(command):
    again = f"""python -c 'from ratchet.answers import document; print(document("{command}"), end="")'"""
    assert (SCHEMAS / f"{command}.json").read_text() == document(command), f"{again} > docs/schemas/{command}.json"
    Draft202012Validator.check_schema(json.loads(document(command)))


def test_what_lacks_a_field_or_has_another_is_refused():
    said = {"pipeline": "line", "first": 1, "last": 2, "rows": {"events": 16}, "dry_run": False, "said": []}
    assert answer("prune", json.dumps(said)) == said
    for wrong in ({**said, "more": 1}, {**said, "first": "1"}, {k: v for k, v in said.items() if k != "dry_run"}):
        with pytest.raises(ValidationError):
            answer("prune", json.dumps(wrong))


def test_the_exit_statuses_of_the_docs_are_those_of_the_code():
    text = section(ROOT / "docs" / "operations.md", "### Exit status")
    assert {int(code): meaning for code, meaning in rows(text)} == EXITS and FAULTS in EXITS
