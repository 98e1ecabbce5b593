"""Rows as Kafka records and files have them, written by PostgreSQL.

`Json(…)` of the same columns reads the JSON back as it is, and `Csv(…)` the CSV.

Nothing depends on how a session has dates, times or bytes shown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from psycopg import sql

from ratchet.spec.columns import Column
from ratchet.spec.types import (
    MICROS,
    Array,
    Binary,
    Boolean,
    Date,
    Decimal,
    Floating,
    Integer,
    Json,
    String,
    Time,
    Timestamp,
    Type,
    is_document,
)

Expression = sql.Composable
"""Of SQL, over the columns of a row."""

_NULL = sql.SQL("null::text")


def of_rows(keyed: Column | None, pipeline: str, txid: int) -> list[Expression]:
    """What is asked of each row besides its value: key, where it comes from as JSON."""
    # Written by us, since a function that makes JSON takes as long as all the rest.
    said = sql.SQL(
        "{} || _source || ',\"partition\":' || _partition || ',\"offset\":' || _offset || ',\"n\":' || _n || '}}'"
    )
    begun = _begun({"pipeline": pipeline, "txid": txid}, "source")
    return [_NULL if keyed is None else key_of(keyed), said.format(begun)]


def of_keys(key: Sequence[Column], pipeline: str, step: int) -> list[Expression]:
    """What is asked of each key besides its value: the key, of one column as `key_of` has it, of several a JSON object;
    as JSON the step and the transaction that has touched its row last, which is null where it has no row.
    """
    said = sql.SQL("{} || coalesce(_txid::text, 'null') || '}}'")
    said = said.format(_begun({"pipeline": pipeline, "step": step}, "txid"))
    return [key_of(key[0]) if len(key) == 1 else json_of(key), said]


def json_of(fields: Sequence[Column]) -> Expression:
    """The text of a JSON object with all of these columns, in their order."""
    members = [
        sql.SQL("{} || coalesce({}, 'null')").format(sql.Literal(f'"{column.name}":'), _json(column))
        for column in fields
    ]
    return sql.SQL("'{{' || {} || '}}'").format(sql.SQL(" || ',' || ").join(members))


def csv_of(fields: Sequence[Column]) -> Expression:
    """The text of a line of CSV with all of these columns, in their order.

    A null is nothing; whatever may be an empty text, or have a separator in it, is in quotes.
    """
    return sql.SQL(" || ',' || ").join([sql.SQL("coalesce({}, '')").format(_field(column)) for column in fields])


def key_of(column: Column) -> Expression:
    """The bytes that a declared key of the same type is read from: UTF-8 text, or bytes as they are."""
    if isinstance(column.type, Binary):
        return sql.Identifier(column.name)
    return _text(column.type, sql.Identifier(column.name))


def number_of(kind: Date | Timestamp | Time, value: Expression) -> Expression:
    """Days since 1970 of a date, microseconds since 1970 of a moment, and since midnight of a time."""
    if isinstance(kind, Date):
        return sql.SQL("{} - date '1970-01-01'").format(value)
    # Exact: PostgreSQL takes the seconds apart as numeric.
    return sql.SQL("(extract(epoch from {}) * 1000000)::bigint").format(value)


def unfit_of(fields: Sequence[Column]) -> Expression:
    """The name of a column whose value JSON does not hold, or null: NaN and infinities, JSON's own null, which is read
    as no value at all, and days outside of the years 1 to 9999, which ISO 8601 writes in four digits.
    """
    whens = [
        sql.SQL("when {} then {}").format(unfit, sql.Literal(column.name))
        for column in fields
        if (unfit := _unfit(column.type, sql.Identifier(column.name))) is not None
    ]
    return sql.SQL("case {} end").format(sql.SQL(" ").join(whens)) if whens else _NULL


def _begun(members: dict[str, str | int], following: str) -> Expression:
    """The text of a JSON object up to the value of the member that follows these."""
    return sql.Literal(json.dumps(members, separators=(",", ":"))[:-1] + f',"{following}":')


def _json(column: Column) -> Expression:
    name = sql.Identifier(column.name)
    match column.type:
        case kind if is_document(kind):
            return sql.SQL("{}::text").format(name)
        case Array(Floating() as element):
            inner = sql.SQL("coalesce({}, 'null')").format(_text(element, sql.SQL("e")))
            return sql.SQL(
                "case when {0} is not null then '[' || array_to_string(array(select {1} from unnest({0}) "
                "with ordinality u(e, n) order by n), ',') || ']' end"
            ).format(name, inner)
        case Array(Binary() as element):
            return sql.SQL(
                "case when {0} is not null then array_to_json(array(select {1} from unnest({0}) "
                "with ordinality u(e, n) order by n))::text end"
            ).format(name, _text(element, sql.SQL("e")))
        case Array():
            return sql.SQL("array_to_json({})::text").format(name)
        case String():
            return sql.SQL("to_json({})::text").format(name)
        case Boolean() | Integer() | Decimal() | Floating() as kind:
            return _text(kind, name)
        case Timestamp(unit) as kind if unit is not None:
            return _text(kind, name)
        case kind:
            return sql.SQL("'\"' || {} || '\"'").format(_text(kind, name))


def _field(column: Column) -> Expression:
    match column.type:
        case String():
            text = sql.Identifier(column.name)
        case Binary() as kind:
            text = _text(kind, sql.Identifier(column.name))
        case kind if is_document(kind) or isinstance(kind, Array):
            text = _json(column)
        case kind:
            return _text(kind, sql.Identifier(column.name))
    return sql.SQL("""'"' || replace({}, '"', '""') || '"'""").format(text)


def _text(kind: Type, value: Expression) -> Expression:
    match kind:
        case Floating():
            # To the formats -0 is a whole number, which has no sign.
            return sql.SQL("case {0}::text when '-0' then '-0.0' else {0}::text end").format(value)
        case Timestamp(unit) if unit is not None:
            numerator, denominator = MICROS[unit]
            # Exact: PostgreSQL takes the seconds apart as numeric.
            return sql.SQL("trim_scale(extract(epoch from {}) * {})::text").format(
                value, sql.Literal(1_000_000 * denominator // numerator)
            )
        case Timestamp():
            return sql.SQL("to_char({} at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')").format(value)
        case Binary():
            return sql.SQL("translate(encode({}, 'base64'), E'\\n', '')").format(value)
        case Date():
            return sql.SQL("to_char({}, 'YYYY-MM-DD')").format(value)
        case _:
            return sql.SQL("{}::text").format(value)


def _unfit(kind: Type, value: Expression) -> Expression | None:
    none = sql.SQL("{} in ('NaN', 'Infinity', '-Infinity')")
    match kind:
        case Floating():
            return none.format(value)
        case Array(Floating()):
            return sql.SQL("{} && array['NaN', 'Infinity', '-Infinity']::{}[]").format(
                value, sql.SQL("real" if kind.element == Floating(32) else "double precision")
            )
        case Json():
            return sql.SQL("{} = 'null'::jsonb").format(value)
        case Date():
            return sql.SQL("{} not between date '0001-01-01' and date '9999-12-31'").format(value)
        case Timestamp(unit) if unit is not None:
            return sql.SQL("not isfinite({})").format(value)
        case Timestamp():
            return sql.SQL(
                "({0} < timestamptz '0001-01-01 00:00:00+00' or {0} >= timestamptz '10000-01-01 00:00:00+00')"
            ).format(value)
        case Array(Date()):
            return sql.SQL(
                "exists (select from unnest({}) u(e) where e not between date '0001-01-01' and date '9999-12-31')"
            ).format(value)
        case _:
            return None
