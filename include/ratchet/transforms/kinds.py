"""The kinds of transforms, told apart by how a function's parameter is annotated, or by statements."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any, get_type_hints

from ratchet.errors import SpecError
from ratchet.spec.pipeline import Pipeline
from ratchet.spec.sql import Sql


class Kind(StrEnum):
    """What a transform works on, and so in which lane a slice goes through Spark."""

    NONE = "columns by name"
    """No function: every sink takes the columns of its names. Worker lane."""
    TABLES = "pyarrow.Table"
    """A function over Arrow tables, called batch by batch in Spark's workers. Worker lane."""
    FRAMES = "pyspark.sql.DataFrame"
    """A function over DataFrames, called once on the driver. DataFrame lane."""
    SQL = "Spark SQL"
    """A statement for each sink. DataFrame lane."""

    @property
    def only_spark(self) -> str | None:
        """Why its slices take the DataFrame lane, which only Spark can do, in a line; None where they do not."""
        return {Kind.FRAMES: "its transform is over DataFrames", Kind.SQL: "its transform is in SQL"}.get(self)


_NAMES = {
    "pyarrow.Table": Kind.TABLES,
    "pa.Table": Kind.TABLES,
    "Table": Kind.TABLES,
    "pyspark.sql.DataFrame": Kind.FRAMES,
    "DataFrame": Kind.FRAMES,
}
"""How people write the annotations, where they are only known as text."""


def kind_of(spec: Pipeline) -> Kind:
    """The kind of a pipeline's transform; SpecError if it cannot be imported or its annotation names neither kind.

    A parameter without an annotation is a DataFrame.
    """
    if isinstance(spec.transform, Sql):
        return Kind.SQL
    function = spec.load_transform()
    return Kind.NONE if function is None else kind_of_function(function, str(spec.transform))


def kind_of_function(function: Callable[..., Any], named: str) -> Kind:
    """The kind of one function, which a spec names so."""
    parameters = list(inspect.signature(function).parameters.values())
    if len([p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]) != 1:
        raise SpecError(f"Pipeline.transform: {named} takes {len(parameters)} parameters; it is given one, the records")
    first = parameters[0]
    if first.annotation is first.empty:
        return Kind.FRAMES
    try:
        # What has some of its arguments already, or is an object that can be called, has its annotations within.
        annotated = get_type_hints(getattr(function, "func", function)).get(first.name)
    except (NameError, AttributeError, TypeError):
        # Imported for type checkers alone.
        annotated = first.annotation
    said = f"{annotated.__module__}.{annotated.__qualname__}" if isinstance(annotated, type) else str(annotated)
    kind = _NAMES.get(said) or (
        _NAMES.get(said.rpartition(".")[2]) if said.startswith(("pyarrow", "pyspark")) else None
    )
    if kind is None:
        raise SpecError(
            f"Pipeline.transform: {named} annotates its parameter {first.name!r} as {said}; annotate it as "
            f"{Kind.TABLES} to work on Arrow tables, or as {Kind.FRAMES} to work on DataFrames"
        )
    return kind
