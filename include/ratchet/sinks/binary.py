"""Staged rows as PostgreSQL's binary COPY: Arrow batches, with what pgpq must be told of their types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import time
from uuid import UUID

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder
from pgpq.encoders import StringEncoderBuilder
from pgpq.schema import Jsonb

from ratchet.spec.columns import Column
from ratchet.spec.types import Array, Time, Type, Uuid, is_document

COPY_BEGINS, COPY_ENDS = b"PGCOPY\n\xff\r\n\x00" + bytes(8), b"\xff\xff"
"""What goes before and after the rows of a binary COPY."""


def wire_batch(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    """The batch with UUIDs as their 16 bytes, and times of day as microseconds; other columns as they are."""
    for column in columns:
        at = batch.schema.get_field_index(column.name)
        array = _wire(column.type, batch.column(at))
        if array is not batch.column(at):
            batch = batch.set_column(at, column.name, array)
    return batch


def encoder_of(schema: pa.Schema, columns: Sequence[Column]) -> ArrowToPostgresBinaryEncoder:
    """pgpq's encoder of a batch with this schema; documents, which are texts in Arrow, are jsonb."""
    documents = {c.name for c in columns if is_document(c.type)}
    builders = {
        field.name: StringEncoderBuilder.new_with_output(field, Jsonb())
        if field.name in documents
        else ArrowToPostgresBinaryEncoder.infer_encoder(field)
        for field in schema
    }
    return ArrowToPostgresBinaryEncoder.new_with_encoders(schema, builders)


def _wire(kind: Type, array: pa.Array) -> pa.Array:
    match kind:
        case Uuid():
            return pa.array([None if u is None else UUID(u).bytes for u in array.to_pylist()], pa.binary())
        case Time():
            return pa.array(map(_time, array.to_pylist()), pa.time64("us"))
        case Array(Time()):
            lists = [None if texts is None else list(map(_time, texts)) for texts in array.to_pylist()]
            return pa.array(lists, pa.list_(pa.time64("us")))
        case _:
            return array


def _time(text: str | None) -> time | None:
    return None if text is None else time.fromisoformat(text)
