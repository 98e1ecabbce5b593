"""Spans: what a writer knows of its positions, and when they vouch for it that none is there twice."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ratchet.sinks.spans import Span, are_apart

positions = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 2)), max_size=12)
cuts = st.lists(st.integers(0, 12), max_size=3)


def followed(rows: list[tuple[int, int, int]], ends: list[int]) -> Span:
    """The span of rows that come in parts."""
    span, start = Span(), 0
    for end in [*sorted(ends), len(rows)]:
        part = rows[start : max(start, end)]
        start = max(start, end)
        columns = [
            pa.array([row[n] for row in part], kind) for n, kind in enumerate((pa.int32(), pa.int64(), pa.int32()))
        ]
        span.add(pa.table(columns, names=["_partition", "_offset", "_n"]))
    return span


@given(positions, cuts)
def test_a_span_is_known_where_positions_ascend_in_each_partition_wherever_batches_end(rows, ends):
    of = {p: [(o, n) for q, o, n in rows if q == p] for p in {p for p, _, _ in rows}}
    ascends = all(places == sorted(set(places)) for places in of.values())
    expected = {p: (places[0][0], places[-1][0]) for p, places in of.items()} if ascends else None
    assert followed(rows, ends).known == expected


@given(positions, positions)
def test_writers_whose_spans_are_apart_share_no_record(one, other):
    spans = [followed(sorted(set(rows)), []).known for rows in (one, other)]
    records = [{(p, o) for p, o, _ in rows} for rows in (one, other)]
    if are_apart(spans):
        assert not records[0] & records[1]
    within = [o for p, o in records[1] if p in spans[0] and spans[0][p][0] <= o <= spans[0][p][1]]
    assert not (within and are_apart(spans))


def test_the_same_span_twice_is_not_apart():
    span = followed([(0, 1, 0), (0, 5, 0)], []).known
    assert not are_apart([span, span]) and are_apart([span]) and are_apart([])


def test_what_was_shuffled_is_not_followed_for_long():
    rows = [(n % 2, n, 0) for n in range(3_000)]
    assert followed(rows, []).known is None
