"""Structured Streaming in a driver of its own, which stays warm from run to run.

As a process of its own it takes one JSON request a line from its input and answers each with one line. Every
micro-batch of `append`, `accumulate` and `upsert` goes through a staging table, and counts once by its number in a
control table; those of `send` go to Structured Streaming's own sinks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import urlencode

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from benchmarks.backlog import COLUMNS, SCHEMA, Backlog, Form
from benchmarks.copying import copy_rows
from benchmarks.table import PLAIN_COLUMNS, make
from ratchet.dev.stack import CHECKOUT

APPENDED, TOTALS, LATEST = "bench_stream", "bench_stream_totals", "bench_stream_latest"
STAGING, CONTROL = "bench_staging", "bench_control"
_TOTALS = "account text, score_sum bigint, n bigint"
_ANSWER = "ANSWER "

Sink = Literal["kafka", "parquet", "delta"]
"""Structured Streaming's own sinks."""
Writer = Literal["jdbc", "copy"]
"""How a micro-batch gets into the staging table: by Spark's own JDBC writer, or by binary COPY of Arrow batches."""


class Streaming:
    """The driver's process; a context manager that ends it. Its results are the moments at which micro-batches were
    committed, in seconds from the query's start.
    """

    def __init__(self, jars: list[Path], java: Path, home: Path, kafka: dict[str, str], ledger_url: str):
        self._env = os.environ | {
            "JAVA_HOME": str(java.parent.parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "BENCH_JARS": ",".join(map(str, jars)),
            "PYTHONPATH": str(CHECKOUT),
            "PYSPARK_PYTHON": sys.executable,
        }
        # A session of Spark Connect in this process has said that it is a client; the driver is none.
        self._env.pop("SPARK_CONNECT_MODE_ENABLED", None)
        self._home, self._log = home, home / "streaming.log"
        self._kafka, self._url = kafka, ledger_url

    def __enter__(self) -> Streaming:
        self._out = self._log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.streaming"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._out,
            text=True,
            cwd=CHECKOUT,
            env=self._env,
        )
        return self

    def __exit__(self, *_: object) -> None:
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._out.close()

    def append(self, backlog: Backlog, writer: Writer, batch_size: int) -> list[float]:
        """Every record into an empty table APPENDED."""
        make(self._url, {APPENDED: PLAIN_COLUMNS, STAGING: PLAIN_COLUMNS})
        insert = f"insert into {APPENDED} select * from {STAGING}"  # noqa: S608
        return self._run(backlog, writer, batch_size, insert)

    def accumulate(self, backlog: Backlog, writer: Writer, batch_size: int) -> list[float]:
        """Sums and numbers by account into an empty table TOTALS."""
        make(self._url, {TOTALS: f"{_TOTALS}, primary key (account)", STAGING: _TOTALS})
        insert = (
            f"insert into {TOTALS} as t select * from {STAGING} on conflict (account) do update "  # noqa: S608
            "set score_sum = t.score_sum + excluded.score_sum, n = t.n + excluded.n"
        )
        return self._run(backlog, writer, batch_size, insert, totals=True)

    def upsert(self, backlog: Backlog, writer: Writer, batch_size: int) -> list[float]:
        """The last record of each id into an empty table LATEST; a micro-batch must not have an id twice."""
        make(self._url, {LATEST: f"{PLAIN_COLUMNS}, primary key (id)", STAGING: PLAIN_COLUMNS})
        return self._run(backlog, writer, batch_size, upsert_of(LATEST, STAGING))

    def send(self, backlog: Backlog, sink: Sink, target: str) -> float:
        """Every record into a sink of its own, a topic or a directory; seconds."""
        (seconds,) = self._answer(
            _Sent(self._kafka, backlog.topic, backlog.form, backlog.cap, sink, target, str(self._home))
        )
        return seconds

    def _run(self, backlog: Backlog, writer: Writer, batch_size: int, insert: str, totals: bool = False) -> list[float]:
        """The moments; RuntimeError that names the log."""
        make(self._url, {CONTROL: "last_batch bigint not null"})
        of = backlog.topic, backlog.form, backlog.cap
        request = _Request(self._kafka, self._url, *of, writer, batch_size, insert, totals, str(self._home))
        ends = self._answer(request)
        if len(ends) != len(backlog.plans):
            raise RuntimeError(f"{len(ends)} micro-batches, not {len(backlog.plans)}")
        return ends

    def _answer(self, request: _Request | _Sent) -> list[float]:
        stdin = _pipe(self._process.stdin)
        stdin.write(json.dumps(vars(request)) + "\n")
        stdin.flush()
        for line in _pipe(self._process.stdout):
            if line.startswith(_ANSWER):
                return json.loads(line.removeprefix(_ANSWER))
        raise RuntimeError(f"the streaming driver ended; see {self._log}")


def upsert_of(target: str, rows: str) -> str:
    """The bare statement that puts rows with other ids each into a target."""
    columns = ("account", "amount", "score", "kind", "_partition", "_offset")
    changes = ", ".join(f"{name} = excluded.{name}" for name in columns)
    # Both are names of this package's own tables.
    return f"insert into {target} select * from {rows} on conflict (id) do update set {changes}"  # noqa: S608


@dataclass(frozen=True)
class _Request:
    """What the driver is asked: a query over everything that waits."""

    kafka: dict[str, str]
    ledger_url: str
    topic: str
    form: Form
    cap: int
    writer: Writer
    batch_size: int
    insert: str
    totals: bool
    home: str


@dataclass(frozen=True)
class _Sent:
    """What the driver is asked: a query over everything that waits, into a sink of Spark's own."""

    kafka: dict[str, str]
    topic: str
    form: Form
    cap: int
    sink: Sink
    target: str
    home: str


def _records(spark: Any, request: _Request | _Sent) -> Any:
    """A stream of everything that waits, decoded."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    names = [part.split()[0] for part in COLUMNS.split(",")]
    options = {f"kafka.{name}": value for name, value in request.kafka.items()}
    value = F.col("value")
    parsed = from_avro(value, SCHEMA) if request.form == "avro" else F.from_json(value.cast("string"), COLUMNS)
    return (
        spark.readStream.format("kafka")
        .options(**options)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", request.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", request.cap)
        .option("kafka.max.poll.records", "20000")
        .option("kafka.max.partition.fetch.bytes", str(16 * 2**20))
        .load()
        .withColumn("_parsed", parsed)
        .select(
            *(F.col("_parsed").getField(name).alias(name) for name in names),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
        )
    )


def _send(spark: Any, request: _Sent) -> list[float]:
    """One query over everything that waits; the seconds that it took."""
    from pyspark.sql import functions as F

    records = _records(spark, request)
    if request.sink == "kafka":
        value = F.to_json(F.struct(*[part.split()[0] for part in COLUMNS.split(",")]))
        writing = records.select(F.col("account").alias("key"), value.alias("value")).writeStream.format("kafka")
        options = {f"kafka.{name}": value for name, value in request.kafka.items()}
        writing = writing.options(**options, **{"topic": request.target, "kafka.compression.type": "lz4"})
    else:
        writing = records.writeStream.format(request.sink).option("path", request.target)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=request.home) as checkpoint:
        started = time.monotonic()
        writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        return [time.monotonic() - started]


def _stream(spark: Any, request: _Request) -> list[float]:
    """One query over everything that waits."""
    from pyspark.sql import functions as F

    records = _records(spark, request)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", request.batch_size)
    ends: list[float] = []
    conn = psycopg.connect(request.ledger_url, autocommit=True)
    conn.execute(sql.SQL("insert into {} values (-1)").format(sql.Identifier(CONTROL)))

    def write(batch: Any, batch_id: int) -> None:
        if request.totals:
            grouped = batch.groupBy("account")
            batch = grouped.agg(F.sum("score").alias("score_sum"), F.count(F.lit(1)).alias("n"))
        if request.writer == "jdbc":
            jdbc = batch.write.format("jdbc").options(**_jdbc(request.ledger_url)).option("dbtable", STAGING)
            jdbc.option("truncate", "true").option("batchsize", request.batch_size).mode("overwrite").save()
        else:
            conn.execute(sql.SQL("truncate {}").format(sql.Identifier(STAGING)))
            batch.mapInArrow(_Copying(request.ledger_url), "n bigint").collect()
        _apply(conn, request.insert, batch_id)
        ends.append(time.monotonic() - started)

    with tempfile.TemporaryDirectory(prefix="bench-", dir=request.home) as checkpoint, conn:
        started = time.monotonic()
        query = (
            records.writeStream.foreachBatch(write)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return ends


@dataclass(frozen=True)
class _Copying:
    """What each task of a micro-batch does: its partition in one database transaction."""

    ledger_url: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        with psycopg.connect(self.ledger_url) as conn:
            for batch in batches:
                copy_rows(conn, STAGING, batch)
                count += batch.num_rows
        yield pa.record_batch([pa.array([count], pa.int64())], ["n"])


def _apply(conn: psycopg.Connection, insert: str, batch_id: int) -> None:
    """What makes the batch count once: its rows and its number, in one database transaction."""
    control = sql.Identifier(CONTROL)
    with conn.transaction():
        found = conn.execute(sql.SQL("select last_batch from {} for update").format(control)).fetchone()
        assert found is not None, "the driver has put it there"
        if batch_id > found[0]:
            conn.execute(insert.encode())
            conn.execute(sql.SQL("update {} set last_batch = %s").format(control), [batch_id])


def _jdbc(ledger_url: str) -> dict[str, Any]:
    said = conninfo_to_dict(ledger_url)
    query = urlencode({"reWriteBatchedInserts": "true"})
    return {
        "url": f"jdbc:postgresql://{said['host']}:{said['port']}/{said['dbname']}?{query}",
        "user": said["user"],
        "password": said["password"],
        "driver": "org.postgresql.Driver",
    }


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "the process was started with pipes"
    return pipe


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
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    for line in sys.stdin:
        asked = json.loads(line)
        ends = _send(spark, _Sent(**asked)) if "sink" in asked else _stream(spark, _Request(**asked))
        print(_ANSWER + json.dumps(ends), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
