"""What becomes of a record, in plain Python: beside a transform stands a function of its name after `plain_`."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module

from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline

Made = dict[str, list[dict]]
"""{sink: rows}; a row is a dict of columns, with `_n` and `_deleted` where they are not 0 and False."""
Plain = Callable[[bytes | None, bytes | None], Made]
"""From a record's key and value to its rows."""

GIVEN_UP: Made = {DEAD_LETTERS: [{}]}
NOTHING: Made = {}


def plain_of(spec: Pipeline) -> Plain:
    """The plain Python beside a pipeline's transform."""
    module, _, function = spec.transform.partition(":")
    return getattr(import_module(module), f"plain_{function}")


def plain_numbers(name: str, value: bytes, *, given_up: int | None = None) -> Made:
    """The transform of a line, which has records `{"k": …, "v": …}`, its rows, sums and last rows, and nothing else.

    A record that is no JSON is given up, as is one whose `v` is a multiple of `given_up`.
    """
    try:
        row = json.loads(value)
    except ValueError:
        return GIVEN_UP
    if given_up is not None and row["v"] % given_up == 0:
        return GIVEN_UP
    return {f"{name}_{sink}": [row] for sink in ("rows", "sums", "last")}
