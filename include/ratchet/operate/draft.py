"""A draft of a pipeline: columns that the first records of a topic suggest, and the files of spec and transform."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from ratchet.errors import SettingsError, SpecError
from ratchet.formats.offered import column_name
from ratchet.spec.columns import Column, parse_columns
from ratchet.spec.pipeline import Pipeline
from ratchet.spec.types import quoted

LOOK = 100
"""So many values are looked at."""
SINKS = ("append", "upsert", "accumulate")


@dataclass(frozen=True)
class Draft:
    """What a person has chosen; `columns`, `key` and `total` are declarations such as `id bigint, at timestamp`."""

    name: str
    topic: str
    columns: str
    sink: str
    key: str | None = None
    total: str | None = None
    """What an Accumulate sums."""
    order: str | None = None
    """The column by which an Upsert tells the last row of a key."""
    has_transform: bool = False
    format: str = "Json"
    """The format of the values."""
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    """What else the format is given, by its fields."""
    notes: tuple[str, ...] = ()
    """What a reader of the spec should know of its columns."""

    def spec(self) -> str:
        """The module of the spec."""
        kind = self.sink.capitalize()
        transform = [f'    transform="jobs.{self.name}:transform",'] if self.has_transform else []
        given = "".join(f", {name}={_text(value)}" for name, value in self.given.items())
        lines = [
            f"from ratchet import {', '.join(sorted((self.format, 'Pipeline', 'Topic', kind)))}",
            "",
            *(f"# {_printable(note)}" for note in self.notes),
            "PIPELINE = Pipeline(",
            f"    name={_text(self.name)},",
            f"    source=Topic({_text(self.topic)}, value={self.format}({_text(self.columns)}{given})),",
            *transform,
            f"    sinks=[{kind}({_text(self.name)}, {self._given()})],",
            ")",
        ]
        return "\n".join(lines) + "\n"

    def _given(self) -> str:
        columns = parse_columns(self.columns)
        if self.sink == "append":
            return f"columns={_text(_declared(columns))}"
        if not self.key:
            raise SettingsError(f"{self.sink} needs --key, such as --key 'id bigint'")
        key = f"key={_text(self.key)}"
        if self.sink == "accumulate":
            total = f"sum={_text(self.total)}, " if self.total else ""
            return f'{key}, {total}count="records"'
        names = {column.name for column in parse_columns(self.key)}
        rest = _declared(c for c in columns if c.name not in names)
        return f"{key}, columns={_text(rest)}, order={_text(self.order or '')}"

    def transform(self) -> str:
        """The module of a transform that passes every record on."""
        return (
            "import pyarrow as pa\n\n\n"
            f"def transform({self.name}: pa.Table) -> dict[str, pa.Table]:\n"
            f'    """What becomes of each record; `ratchet preview {self.name}` shows it."""\n'
            f'    return {{"{self.name}": {self.name}}}\n'
        )

    def check(self) -> Pipeline:
        """The pipeline, if the spec is valid; SpecError or SettingsError where not."""
        said: dict[str, Any] = {}
        exec(compile(self.spec(), f"{self.name}.py", "exec"), said)  # noqa: S102
        return said["PIPELINE"]


def write(files: Mapping[Path, str]) -> None:
    """Write all of them, or none where one is there already."""
    there = [str(path) for path in files if path.exists()]
    if there:
        raise SettingsError(f"{', '.join(there)} is there already; nothing was written; choose another name")
    for path, text in files.items():
        with path.open("x") as file:
            file.write(text)


def suggested(values: Iterable[bytes | None]) -> str:
    """Columns for the fields that JSON objects have, in their order; SpecError where no value is one."""
    seen: dict[str, list[object]] = {}
    for value in values:
        try:
            found = json.loads(value or b"", parse_float=Decimal)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            for named, said in cast("dict[str, object]", found).items():
                seen.setdefault(named, []).append(said)
    columns: dict[str, str] = {}
    for named, said in seen.items():
        name = column_name(named)
        origin = "" if name == named else f" from {quoted(named)}"
        if name is not None:
            columns.setdefault(name, f"{name} {_type([one for one in said if one is not None])}{origin}")
    if not columns:
        raise SpecError("none of the first values is a JSON object with fields; name them by --columns")
    return ", ".join(columns.values())


def _type(said: list[object]) -> str:
    if said and all(isinstance(one, bool) for one in said):
        return "boolean"
    if said and all(isinstance(one, int) and not isinstance(one, bool) for one in said):
        return "bigint"
    if said and all(isinstance(one, int | Decimal) and not isinstance(one, bool) for one in said):
        scales = [-int(one.as_tuple().exponent) for one in said if isinstance(one, Decimal)]
        return f"decimal(38,{min(max([*scales, 0]), 18)})"
    if said and all(isinstance(one, str) for one in said):
        return "timestamp" if all(_is_moment(str(one)) for one in said) else "string"
    return "json" if any(isinstance(one, dict | list) for one in said) else "string"


def _is_moment(said: str) -> bool:
    try:
        return "T" in said and datetime.fromisoformat(said).tzinfo is not None
    except ValueError:
        return False


def _declared(columns: Iterable[Column]) -> str:
    """The columns of a sink: as those of the source, wherever these come from."""
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def _text(said: str) -> str:
    """A text as it stands in a module."""
    return json.dumps(said, ensure_ascii=False)


def _printable(said: str) -> str:
    """A text on one line, whatever names a schema has."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in said)
