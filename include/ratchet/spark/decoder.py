"""The decoder: a record becomes one row of the declared types, or an error with its reason; nothing in between.

What is right is decided once, in column `_error`, whatever the transform uses of a row afterwards.

- The value is one JSON object in UTF-8. Text after it, a second object, an array, a bare null are errors.
- A missing field and a null are null; an error where the column is declared `not null`.
- Numbers must fit: 1.5 or 3000000000 is no int. A decimal has no more digits than its scale, as far as 38 digits
  can tell; it may be given as a string.
- A string column takes a JSON string; of any other JSON value the text that Spark gives it (5.10 becomes "5.1").
- Timestamps are ISO 8601 text, UTC where they name no zone, cut to microseconds. Dates are `yyyy-mm-dd`. Both lie in
  the years 1 to 9999, which Spark, PostgreSQL and Python can all hold.
- binary is base64. Of a field given twice the last counts. Undeclared fields are ignored.
- U+0000 and halves of surrogate pairs are errors: PostgreSQL stores no such text.
"""

from __future__ import annotations

import re
from uuid import uuid4

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ratchet.columns import Column
from ratchet.pipeline import Topic

_STRICT = {
    "mode": "PERMISSIVE",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_INTEGER = r"^[+-]?[0-9]+$"
_NUMBER = r"^[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$"
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_A_PAIR = rf"(?<!\\)(\\\\)*({_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})"
_HUGE = r'[:\[]\s*"?[+-]?[0-9.,]+[eE][+-]?[0-9]{4,}'
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NUL = "\x00"
_NO_OBJECT = "the value is not one JSON object with the declared types"


def decode(raw: DataFrame, topic: Topic, *, key_required: bool = False) -> DataFrame:
    """Rows of the declared value columns, the key column, and hidden ones.

    Hidden: `_partition`, `_offset`, `_record` struct(key binary, value binary, headers string), `_deleted` boolean
    where tombstones are deletions, and `_error` string, null where the record is good; where it is not, the
    declared columns mean nothing. With `key_required` a record without a key is an error.
    """
    fields, end = topic.value.fields, f"end_{uuid4().hex}"
    texts = raw.withColumns({"_text": _utf8("_value"), "_key_text": _utf8("_key")})
    parsed = texts.withColumn("_json", _parse(F.when(~_is_huge(topic), F.col("_text")), fields, end))
    value = _only(F.col("_json"), end)
    columns = {c.name: _exactly(value[c.name], c) for c in fields}
    if topic.key_column is not None:
        columns[topic.key_column.name] = _key(topic.key_column)
    if topic.tombstones == "delete":
        columns["_deleted"] = F.col("_value").isNull()
    # One projection makes the columns, the next one judges them, so that no value is parsed twice.
    given = [value[c.name].alias(_given(c)) for c in fields if _parsed_as(c) != c.type]
    typed = parsed.select(
        *(expression.alias(name) for name, expression in columns.items()),
        *("_partition", "_offset", "_key", "_value", "_text", "_key_text"),
        _record().alias("_record"),
        _shape_fault(topic, end).alias("_shape_fault"),
        *given,
    )
    error = F.coalesce(_key_fault(topic, key_required), _value_fault(topic))
    return typed.select(*columns, "_partition", "_offset", "_record", error.alias("_error"))


def _utf8(name: str) -> Expression:
    """The bytes as text; null where they are not valid UTF-8."""
    return F.when(F.is_valid_utf8(F.col(name).cast("string")), F.col(name).cast("string"))


def _is_huge(topic: Topic) -> Expression:
    """Whether a number could keep Spark busy for hours: it writes 1e99999999 out when a decimal is wanted."""
    if not any(_DECIMAL.fullmatch(c.type) for c in topic.value.fields):
        return F.lit(False)
    return F.coalesce(F.col("_text").rlike(_HUGE), F.lit(False))


def _parse(text: Expression, fields: tuple[Column, ...], end: str) -> Expression:
    """The value inside a text of our own, whose end must be reached: Spark's parser ignores what follows an object.

    `{"<end>": [[value], [{"<end>": true}]]}`: whatever brackets a value closes and opens, it cannot leave one
    value before one end mark, because it does not know the name of the end, which is new for every query.
    """
    inner = ", ".join(f"`{c.name}`: {_parsed_as(c)}" for c in fields)
    schema = f"`{end}` array<array<struct<{inner}, `{end}`: boolean>>>, _broken string"
    whole = F.concat(F.lit(f'{{"{end}":[['), text, F.lit(f'],[{{"{end}":true}}]]}}'))
    return F.from_json(whole, schema, {**_STRICT, "columnNameOfCorruptRecord": "_broken"})


def _only(json: Expression, end: str) -> Expression:
    """The one value that `_parse` has found."""
    return F.get(F.get(json[end], F.lit(0)), F.lit(0))


def _is_one_object(json: Expression, end: str) -> Expression:
    """Whether `_parse` has found one object of the given types, and the end right after it; never null."""
    value, mark = F.get(json[end], F.lit(0)), F.get(F.get(json[end], F.lit(1)), F.lit(0))
    whole = (F.size(json[end]) == 2) & (F.size(value) == 1) & _only(json, end).isNotNull() & mark[end]
    return F.coalesce(json["_broken"].isNull() & whole, F.lit(False))


def _parsed_as(column: Column) -> str:
    """What Spark's parser is to make of a field: where it would guess or round, a wider type, read by `_exactly`."""
    if column.type in ("timestamp", "date"):
        return "string"
    decimal = _DECIMAL.fullmatch(column.type)
    return _widest(decimal) if decimal else column.type


def _widest(decimal: re.Match[str]) -> str:
    """A decimal type with all the further digits there is room for."""
    precision, scale = int(decimal[1]), int(decimal[2])
    return f"decimal(38,{scale + 38 - precision})"


def _given(column: Column) -> str:
    """The name under which the field is kept as it was parsed."""
    return f"_given_{column.name}"


def _exactly(parsed: Expression, column: Column) -> Expression:
    """The parsed field as a value of its column; null when it is not one, exactly."""
    if column.type in ("timestamp", "date"):
        return _from_text(parsed, column.type)
    if _DECIMAL.fullmatch(column.type):
        return F.when(parsed.try_cast(column.type) == parsed, parsed.try_cast(column.type))
    return parsed


def _from_text(text: Expression, kind: str) -> Expression:
    """The text as a value of this type; null when it is not one, exactly."""
    if kind == "string":
        return text
    if kind == "boolean":
        return F.when(text == "true", F.lit(True)).when(text == "false", F.lit(False))
    if kind in ("timestamp", "date"):
        moment = F.when(text.rlike(_TIMESTAMP if kind == "timestamp" else _DATE), text.try_cast(kind))
        return F.when(F.year(moment).between(1, 9999), moment)
    if kind in ("smallint", "int", "bigint"):
        return F.when(text.rlike(_INTEGER), text.try_cast(kind))
    number = F.when(text.rlike(_NUMBER), text.try_cast(kind))
    decimal = _DECIMAL.fullmatch(kind)
    if decimal:
        return F.when(number == text.try_cast(_widest(decimal)), number)
    return F.when(~_infinite(number), number)


def _infinite(number: Expression) -> Expression:
    return F.abs(number) == F.lit(float("inf"))


def _shape_fault(topic: Topic, end: str) -> Expression:
    """Why the value is not one object with the declared types, or null."""
    half = F.contains(F.col("_text"), F.lit("\\u")) & F.col("_text").rlike(_HALF_A_PAIR)
    broken = ~_is_huge(topic) & ~_is_one_object(F.col("_json"), end)
    return F.when(broken, _broken(topic.value.fields)).when(
        half, F.lit("the value holds half of a surrogate pair, which is no character")
    )


def _broken(fields: tuple[Column, ...]) -> Expression:
    """A closer reason for a value that does not parse; evaluated for such values only."""
    end = f"end_{uuid4().hex}"
    plain = tuple(Column(c.name, "string") for c in fields)
    again = _parse(F.col("_text"), plain, end)
    value = _only(again, end)
    wrong = [
        F.when(value[c.name].isNotNull() & _from_text(value[c.name], c.type).isNull(), _is_no(c))
        for c in fields
        if c.type not in ("string", "binary", "timestamp", "date")
    ]
    named = F.nullif(F.concat_ws(", ", *wrong), F.lit(""))
    return F.when(_is_one_object(again, end), F.concat_ws(": ", F.lit(_NO_OBJECT), named)).otherwise(F.lit(_NO_OBJECT))


def _value_fault(topic: Topic) -> Expression:
    """Why the value cannot be used, or null."""
    faults = [F.col("_shape_fault")]
    for c in topic.value.fields:
        if _parsed_as(c) != c.type:
            faults.append(F.when(F.col(_given(c)).isNotNull() & F.col(c.name).isNull(), _is_no(c)))
        elif c.type in ("float", "double"):
            faults.append(F.when(_infinite(F.col(c.name)), _is_no(c)))
        elif c.type == "string":
            faults.append(F.when(F.contains(F.col(c.name), F.lit(_NUL)), F.lit(f"column {c.name} holds U+0000")))
        if not c.nullable:
            faults.append(F.when(F.col(c.name).isNull(), F.lit(f"column {c.name} is missing or null")))
    tombstone = F.lit("no value (a tombstone)" if topic.tombstones == "dead_letter" else None).cast("string")
    return (
        F.when(F.col("_value").isNull(), tombstone)
        .when(F.col("_text").isNull(), F.lit("the value is not valid UTF-8"))
        .when(_is_huge(topic), F.lit("a number has an exponent of more than 3 digits"))
        .otherwise(F.coalesce(*faults))
    )


def _is_no(column: Column) -> Expression:
    return F.lit(f"column {column.name} is no {column.type}")


def _key(column: Column) -> Expression:
    return F.col("_key") if column.type == "binary" else _from_text(F.col("_key_text"), column.type)


def _key_fault(topic: Topic, required: bool) -> Expression:
    """Why the key cannot be used, or null."""
    column, faults = topic.key_column, [F.lit(None).cast("string")]
    if column is None:
        return faults[0]
    if required or not column.nullable or topic.tombstones == "delete":
        faults.append(F.when(F.col("_key").isNull(), F.lit("no key")))
    unreadable = F.col("_key").isNotNull() & F.col(column.name).isNull()
    faults.append(F.when(unreadable, F.lit(f"the key is not a {column.type} in UTF-8 text")))
    if column.type == "string":
        faults.append(F.when(F.contains(F.col(column.name), F.lit(_NUL)), F.lit("the key holds U+0000")))
    return F.coalesce(*faults)


def _record() -> Expression:
    """The original bytes, for the dead letters; Spark reads them only where somebody uses them."""
    # JSON in PostgreSQL has no U+0000.
    pairs = F.transform(
        "_headers",
        lambda h: F.struct(F.translate(h["key"], _NUL, "\ufffd").alias("key"), F.base64(h["value"]).alias("value")),
    )
    headers = F.when(F.size("_headers") > 0, F.to_json(pairs, {"ignoreNullFields": "false"}))
    return F.struct(F.col("_key").alias("key"), F.col("_value").alias("value"), headers.alias("headers"))
