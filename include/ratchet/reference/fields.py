"""The page docs/spec.md: every field of a spec, with its type, its default and its docstring."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ratchet import (
    Accumulate,
    Append,
    Arrivals,
    Avro,
    Bytes,
    CloudEvents,
    Condition,
    Csv,
    Debezium,
    DeltaLake,
    Files,
    Iceberg,
    Json,
    KafkaTopic,
    MaxChange,
    MaxDeadLetters,
    MessagePack,
    Pipeline,
    Protobuf,
    Sql,
    Table,
    Text,
    Topic,
    Upsert,
)
from ratchet.reference.prose import row, sentences, table
from ratchet.spec.dag import DagArguments, TaskArguments
from ratchet.spec.declaration import Declaration
from ratchet.spec.parts import DeclaredGate, DeclaredSink
from ratchet.spec.source import DeclaredFormat

SECTIONS: Mapping[str, tuple[type[Declaration], ...]] = {
    "The pipeline": (Pipeline,),
    "Transforms in SQL": (Sql,),
    "Source": (Topic,),
    "Formats": (Json, Avro, Protobuf, MessagePack, Csv, Text, Bytes, CloudEvents, Debezium),
    "When runs start": (Arrivals,),
    "Sinks": (Append, Upsert, Accumulate),
    "Destinations": (Table, KafkaTopic, DeltaLake, Files, Iceberg),
    "Gates": (MaxDeadLetters, MaxChange, Condition),
}
_HEAD = (
    "# Spec",
    "",
    "Every field of a pipeline's spec, with its type and its default; made from the code.",
    "The [guide](guide.md) writes a spec step by step.",
    "It also has the [types of columns](guide.md#columns-and-their-types).",
    "[Bad input](bad-input.md#the-spec) has the error for each field that is wrong.",
    "",
    "A spec is a module of package `pipelines`, named after its pipeline, whose `PIPELINE` is a `Pipeline(…)`.",
    "All names are imported from `ratchet`.",
    "A field without a default must be given.",
)
_AIRFLOW = (
    "",
    "## Arguments for Airflow",
    "",
    "`Pipeline(airflow={…})` takes these, with Airflow's names and Airflow's meanings.",
    "A function, notifier or deadline is named by text, `module:name`.",
    "An argument that is not given is not passed, so Airflow's own default holds; the tasks have the defaults below.",
    "[Operations](operations.md#what-a-spec-passes-to-airflow) has an example.",
)
_LINKS = {
    DeclaredSink: "[sink](#sinks)",
    DeclaredGate: "[gate](#gates)",
    DeclaredFormat: "[format](#formats)",
    Topic: "[`Topic`](#topic)",
    Arrivals: "[`Arrivals`](#arrivals)",
    Sql: "[`Sql`](#sql)",
    DagArguments: "[dict](#arguments-for-airflow)",
    TaskArguments: "dict",
    str: "text",
    int: "integer",
    float: "number",
    bool: "`True` or `False`",
    timedelta: "`timedelta`",
    datetime: "`datetime`",
}
_LIMITS = ((Ge, "ge", "at least {}"), (Gt, "gt", "more than {}"), (Le, "le", "at most {}"), (Lt, "lt", "less than {}"))


def document() -> str:
    """docs/spec.md."""
    lines = [*_HEAD]
    for heading, kinds in SECTIONS.items():
        lines += ["", f"## {heading}"]
        for kind in kinds:
            lines += ["", f"### {kind.__name__}", "", *sentences(inspect.getdoc(kind)), *_by_place(kind)]
            lines += ["", *_fields(kind)]
    lines += [*_AIRFLOW, "", "### Of the DAG", "", *_passed(DagArguments)]
    lines += ["", "### Of every task", "", "They stand in `default_args`.", "", *_passed(TaskArguments)]
    lines += ["", "### Not passed", "", *table("argument", "instead")]
    lines += [row(f"`{name}`", said) for name, said in {**DagArguments.instead, **TaskArguments.instead}.items()]
    return "\n".join(lines) + "\n"


def meanings(kind: type[BaseModel]) -> dict[str, str]:
    """{field: the docstring behind it}, those of the classes it inherits from among them."""
    return dict(pair for base in reversed(kind.__mro__) if issubclass(base, Declaration) for pair in _said(base))


def shown(kind: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields that a person gives: not `kind`, which tells a declaration from others; the needed ones first."""
    fields = {name: field for name, field in kind.model_fields.items() if name != "kind"}
    return dict(sorted(fields.items(), key=lambda item: not item[1].is_required()))


def _said(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    (body,) = (node.body for node in ast.parse(inspect.getsource(kind)).body if isinstance(node, ast.ClassDef))
    for field, behind in zip(body, body[1:], strict=False):
        match field, behind:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as doc)):
                yield name, inspect.cleandoc(doc)
            case _:
                pass


def _by_place(kind: type[Declaration]) -> list[str]:
    names = [f"`{name}`" for name in kind.positional()]
    return [f"By place: {', '.join(names)}; all others are named."] if names else []


def _fields(kind: type[Declaration]) -> Iterator[str]:
    said = meanings(kind)
    yield from table("field", "type", "default", "meaning")
    for name, field in shown(kind).items():
        yield row(f"`{name}`", _type_of(field), _default(field), said[name])


def _passed(kind: type[BaseModel]) -> Iterator[str]:
    yield from table("argument", "type", "default")
    for name, field in kind.model_fields.items():
        yield row(f"`{name}`", _type_of(field), _default(field))


def _type_of(field: FieldInfo) -> str:
    return _words(Annotated[field.annotation, field] if field.metadata else field.annotation)


def _words(kind: Any) -> str:
    """A type as a person reads it, with its limits."""
    inner = get_args(kind)
    match get_origin(kind):
        case None:
            return _LINKS.get(kind, "any")
        case origin if origin is Annotated:
            limits = [limit for part in inner[1:] for limit in _limits(part)]
            return ", ".join([_words(inner[0]), *limits])
        case origin if origin is Literal:
            return " or ".join(f"`{_plain(value)}`" for value in inner)
        case origin if origin in (Union, UnionType):
            # What may be left out has None as its default.
            return " or ".join(_words(part) for part in inner if part is not NoneType)
        case origin if origin is dict:
            return "dict"
        case _:
            return f"list of {_words(inner[0])}"


def _limits(part: Any) -> Iterator[str]:
    for each in part.metadata if isinstance(part, FieldInfo) else [part]:
        for kind, name, words in _LIMITS:
            if isinstance(each, kind):
                limit = getattr(each, name)
                yield words.format(f"{limit.days:,} days" if isinstance(limit, timedelta) else f"{limit:,}")


def _default(field: FieldInfo) -> str:
    return "–" if field.is_required() else f"`{_plain(field.default)}`"


def _plain(value: object) -> str:
    """A value as a spec has it."""
    match value:
        case timedelta():
            return f"timedelta(days={value.days})" if not value.seconds else f"timedelta(seconds={value.seconds})"
        case bool() | None:
            return str(value)
        case int():
            return f"{value:_}"
        case tuple() | list():
            return "[]"
        case BaseModel():
            return "{}"
        case str():
            return f'"{value}"'
        case _:
            return str(value)
