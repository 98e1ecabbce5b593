"""A transaction's trace, made from what the ledger has of it: one trace for each revision, whole after its commit.

Ids follow from pipeline, txid and revision, so a trace that is sent twice is the same one, and whoever knows the
transaction can find it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from ratchet.operate.snapshot.transaction import Revision, Slice, Whole

_SCOPE = InstrumentationScope("ratchet")
Value = str | bool | int | float


def trace_id(pipeline: str, txid: int, revision: int) -> int:
    """The id of a transaction's trace, 128 bits."""
    return _number(16, pipeline, txid, revision)


def spans(of: Whole, revision: int, resource: Resource) -> Iterator[ReadableSpan]:
    """The spans of a committed revision: the whole, each slice's latest try that has voted, and the commit.

    A slice's span has the Spark application that worked on it, and how long each of its steps took.
    """
    row = next(row for row in of.revisions if row.revision == revision)
    if row.committed_at is None:
        raise ValueError(f"{of.pipeline}: transaction {of.txid}, revision {revision} is not committed")
    made = _Trace(of, row, resource)
    yield made.whole(row.committed_at)
    for part in of.slices:
        if part.epoch == row.epoch and part.tried_at and part.voted_at:
            yield made.slice(part, part.tried_at, part.voted_at)
    if row.prepared_at:
        yield made.span("commit", ("commit",), row.prepared_at, row.committed_at, {})


class _Trace:
    def __init__(self, of: Whole, row: Revision, resource: Resource):
        self._of, self._row, self._resource = of, row, resource
        self._key = (of.pipeline, of.txid, row.revision)
        self._root = self._context("transaction")
        self._about: dict[str, Value] = {
            "ratchet.pipeline": of.pipeline,
            "ratchet.txid": of.txid,
            "ratchet.revision": row.revision,
        }

    def whole(self, committed_at: datetime) -> ReadableSpan:
        of, row = self._of, self._row
        history = [event for event in of.history if event.revision == row.revision]
        return ReadableSpan(
            f"{of.pipeline} transaction",
            context=self._root,
            resource=self._resource,
            attributes={
                **self._about,
                "ratchet.epoch": row.epoch,
                "ratchet.records": row.records or 0,
                "ratchet.failures": row.failures,
                "ratchet.code": row.code,
                "airflow.dag_id": row.dag_id,
                "airflow.run_id": row.run_id,
                **{f"ratchet.rows.{sink}": rows for sink, rows in row.rows.items()},
                **{f"ratchet.range.{r.topic}-{r.partition}": f"{r.from_offset}-{r.until_offset}" for r in of.ranges},
            },
            events=[
                Event(event.move, {"who": event.who, "epoch": event.epoch}, _nanoseconds(event.at)) for event in history
            ],
            status=Status(StatusCode.OK),
            start_time=_nanoseconds(row.opened_at),
            end_time=_nanoseconds(committed_at),
            instrumentation_scope=_SCOPE,
        )

    def slice(self, part: Slice, tried_at: datetime, voted_at: datetime) -> ReadableSpan:
        about: dict[str, Value] = {
            "ratchet.slice": part.slice,
            "ratchet.epoch": part.epoch,
            "ratchet.try": part.try_number,
            "ratchet.records": part.records or 0,
            "ratchet.dead_letters": part.dead_letters or 0,
            **{f"ratchet.seconds.{step}": seconds for step, seconds in part.seconds.items()},
        }
        if part.application_id:
            about["spark.application_id"] = part.application_id
        return self.span(f"slice {part.slice}", ("slice", part.slice), tried_at, voted_at, about)

    def span(
        self, name: str, key: tuple[object, ...], start: datetime, end: datetime, about: Mapping[str, Value]
    ) -> ReadableSpan:
        return ReadableSpan(
            name,
            context=self._context(*key),
            parent=self._root,
            resource=self._resource,
            attributes={**self._about, **about},
            start_time=_nanoseconds(start),
            end_time=_nanoseconds(end),
            instrumentation_scope=_SCOPE,
        )

    def _context(self, *key: object) -> SpanContext:
        span_id = _number(8, *self._key, *key)
        return SpanContext(trace_id(*self._key), span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _number(size: int, *of: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=size).digest(), "big")


def _nanoseconds(at: datetime) -> int:
    return int(at.timestamp() * 1e6) * 1000
