"""JSON in the framing of a registry: the schema that a value names must be there; the value itself is read as any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from ratchet.formats.framing import Framing
from ratchet.formats.port import Decoded, Decoder, NoRow
from ratchet.formats.registry import Registry, SchemaId
from ratchet.spec.columns import Column
from ratchet.values.unfit import excerpt


class RegisteredJson:
    """Takes the framing off and gives the rest to a decoder of JSON."""

    def __init__(self, decoder: Decoder, registry: Registry, framing: Framing):
        self._decoder, self._registry, self._framing = decoder, registry, framing

    @property
    def columns(self) -> tuple[Column, ...]:
        return self._decoder.columns

    def decode(self, values: pa.BinaryArray, headers: pa.ListArray | None = None) -> Decoded:
        """As the decoder does; a value whose schema is not there, or is none of JSON Schema, is an error."""
        errors: list[str | None] = [None] * len(values)
        kept: list[bytes] = []
        numbers: list[int] = []
        wrong: dict[SchemaId, str | None] = {}
        framed = self._framing.framed(values, headers)
        for i, (value, of) in enumerate(zip(values.to_pylist(), framed, strict=True)):
            why = str(of) if isinstance(of, NoRow) else self._why_not(of.schema, wrong)
            if isinstance(of, NoRow) or why is not None:
                errors[i] = why
                continue
            kept.append(value[of.start :])
            numbers.append(i)
        decoded = self._decoder.decode(pa.array(kept, pa.binary()))
        at = np.array(numbers, np.int32)
        for i, error in zip(numbers, decoded.errors.to_pylist(), strict=True):
            errors[i] = error
        parents = pa.array(at[decoded.parents.to_numpy()], pa.int32())
        return replace(decoded, parents=parents, errors=pa.array(errors, pa.string()))

    def _why_not(self, number: SchemaId, wrong: dict[SchemaId, str | None]) -> str | None:
        """Why no value may name this schema, as the registry has said once for this batch; None where it may."""
        if number not in wrong:
            try:
                kind = self._registry.schema(number).kind
                said = f"the value: schema {number} is of {excerpt(kind)}, wanted one of JSON"
                wrong[number] = None if kind == "JSON" else said
            except NoRow as reason:
                wrong[number] = str(reason)
        return wrong[number]
