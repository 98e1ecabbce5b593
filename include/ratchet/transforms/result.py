"""What a transform returned, held against the spec; the same errors for tables and for DataFrames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from ratchet.errors import RatchetError, TransformError
from ratchet.spec.columns import Column
from ratchet.spec.pipeline import DEAD_LETTERS, Pipeline
from ratchet.spec.sql import Sql
from ratchet.values.own_code import frames_of, package_of, place
from ratchet.values.withheld import named

T = TypeVar("T")

RECORD_PARTS = ("timestamp", "key", "value", "headers")
"""What a dead letter keeps of its record, from `_record`."""
GIVEN_UP = "given up by the transform"
"""The reason of a dead letter for which the transform gives none."""


def check_names(spec: Pipeline, result: object, kind: type[T] | Any, noun: str) -> dict[str, T]:
    """The result by sink; TransformError that names what is missing, unknown or no `noun`."""
    wanted = [sink.name for sink in spec.sinks]
    if not isinstance(result, dict):
        raise TransformError(
            f"{spec.name}: {spec.transform} returned a {type(result).__name__}; return a dict of a {noun} for each "
            f"sink: {', '.join(wanted)}"
        )
    given = cast("dict[object, object]", result)
    missing = [name for name in wanted if name not in given]
    unknown = [str(name) for name in given if name not in wanted and name != DEAD_LETTERS]
    if missing or unknown:
        said = [f"lacks {name!r}" for name in missing] + [f"has {name!r}, which no sink is called" for name in unknown]
        raise TransformError(
            f"{spec.name}: what {spec.transform} returned {' and '.join(said)}; its keys must be {', '.join(wanted)}, "
            f"and {DEAD_LETTERS} if it gives records up"
        )
    for name, part in given.items():
        if not isinstance(part, kind):
            raise TransformError(
                f"{spec.name}: {spec.transform} returned a {type(part).__name__} for sink {name!r}, not a {noun}"
            )
    return cast("dict[str, T]", given)


def raised(spec: Pipeline, error: Exception) -> RatchetError:
    """What to say of an error that the transform has raised; an error of ratchet's own is its own, such as Refused.

    Of a private pipeline's only the class and the place are told: its text is a person's, and may hold values.
    """
    package = package_of(str(spec.transform))
    if spec.private:
        kind = type(error) if isinstance(error, RatchetError) else TransformError
        return kind(f"{spec.name}: {spec.transform} raised {named(error, package)}")
    if isinstance(error, RatchetError):
        return error
    said = f"{spec.transform} raised {type(error).__name__}: {error}"
    return TransformError(f"{spec.name}: {said}{place(frames_of(error), package)}")


def lost_column(spec: Pipeline, sink: str, hidden: str) -> TransformError:
    """The error of a result without a hidden column that it must keep."""
    return TransformError(
        f"{spec.name}: sink {sink!r}: {spec.transform} has lost the hidden column {hidden}; keep it in every select, "
        "and leave sums and last rows to the sinks"
    )


def missing_column(spec: Pipeline, sink: str, column: Column, returned: Iterable[str]) -> TransformError:
    """The error of a result without a declared column."""
    names = ", ".join(name for name in returned if not name.startswith("_"))
    return TransformError(
        f"{spec.name}: sink {sink!r}: column {column.name!r} is declared, and {_maker(spec)} did not return it; it "
        f"returned {names}"
    )


def other_type(spec: Pipeline, sink: str, column: Column, actual: str) -> TransformError:
    """The error of a column that has another type than declared, and is not widened."""
    return TransformError(
        f"{spec.name}: sink {sink!r}: column {column.name!r} is declared {column.type}, and {_maker(spec)} returned "
        f"{actual}; cast it there, or declare it {actual}"
    )


def _maker(spec: Pipeline) -> str:
    """What makes a sink's columns, as errors that name the sink say it."""
    return "its statement" if isinstance(spec.transform, Sql) else str(spec.transform)
