"""The decoder: every record becomes a row with the declared columns, or an error that says why not."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ratchet.columns import Column as Declared
from ratchet.pipeline import Topic

_END = "ratchet_end"
"""What stands behind the value in the wrapper; a name that no value would close its brackets for."""


def decode(raw: DataFrame, topic: Topic) -> DataFrame:
    """Rows of the declared value columns, the key column, and hidden ones.

    Hidden: `_partition`, `_offset`, `_record` struct(key binary, value binary, headers string), `_deleted` boolean
    where tombstones are deletions, and `_error` string, null where the record is good.
    """
    parsed = raw.withColumn("_parsed", _parse(topic.value.fields))
    item = F.col("_parsed.v").getItem(0)
    columns = [item.getField(c.name).alias(c.name) for c in topic.value.fields]
    if topic.key_column is not None:
        columns.append(_key(topic.key_column).alias(topic.key_column.name))
    columns += [F.col("_partition"), F.col("_offset"), _record().alias("_record"), _error(topic).alias("_error")]
    if topic.tombstones == "delete":
        columns.append(F.col("_value").isNull().alias("_deleted"))
    return parsed.select(*columns)


def _parse(fields: tuple[Declared, ...]) -> Column:
    """The value parsed inside a wrapper.

    from_json ignores what follows the first object; inside an array that is followed by an end mark, anything but
    one object breaks the wrapper or misses the mark.
    """
    schema = f"v array<struct<{', '.join(f'{c.name}: {c.type}' for c in fields)}>>, {_END} boolean, _corrupt string"
    wrapped = F.concat(F.lit('{"v":['), F.col("_value").cast("string"), F.lit(f'],"{_END}":true}}'))
    # JSON has no NaN or Infinity.
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": "_corrupt",
        "allowNonNumericNumbers": "false",
    }
    return F.from_json(wrapped, schema, options)


def _error(topic: Topic) -> Column:
    parsed, item = F.col("_parsed"), F.col("_parsed.v").getItem(0)
    good = (
        parsed.getField("_corrupt").isNull()
        & parsed.getField(_END)
        & (F.size(parsed.getField("v")) == 1)
        & item.isNotNull()
    )
    no_value, tombstone = F.col("_value").isNull(), F.lit("no value (a tombstone)")
    reasons = [
        (~F.is_valid_utf8(F.col("_value").cast("string")), "the value is not valid UTF-8"),
        (~F.coalesce(good, F.lit(False)), "the value is not one JSON object with the declared types"),
        *(
            (item.getField(c.name).isNull(), f"column {c.name} is missing or null")
            for c in topic.value.fields
            if not c.nullable
        ),
    ]
    value_error = F.when(no_value, tombstone if topic.tombstones == "dead_letter" else F.lit(None).cast("string"))
    for wrong, said in reasons:
        value_error = value_error.when(wrong, F.lit(said))
    key = topic.key_column
    if key is None:
        return value_error
    unreadable = F.col("_key").isNotNull() & _key(key).isNull()
    key_error = F.when(unreadable, F.lit(f"the key is not a {key.type} in UTF-8 text"))
    if topic.tombstones == "delete" or not key.nullable:
        key_error = key_error.when(F.col("_key").isNull(), F.lit("no key"))
    return F.coalesce(key_error, value_error)


def _key(key: Declared) -> Column:
    text = F.col("_key").cast("string")
    return F.when(F.is_valid_utf8(text), text.try_cast(key.type))


def _record() -> Column:
    """The original bytes, for the dead letters; Spark reads them only where somebody uses them."""
    pairs = F.transform(
        "_headers", lambda h: F.struct(h.getField("key").alias("key"), F.base64(h.getField("value")).alias("value"))
    )
    headers = F.when(F.size("_headers") > 0, F.to_json(pairs))
    return F.struct(F.col("_key").alias("key"), F.col("_value").alias("value"), headers.alias("headers"))
