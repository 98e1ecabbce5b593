"""The smallest format there can be: lines of text, one row each. It shows what adding a format takes: one such file."""

from __future__ import annotations

import pyarrow as pa

from ratchet.formats.port import Decoded
from ratchet.spec.columns import Column
from ratchet.spec.types import STRING
from ratchet.values.arrow import arrow_schema


class LinesDecoder:
    """Values that are lines of UTF-8."""

    columns = (Column("line", STRING, False),)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        lines: list[str] = []
        parents: list[int] = []
        errors: list[str | None] = []
        for number, value in enumerate(values.to_pylist()):
            try:
                found = value.decode().splitlines()
            except UnicodeDecodeError as error:
                errors.append(f"the value: found invalid UTF-8 at byte {error.start}, wanted lines of text")
                continue
            errors.append(None)
            lines += found
            parents += [number] * len(found)
        rows = pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=arrow_schema(self.columns))
        found_at_all = frozenset(["line"]) if lines else frozenset[str]()
        beside = {} if lines or None not in errors else {"line": frozenset[str]()}
        return Decoded(rows, pa.array(parents, pa.int32()), pa.array(errors, pa.string()), found_at_all, beside)
