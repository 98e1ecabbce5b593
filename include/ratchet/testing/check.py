"""Checks that hold for the transform of every pipeline; what fails is an AssertionError that names the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from ratchet.errors import RatchetError
from ratchet.sinks.lookup import sinks_of
from ratchet.sinks.types import POSITION
from ratchet.spec.pipeline import Pipeline
from ratchet.testing.records import TIME, shown
from ratchet.testing.run import Result, Row, run
from ratchet.values.endpoint import Endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = Mapping[str, Sequence[Row]]


def check(
    spec: Pipeline,
    given: Sequence[object],
    *,
    txn_time: datetime = TIME,
    spark: SparkSession | None = None,
    endpoints: Mapping[str, Endpoint] | None = None,
) -> Result:
    """What `run` returns, once these hold; AssertionError, with the record that shows it, where one does not.

    1. No record makes the transform raise, or return what the sinks do not declare.
    2. Rows are told apart: no two of a sink that keeps positions have one record and one `_n`, and no record is a dead
       letter twice.
    3. It is deterministic: a second time it gives the same.
    4. It works record by record: what it gives for a record is the same beside all others, beside half of them, and
       alone.

    It runs the transform once for each record and five times more; over DataFrames that is about 0.2 s each.
    """

    def result_of(numbers: Iterable[int]) -> Result:
        return run(spec, [given[n] for n in numbers], txn_time=txn_time, spark=spark, endpoints=endpoints)

    everyone = range(len(given))
    # Step 1
    try:
        whole = result_of(everyone)
    except RatchetError as error:
        raise AssertionError(f"{_culprit(given, result_of)}: {error}") from error
    # Step 2
    _check_identity(spec, given, whole)
    # Step 3
    _check_same(given, whole.given, result_of(everyone).given, "the first time", "the second time")
    # Step 4
    cuts: list[tuple[str, Sequence[int]]] = [
        ("beside no other", ()),
        ("beside every second one", everyone[::2]),
        ("beside every second one", everyone[1::2]),
        *(("alone", [number]) for number in everyone),
    ]
    for how, numbers in cuts:
        try:
            part = _numbered(result_of(numbers).given, numbers)
        except RatchetError as error:
            who = shown(given, numbers[0]) if len(numbers) == 1 else "a slice of fewer records"
            raise AssertionError(f"{who}: beside all others it raises nothing, and {how}: {error}") from error
        mine = {n: [r for r in rows if r["_offset"] in set(numbers)] for n, rows in whole.given.items()}
        _check_same(given, mine, part, "beside all others", how)
    return whole


def _culprit(given: Sequence[object], result_of: Callable[[Iterable[int]], Result]) -> str:
    """The first record that raises by itself, or all of them where none does."""
    for number in range(len(given)):
        try:
            result_of([number])
        except RatchetError:
            return shown(given, number)
    return "all records together, and none of them alone"


def _check_identity(spec: Pipeline, given: Sequence[object], whole: Result) -> None:
    for sink in sinks_of(spec):
        kept = [column.name for column in POSITION if column in sink.written]
        if not kept:
            continue
        for place, count in Counter(tuple(row[name] for name in kept) for row in whole.given[sink.name]).items():
            assert count == 1, (
                f"{shown(given, place[1])}: sink {sink.name!r}: it has {count} rows whose "
                f"{', '.join(kept)} are {', '.join(map(str, place))}; "
                + ("number the rows of a record in _n" if len(kept) > 2 else "a record is one dead letter at most")
            )


def _numbered(rows: Rows, numbers: Sequence[int]) -> Rows:
    """Rows of a part of the records, with the numbers that those have among all."""
    return {name: [{**row, "_offset": numbers[row["_offset"]]} for row in of] for name, of in rows.items()}


def _check_same(given: Sequence[object], one: Rows, other: Rows, how: str, other_how: str) -> None:
    for name in one:
        first, second = _by_record(one[name]), _by_record(other[name])
        for number in sorted(first.keys() | second.keys()):
            these, those = first.get(number, []), second.get(number, [])
            assert sorted(these) == sorted(those), (
                f"{shown(given, number)}: sink {name!r}: {how} it gives {_said(these)}, and {other_how} "
                f"{_said(those)}; what a transform gives for a record must follow from it alone, and from _txn_time"
            )


def _by_record(rows: Sequence[Row]) -> dict[int, list[str]]:
    """{number of a record: its rows, as text, in which equal values are equal, as NaN is not to itself}."""
    found: dict[int, list[str]] = {}
    for row in rows:
        said = {name: value for name, value in row.items() if name not in ("_partition", "_offset")}
        found.setdefault(row["_offset"], []).append(str(said))
    return found


def _said(rows: list[str]) -> str:
    return " and ".join(rows) or "no row"
