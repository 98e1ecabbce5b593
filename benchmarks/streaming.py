"""The third contestant: Structured Streaming in a driver of its own, which stays warm from run to run.

As a process of its own it takes one JSON request a line from its input and answers each with one line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

STAGING, CONTROL = "bench_staging", "bench_control"
_ANSWER = "ANSWER "


class Streaming:
    """The driver's process; a context manager that ends it."""

    def __init__(self, jars: list[Path], java: Path, log: Path, checkout: Path):
        self._env = os.environ | {
            "JAVA_HOME": str(java.parent.parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "BENCH_JARS": ",".join(map(str, jars)),
            "PYTHONPATH": str(checkout),
            "PYSPARK_PYTHON": sys.executable,
        }
        self._log, self._checkout = log, checkout

    def __enter__(self) -> Streaming:
        self._out = self._log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.streaming"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._out,
            text=True,
            cwd=self._checkout,
            env=self._env,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._out.close()

    def run(self, request: dict[str, Any]) -> float:
        """Seconds from the query's start to the last commit; RuntimeError that names the log."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(_ANSWER):
                return json.loads(line.removeprefix(_ANSWER))["seconds"]
        raise RuntimeError(f"the streaming driver ended; see {self._log}")


def make_tables(ledger_url: str, target: str) -> None:
    """Staging and control tables, logged like the target; both empty."""
    named = {"staging": sql.Identifier(STAGING), "control": sql.Identifier(CONTROL), "target": sql.Identifier(target)}
    with psycopg.connect(ledger_url, autocommit=True) as conn:
        for statement in (
            "drop table if exists {staging}, {control}",
            "create table {staging} as select * from {target} with no data",
            "alter table {staging} drop column _topic, drop column _n, drop column _txid",
            "create table {control} (last_batch bigint not null)",
            "insert into {control} values (-1)",
            "checkpoint",
        ):
            conn.execute(sql.SQL(statement).format(**named))


def _stream(spark, request: dict[str, Any]) -> float:
    """One query over everything that waits; every micro-batch goes through the staging table."""
    from pyspark.sql import functions as F

    names = [part.split()[0] for part in request["columns"].split(",")]
    options = {f"kafka.{name}": value for name, value in request["kafka"].items()}
    records = (
        spark.readStream.format("kafka")
        .options(**options)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", request["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", request["cap"])
        .option("kafka.max.poll.records", "20000")
        .option("kafka.max.partition.fetch.bytes", str(16 * 2**20))
        .load()
        .withColumn("_parsed", F.from_json(F.col("value").cast("string"), request["columns"]))
        .select(
            *(F.col("_parsed").getField(name).alias(name) for name in names),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
        )
    )
    ended = [0.0]
    conn = psycopg.connect(request["ledger_url"])

    def write(batch, batch_id: int) -> None:
        (
            batch.write.format("jdbc")
            .options(**_jdbc(request["ledger_url"]))
            .option("dbtable", STAGING)
            .option("truncate", "true")
            .option("batchsize", request["batch_size"])
            .mode("overwrite")
            .save()
        )
        _apply(conn, request["table"], request["topic"], names, batch_id)
        ended[0] = time.monotonic()

    with tempfile.TemporaryDirectory(prefix="bench-", dir=request["home"]) as checkpoint, conn:
        started = time.monotonic()
        query = (
            records.writeStream.foreachBatch(write)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return ended[0] - started


def _apply(conn: psycopg.Connection, table: str, topic: str, names: list[str], batch_id: int) -> None:
    """What makes the batch count once: its rows and its number, in one database transaction."""
    columns = sql.SQL(", ").join(map(sql.Identifier, [*names, "_partition", "_offset"]))
    insert = sql.SQL("insert into {} ({}, _topic, _n, _txid) select {}, %s, 0, %s from {}").format(
        sql.Identifier(table), columns, columns, sql.Identifier(STAGING)
    )
    control = sql.Identifier(CONTROL)
    with conn.transaction():
        (last,) = conn.execute(sql.SQL("select last_batch from {} for update").format(control)).fetchone()
        if batch_id > last:
            conn.execute(insert, [topic, batch_id])
            conn.execute(sql.SQL("update {} set last_batch = %s").format(control), [batch_id])


def _jdbc(ledger_url: str) -> dict[str, str]:
    said = conninfo_to_dict(ledger_url)
    query = urlencode({"reWriteBatchedInserts": "true"})
    return {
        "url": f"jdbc:postgresql://{said['host']}:{said['port']}/{said['dbname']}?{query}",
        "user": said["user"],
        "password": said["password"],
        "driver": "org.postgresql.Driver",
    }


def main() -> None:
    """Answer requests until the input ends."""
    from pyspark.sql import SparkSession

    jars = os.environ["BENCH_JARS"]
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.jars", jars)
        # The JDBC driver is looked for by DriverManager, which does not see jars that were added later.
        .config("spark.driver.extraClassPath", jars.replace(",", os.pathsep))
        .config("spark.driver.memory", "1536m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    for line in sys.stdin:
        seconds = _stream(spark, json.loads(line))
        print(_ANSWER + json.dumps({"seconds": seconds}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
