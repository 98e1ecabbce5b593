"""The schemas of what commands print with --json: of each command that does, and as the docs have them."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator, ValidationError
from typer.main import get_command

from ratchet.answers import answers, document
from ratchet.cli import app
from tests.answers import SCHEMAS, answer


def test_every_command_that_prints_json_has_a_schema_and_no_other():
    commands = get_command(app).commands
    printing = {name for name, of in commands.items() if any("--json" in param.opts for param in of.params)}
    assert printing == set(answers()) == {path.stem for path in SCHEMAS.glob("*.json")}


@pytest.mark.parametrize("command", sorted(answers()))
def test_a_schema_is_one(command):
    Draft202012Validator.check_schema(json.loads(document(command)))


def test_what_lacks_a_field_or_has_another_is_refused():
    said = {"pipeline": "line", "first": 1, "last": 2, "rows": {"events": 16}, "dry_run": False, "said": []}
    assert answer("prune", json.dumps(said)) == said
    for wrong in ({**said, "more": 1}, {**said, "first": "1"}, {k: v for k, v in said.items() if k != "dry_run"}):
        with pytest.raises(ValidationError):
            answer("prune", json.dumps(wrong))
