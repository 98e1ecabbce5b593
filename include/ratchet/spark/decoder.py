"""The decoder: a record becomes one row of the declared types, or an error with its reason; nothing in between.

What is right is decided once, in column `_error`, whatever the transform uses of a row afterwards.

- The value is one JSON object in UTF-8. Text after it, a second object, an array, a bare null are errors.
- A missing field and a null are null; an error where the column is declared `not null`.
- Numbers must fit: 1.5 or 3000000000 is no int. A decimal has no more digits than its scale, zeros at the end aside;
  it may be given as a string.
- A string column takes a JSON string; of any other JSON value the text that Spark gives it (5.10 becomes "5.1").
- Timestamps are ISO 8601 text, UTC where they name no zone (which needs seconds before it), cut to microseconds.
  Dates are `yyyy-mm-dd`. Both lie in the years 1 to 9999, which Spark, PostgreSQL and Python can all hold.
- binary is base64. Of a field given twice the last counts, and all have to be of the type. Undeclared fields are
  ignored, save that numbers under the name of a decimal column are looked at wherever they stand.
- U+0000 and halves of surrogate pairs are errors: PostgreSQL stores no such text.
"""

from __future__ import annotations

import re
from uuid import uuid4

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ratchet.spec.columns import Column
from ratchet.spec.pipeline import Topic

_STRICT = {
    "mode": "PERMISSIVE",
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
# Java's $ also stands before a line end; \z does not.
_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?\z"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}\z"
_INTEGER = r"^[+-]?[0-9]+\z"
_NUMBER = r"^[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?\z"
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF_A_PAIR = rf"{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW}"
_HUGE = r'"?[+-]?[0-9.]+[eE][+-]?[0-9]{4,}'
_COMMA = r'"[^"]*,'
_NO_NUMBER = r'"[^"]*[^-+.0-9eE"]'
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_NUL = "\x00"
_NO_OBJECT = "the value is not one JSON object with the declared types"


def decode(raw: DataFrame, topic: Topic, *, key_required: bool = False) -> DataFrame:
    """Rows of the declared value columns, the key column, and hidden ones.

    Hidden: `_partition`, `_offset`, `_record` struct(key binary, value binary, headers string), `_deleted` boolean
    where tombstones are deletions, and `_error` string, null where the record is good; where it is not, the
    declared columns mean nothing. With `key_required` a record without a key is an error.
    """
    value = _Parsed(topic.value.fields)
    columns = [_exactly(value[c], c).alias(c.name) for c in topic.value.fields]
    if topic.key_column is not None:
        columns.append(_key(topic.key_column).alias(topic.key_column.name))
    fault = F.coalesce(F.col("_text_fault"), _value_fault(topic, value))
    if topic.tombstones == "delete":
        columns.append(F.col("_value").isNull().alias("_deleted"))
        fault = F.when(F.col("_value").isNotNull(), fault)
    error = F.coalesce(_key_fault(topic, key_required), fault)
    checked = raw.withColumns({"_text_fault": _text_fault(topic), "_has_escapes": _has_escapes()})
    parsed = value.of(checked, F.col("_value"), F.col("_text_fault").isNull())
    return parsed.select(*columns, "_partition", "_offset", _record().alias("_record"), error.alias("_error"))


def explain(bad: DataFrame, topic: Topic) -> DataFrame:
    """Records with an error, with a closer `_error` where the value has the wrong types; reads `_record`.

    For dead letters only: it parses each value once more.
    """
    mistyped = F.col("_error") == _NO_OBJECT
    value = _Parsed(tuple(Column(c.name, "string") for c in topic.value.fields))
    wrong = [
        F.when(value[c].isNotNull() & _from_text(value[c], c.type).isNull(), _is_no(c))
        for c in topic.value.fields
        if c.type not in ("string", "binary", "timestamp", "date")
    ]
    closer = F.concat_ws(": ", F.lit(_NO_OBJECT), F.nullif(F.concat_ws(", ", *wrong), F.lit("")))
    again = value.of(bad, F.col("_record.value"), mistyped)
    said = F.when(mistyped & value.is_one_object(), closer).otherwise(F.col("_error"))
    return again.select(*(c for c in bad.columns if c != "_error"), said.alias("_error"))


class _Parsed:
    """A text as one JSON object, inside a text of our own whose end must be reached.

    Spark's parser ignores what follows an object. In `{"<end>":[text,{"<end>":true}]}` every bracket that the text
    closes or opens too much shows, because it cannot know the name of the end, which is new for every query.
    """

    def __init__(self, fields: tuple[Column, ...]):
        self._end = f"end{uuid4().hex[:12]}"
        inner = ", ".join(f"`{c.name}`: {_parsed_as(c)}" for c in fields)
        self._schema = f"{self._end} array<struct<{inner}, {self._end}: boolean>>, _broken string"
        self._items = F.col("_json")[self._end]
        self._only = F.get(self._items, F.lit(0))

    def of(self, frame: DataFrame, value: Expression, fit: Expression) -> DataFrame:
        """The frame with column `_json`, which the other methods are about; of `fit` values, else null.

        Projections of their own, and `_whole` used twice, keep Spark from merging them: it would build the text
        without compiled code, and parse it as often as the result is named.
        """
        whole = F.concat(F.lit(f'{{"{self._end}":['), value.cast("string"), F.lit(f',{{"{self._end}":true}}]}}'))
        json = F.from_json(F.col("_whole"), self._schema, {**_STRICT, "columnNameOfCorruptRecord": "_broken"})
        wrapped = frame.withColumn("_whole", F.when(fit, whole))
        return wrapped.withColumns({"_json": json, "_is_text": F.col("_whole").isNotNull()}).drop("_whole")

    def __getitem__(self, column: Column) -> Expression:
        """The field as it was parsed; means nothing unless `is_one_object`."""
        return self._only[column.name]

    def is_one_object(self) -> Expression:
        """Whether the text is one object of the given types, and nothing else; never null."""
        whole = (F.size(self._items) == 2) & self._only.isNotNull() & self._only[self._end].isNull()
        end = F.get(self._items, F.lit(1))[self._end]
        return F.col("_is_text") & F.coalesce(F.col("_json._broken").isNull() & whole & end, F.lit(False))


def _text_fault(topic: Topic) -> Expression:
    """Why the value should not even be parsed, or null."""
    text = F.col("_value").cast("string")
    # With escaped backslashes out of the way every backslash that is left begins an escape.
    half = _has_escapes() & F.replace(text, F.lit("\\\\"), F.lit("/")).rlike(_HALF_A_PAIR)
    fault = (
        F.when(text.isNull(), F.lit("no value (a tombstone)"))
        .when(~F.is_valid_utf8(text), F.lit("the value is not valid UTF-8"))
        .when(half, F.lit("the value holds half of a surrogate pair, which is no character"))
    )
    decimals = [c for c in topic.value.fields if _DECIMAL.fullmatch(c.type)]
    if decimals:
        fault = F.coalesce(fault, F.when(text.rlike(_unusual(decimals)), _decimal_fault(text, decimals)))
    return fault


def _unusual(decimals: list[Column]) -> str:
    """A text that may have a decimal which Spark's parser would not read as it is written; matches few others."""
    room = min(_room(c) for c in decimals)
    return rf'"({"|".join(map(_name, decimals))})"\s*:\s*("|[-+0-9.]*([eE]|\.[0-9]{{{room + 1}}}))'


def _decimal_fault(text: Expression, decimals: list[Column]) -> Expression:
    """What the parser would make another number of, or null."""
    fault = F.lit(None).cast("string")
    for column in decimals:
        named = rf'"{_name(column)}"\s*:\s*'
        # Spark would write 1e99999999 out, for hours, read "12,50" as 1250, and round what it has no room for.
        found = (
            F.when(text.rlike(named + _HUGE), F.lit(f"column {column.name}: an exponent of more than 3 digits"))
            .when(text.rlike(named + _COMMA), F.lit(f"column {column.name}: a decimal is written with a comma"))
            .when(text.rlike(named + _NO_NUMBER) | _too_fine(text, named, _room(column)), _is_no(column))
        )
        fault = F.coalesce(fault, found)
    return fault


def _too_fine(text: Expression, named: str, room: int) -> Expression:
    """Whether a number that follows `named` has more decimals than `room`."""
    written = F.regexp_extract_all(text, F.lit(named + r'"?([-+0-9.]+(?:[eE][-+]?[0-9]+)?)'), F.lit(1))
    return F.exists(written, lambda number: _decimals(number) > room)


def _name(column: Column) -> str:
    """A regular expression for a column's name in JSON, each character as it is or as an escape."""
    return "".join(rf"(?:{c}|\\u00(?i:{ord(c):02x}))" for c in column.name)


def _decimals(number: Expression) -> Expression:
    """How many decimals a number in text has, zeros at the end aside: 2 for 1.250, 5 for 1.2e-4, -3 for 5000."""
    whole = F.regexp_extract(number, "^[-+]?([0-9]*)", 1)
    fraction = F.rtrim(F.regexp_extract(number, r"\.([0-9]*)", 1), F.lit("0"))
    exponent = F.coalesce(F.regexp_extract(number, "[eE](.*)", 1).try_cast("int"), F.lit(0))
    last = F.when(fraction != "", F.length(fraction)).otherwise(F.length(F.rtrim(whole, F.lit("0"))) - F.length(whole))
    return F.when(number.rlike("^[^eE]*[1-9]"), last - exponent).otherwise(F.lit(0))


def _has_escapes() -> Expression:
    """Whether a character could be written as \\uXXXX, without which JSON has neither U+0000 nor half pairs."""
    return F.contains(F.col("_value").cast("string"), F.lit("\\u"))


def _parsed_as(column: Column) -> str:
    """What Spark's parser is to make of a field: where it would guess or round, a wider type, read by `_exactly`."""
    if column.type in ("timestamp", "date"):
        return "string"
    decimal = _DECIMAL.fullmatch(column.type)
    return _widest(decimal) if decimal else column.type


def _widest(decimal: re.Match[str]) -> str:
    """A decimal type with all the further digits there is room for."""
    return f"decimal(38,{int(decimal[2]) + 38 - int(decimal[1])})"


def _room(column: Column) -> int:
    """How many decimals of this column's numbers the parser keeps; it rounds the others away."""
    return int(_widest(_DECIMAL.fullmatch(column.type)).rstrip(")").partition(",")[2])


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
        # A cast to any type would round what the type has no room for, so the text tells.
        return F.when(_decimals(text) <= int(decimal[2]), number)
    return F.when(~_infinite(number), number)


def _infinite(number: Expression) -> Expression:
    return F.abs(number) == F.lit(float("inf"))


def _value_fault(topic: Topic, value: _Parsed) -> Expression:
    """Why the parsed value cannot be used, or null."""
    fields = topic.value.fields
    fault = F.when(~value.is_one_object(), F.lit(_NO_OBJECT))
    for c in fields:
        if _parsed_as(c) != c.type:
            fault = fault.when(value[c].isNotNull() & _exactly(value[c], c).isNull(), _is_no(c))
        elif c.type in ("float", "double"):
            fault = fault.when(_infinite(value[c]), _is_no(c))
        elif c.type == "string":
            nul = F.col("_has_escapes") & F.contains(value[c], F.lit(_NUL))
            fault = fault.when(nul, F.lit(f"column {c.name} holds U+0000"))
        if not c.nullable:
            fault = fault.when(value[c].isNull(), F.lit(f"column {c.name} is missing or null"))
    return fault


def _is_no(column: Column) -> Expression:
    return F.lit(f"column {column.name} is no {column.type}")


def _key_text() -> Expression:
    """The key as text; null where it is not valid UTF-8."""
    text = F.col("_key").cast("string")
    return F.when(F.is_valid_utf8(text), text)


def _key(column: Column) -> Expression:
    return F.col("_key") if column.type == "binary" else _from_text(_key_text(), column.type)


def _key_fault(topic: Topic, required: bool) -> Expression:
    """Why the key cannot be used, or null."""
    column, faults = topic.key_column, [F.lit(None).cast("string")]
    if column is None:
        return faults[0]
    if required or not column.nullable or topic.tombstones == "delete":
        faults.append(F.when(F.col("_key").isNull(), F.lit("no key")))
    unreadable = F.col("_key").isNotNull() & _key(column).isNull()
    faults.append(F.when(unreadable, F.lit(f"the key is not a {column.type} in UTF-8 text")))
    if column.type == "string":
        faults.append(F.when(F.contains(_key(column), F.lit(_NUL)), F.lit("the key holds U+0000")))
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
