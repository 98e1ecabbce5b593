"""What a command has printed with --json, held against the schema that the docs have of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "schemas"


@cache
def _validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((SCHEMAS / f"{command}.json").read_text()), format_checker=FormatChecker())


def answer(command: str, printed: str) -> Any:
    """The document; it fails where that is not one of the schema's."""
    document = json.loads(printed)
    _validator(command).validate(document)
    return document
