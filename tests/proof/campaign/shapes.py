"""What becomes of the campaign's records: each transform for Spark, and beside it the same in plain Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ratchet.spec.pipeline import DEAD_LETTERS
from tests.proof.witness.plain import GIVEN_UP, NOTHING, Made

MOST, FEW = 6, 2
"""An event that wants to be more rows than this is given up; by another version, earlier."""
_INTEGER = re.compile(rb"[+-]?[0-9]+")


def orders(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are."""
    return {"orders_rows": df, "orders_sums": df}


def plain_orders(_: bytes | None, value: bytes | None) -> Made:
    row = _row(value, k=_text, v=_bigint, note=_text)
    return GIVEN_UP if row is None else {"orders_rows": [row], "orders_sums": [row]}


def orders_measured(df: DataFrame) -> dict[str, DataFrame]:
    """The records, and how long their notes are."""
    return orders(_measured(df, "note"))


def plain_orders_measured(key: bytes | None, value: bytes | None) -> Made:
    return _plain_measured(plain_orders(key, value), "note")


def orders_unmeasured(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are, with nothing where the length was."""
    return {"orders_rows": df, "orders_sums": df.withColumn("length", F.lit(None).cast("int"))}


plain_orders_unmeasured = plain_orders


def accounts(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are; a deletion is no booking."""
    return {"accounts_last": df, "accounts_sums": df.where(~F.col("_deleted"))}


def plain_accounts(key: bytes | None, value: bytes | None) -> Made:
    if key is None or not _INTEGER.fullmatch(key) or not _bigint(int(key)):
        return GIVEN_UP
    if value is None:
        return {"accounts_last": [{"id": int(key), "_deleted": True}]}
    row = _row(value, owner=_text, balance=_bigint)
    return GIVEN_UP if row is None else {"accounts_last": [{"id": int(key), **row}], "accounts_sums": [row]}


def accounts_measured(df: DataFrame) -> dict[str, DataFrame]:
    """The records, and how long their owners' names are."""
    return {**accounts(df), "accounts_last": _measured(df, "owner")}


def plain_accounts_measured(key: bytes | None, value: bytes | None) -> Made:
    return _plain_measured(plain_accounts(key, value), "owner")


def accounts_owed(df: DataFrame) -> dict[str, DataFrame]:
    """The same with the lengths below zero, which is how the two are told apart."""
    return {**accounts(df), "accounts_last": _measured(df, "owner").withColumn("length", -F.col("length"))}


def plain_accounts_owed(key: bytes | None, value: bytes | None) -> Made:
    return _plain_measured(plain_accounts(key, value), "owner", sign=-1)


def sent(df: DataFrame, first: int = 0, shards: int = 16) -> dict[str, DataFrame]:
    """The records as they are, with sums by some of many shards; a deletion is no row of the others."""
    living = df.where(~F.col("_deleted"))
    summed = living.withColumn("shard", (F.pmod(F.col("id"), F.lit(shards)) + first).cast("int"))
    return {"sent_rows": living, "sent_last": df, "sent_sums": summed}


def plain_sent(key: bytes | None, value: bytes | None, first: int = 0, shards: int = 16) -> Made:
    made = plain_accounts(key, value)
    last = made.get("accounts_last")
    if last is None:
        return made
    living = [row for row in last if not row.get("_deleted")]
    summed = [{**row, "shard": row["id"] % shards + first} for row in living]
    return {"sent_rows": living, "sent_last": last, "sent_sums": summed}


def sent_otherwise(df: DataFrame) -> dict[str, DataFrame]:
    """The same by other shards: a revision leaves keys that it had, and has others."""
    return sent(df, 8, 11)


def plain_sent_otherwise(key: bytes | None, value: bytes | None) -> Made:
    return plain_sent(key, value, 8, 11)


def events(df: DataFrame, most: int = MOST) -> dict[str, DataFrame]:
    """As many rows as the record says; `v` counts on from row to row, and sums, which are asked for by SQL of a view
    that has the same name in every slice, leave out every third.
    """
    given_up = F.when(F.col("times") > most, F.lit("more rows than anybody needs"))
    seen = df.withColumn("error", given_up)
    good = seen.where(F.col("error").isNull())
    many = good.select("k", "at", "v", "_partition", "_offset", F.posexplode(F.array_repeat("at", F.col("times"))))
    rows = many.withColumn("_n", F.col("pos")).withColumn("v", F.col("v") + F.col("pos")).drop("pos", "col")
    rows.createOrReplaceTempView("events")
    summed = df.sparkSession.sql("select *, cast(pmod(v, 2) as int) as odd from events where v % 3 <> 0")
    return {
        "events_rows": rows,
        "events_sums": summed,
        "events_last": rows,
        DEAD_LETTERS: seen.where(F.col("error").isNotNull()),
    }


def events_of_few(df: DataFrame) -> dict[str, DataFrame]:
    """The same, where more events are given up."""
    return events(df, FEW)


def plain_events_of_few(key: bytes | None, value: bytes | None) -> Made:
    return plain_events(key, value, FEW)


def plain_events(_: bytes | None, value: bytes | None, most: int = MOST) -> Made:
    said = _row(value, k=_text, at=_bigint, times=_int, v=_bigint)
    if said is None or (said["times"] or 0) > most:
        return GIVEN_UP
    k, at, v = said["k"], said["at"], said["v"]
    rows = [{"k": k, "at": at, "v": None if v is None else v + n, "_n": n} for n in range(said["times"] or 0)]
    summed = [{**row, "odd": row["v"] % 2} for row in rows if row["v"] is not None and row["v"] % 3]
    return {"events_rows": rows, "events_sums": summed, "events_last": rows} if rows else NOTHING


def archive(df: DataFrame) -> dict[str, DataFrame]:
    """The records as they are."""
    return {"archive_rows": df}


def plain_archive(_: bytes | None, value: bytes | None) -> Made:
    row = _row(value, id=_bigint, body=_text)
    return GIVEN_UP if row is None else {"archive_rows": [row]}


def archive_measured(df: DataFrame) -> dict[str, DataFrame]:
    """The records, and how long their bodies are."""
    return archive(_measured(df, "body"))


def plain_archive_measured(key: bytes | None, value: bytes | None) -> Made:
    return _plain_measured(plain_archive(key, value), "body")


def _measured(df: DataFrame, column: str) -> DataFrame:
    """With the length of a text, in characters."""
    return df.withColumn("length", F.char_length(column).cast("int"))


def _plain_measured(made: Made, column: str, sign: int = 1) -> Made:
    def measured(row: dict) -> dict:
        text = row.get(column)
        return {**row, "length": None if text is None else sign * len(text)}

    return {sink: [measured(row) for row in rows] for sink, rows in made.items()}


def _row(value: bytes | None, **columns: Callable[[object], bool]) -> dict | None:
    """The declared columns of a value; None where it is not one JSON object that has them in their types."""
    if value is None:
        return None
    try:
        said = json.loads(value.decode())
    except ValueError:
        return None
    if type(said) is not dict:
        return None
    row = {name: said.get(name) for name in columns}
    return row if all(row[name] is None or fits(row[name]) for name, fits in columns.items()) else None


def _bigint(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _int(value: object) -> bool:
    return type(value) is int and -(2**31) <= value < 2**31


def _text(value: object) -> bool:
    """Whether PostgreSQL can store it: no U+0000, no half of a surrogate pair."""
    if type(value) is not str or "\x00" in value:
        return False
    return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
