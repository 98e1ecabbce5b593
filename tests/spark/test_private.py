"""A private pipeline: whatever fails, no value of a record is in the ledger, in an error or in a log."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from psycopg import sql
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from structlog.testing import capture_logs

from ratchet import Accumulate, Append, Condition, Pipeline, Refused, Sql, Upsert
from ratchet.airflow.run import final_errors
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import commit
from ratchet.protocol.failures import errors_recorded, last_error
from ratchet.protocol.process import process_slice
from ratchet.spark.failure import CONNECT_LOGGER
from ratchet.spec.pipeline import DEAD_LETTERS
from ratchet.values.withheld import kept_out

from .rig import SINK, Rig, spec_of

TEXT, NUMBER = "S3NT1NEL", 734120995
ROWS = [b'{"a": %d, "b": "%s"}' % (NUMBER, TEXT.encode())]
MINE = """
    create table mine (a int, b text {},
        _topic text not null, _partition int not null, _offset bigint not null, _n int not null, _txid bigint not null)
"""
TRIGGER = """
    create function refuse() returns trigger language plpgsql as
        $$ begin raise exception using message = 'no ' || new.b, detail = new.b, errcode = '{}'; end $$;
    create trigger refuse before insert on mine for each row execute function refuse()
"""
OWN = [Append("mine", columns="a int, b string", existing=True)]


def raises_on_a_worker(rows: pa.Table) -> dict[str, pa.Table]:
    raise KeyError(rows.column("b")[0].as_py())


def raises_in_words_like_a_traceback(rows: pa.Table) -> dict[str, pa.Table]:
    value = rows.column("b")[0].as_py()
    raise ValueError(f'odd\n  File "/{value}/of.py", line 3, in {value}\n    {value}\nKeyError: {value}')


def refuses_on_a_worker(rows: pa.Table) -> dict[str, pa.Table]:
    raise Refused(f"not {rows.column('b')[0]}")


def gives_up(rows: pa.Table) -> dict[str, pa.Table]:
    return {SINK: rows.slice(0, 0), DEAD_LETTERS: rows.append_column("error", rows.column("b"))}


def gives_no_uuid(rows: pa.Table) -> dict[str, pa.Table]:
    return {SINK: rows.append_column("u", rows.column("b"))}


def gives_no_date(rows: pa.Table) -> dict[str, pa.Table]:
    return {SINK: rows.append_column("c", pc.cast(rows.column("b"), pa.int32()))}


def raises_on_the_driver(rows: DataFrame) -> dict[str, DataFrame]:
    raise LookupError(rows.collect()[0].b)


def refuses_on_the_driver(rows: DataFrame) -> dict[str, DataFrame]:
    raise Refused(f"not {rows.collect()[0].b}")


def fails_in_spark(rows: DataFrame) -> dict[str, DataFrame]:
    return {SINK: rows.withColumn("a", F.col("b").cast("int"))}


def gives_up_in_spark(rows: DataFrame) -> dict[str, DataFrame]:
    return {SINK: rows.where("false"), DEAD_LETTERS: rows.withColumn("error", F.col("b"))}


def raises_in_python(rows: DataFrame) -> dict[str, DataFrame]:
    def of(value: str) -> int:
        raise ValueError(value)

    return {SINK: rows.withColumn("a", F.udf(of, "int")("b"))}


def refuses_in_python(rows: DataFrame) -> dict[str, DataFrame]:
    def of(value: str) -> int:
        raise Refused(value)

    return {SINK: rows.withColumn("a", F.udf(of, "int")("b"))}


@dataclass(frozen=True)
class Case:
    """What fails, and how: a transform, sinks, gates, records by partition, and tables that are there before.

    `told` is what a private pipeline says of it.
    """

    told: str
    transform: Callable | None = None
    sinks: list | None = None
    gates: list = field(default_factory=list)
    records: list[list[bytes]] = field(default_factory=lambda: [ROWS])
    before: str = "select 1"
    columns: str = "a int, b string"
    more: dict = field(default_factory=dict)
    keys: bytes | None = None


HEADER = [("trace", TEXT.encode())]
CASES = {
    "a value of another type": Case(
        "column a: found [private], wanted int", records=[[b'{"a": "%s"}' % TEXT.encode()]]
    ),
    "a value that is no JSON": Case("the value: found [private]", records=[[TEXT.encode()]]),
    "a key": Case("key column k: found [private], wanted int", keys=TEXT.encode(), more={"key": "k int"}),
    "a key of a map": Case(
        "column m: found [private], wanted map<string, int>",
        columns="m map<string, int>",
        records=[[b'{"m": {"%s": "x"}}' % TEXT.encode()]],
    ),
    "a header": Case("column h: found [private], wanted int", columns="a int, h int from _headers.trace"),
    "a field's name": Case("is null everywhere", columns=f"{TEXT}a int", records=[[b'{"%sb": 1}' % TEXT.encode()]]),
    "a reason of the transform's": Case("given up by the transform", transform=gives_up),
    "a reason of a DataFrame's": Case("given up by the transform", transform=gives_up_in_spark),
    "an error of the transform's": Case(
        "raised KeyError at tests/spark/test_private.py:", transform=raises_on_a_worker
    ),
    "words like a traceback": Case(
        "raised ValueError at tests/spark/test_private.py:", transform=raises_in_words_like_a_traceback
    ),
    "a refusal": Case("raised Refused at tests/spark/test_private.py:", transform=refuses_on_a_worker),
    "an error in Arrow": Case("raised ArrowInvalid at tests/spark/test_private.py:", transform=gives_no_date),
    "a value of the transform's": Case(
        "column u: found [private], wanted uuid",
        transform=gives_no_uuid,
        sinks=[Append(SINK, columns="a int, u uuid")],
    ),
    "an error on the driver": Case(
        "raised LookupError at tests/spark/test_private.py:", transform=raises_on_the_driver
    ),
    "a refusal on the driver": Case("raised Refused at tests/spark/test_private.py:", transform=refuses_on_the_driver),
    "a cast in Spark": Case("CAST_INVALID_INPUT", transform=fails_in_spark),
    "a cast in SQL": Case(
        "statement 'rows', line 1, character 8: NumberFormatException CAST_INVALID_INPUT",
        transform=Sql(rows="select int(b) as a, b from records"),
    ),
    "an error in Spark's Python": Case("ValueError at tests/spark/test_private.py:", transform=raises_in_python),
    "a refusal in Spark's Python": Case("Refused at tests/spark/test_private.py:", transform=refuses_in_python),
    "a unique index": Case(
        "UniqueViolation (23505), schema public, table mine, constraint once",
        sinks=OWN,
        records=[ROWS * 2],
        before=MINE.format("constraint once unique"),
    ),
    "a check constraint": Case(
        "CheckViolation (23514), schema public, table mine, constraint short",
        sinks=OWN,
        before=MINE.format("constraint short check (length(b) < 3)"),
    ),
    "a trigger that refuses": Case(
        "RaiseException (P0001)", sinks=OWN, before=MINE.format("") + ";" + TRIGGER.format("P0001")
    ),
    "a commit that PostgreSQL cannot do": Case(
        "OutOfMemory (53200)", sinks=OWN, before=MINE.format("") + ";" + TRIGGER.format("53200")
    ),
    "a gate that cannot be evaluated": Case(
        "it cannot be evaluated: InvalidTextRepresentation (22P02)",
        gates=[Condition("all are numbers", "(select bool_and(b::int > 0) from rows)")],
    ),
    "a key in two partitions": Case(
        "lasts: a key is in partition 0 at offset 0 and in partition 1",
        sinks=[Upsert("lasts", key="b string", columns="a int")],
        records=[ROWS, ROWS],
        columns="a int",
        more={"key": "b string"},
        keys=TEXT.encode(),
    ),
    "a sum that does not fit": Case(
        "a sum does not fit a int64",
        sinks=[Accumulate("sums", key="b string", sum="a bigint")],
        columns="a bigint, b string",
        records=[[b'{"a": %d0000000000, "b": "x"}' % NUMBER] * 2],
    ),
}
QUICK = (
    "a value of another type",
    "a header",
    "an error of the transform's",
    "a unique index",
    "a gate that cannot be evaluated",
    "a cast in SQL",
)
NEVER_SAID = ("a sum that does not fit", "a unique index", "a check constraint")
"""Of these the value is not in PostgreSQL's first line, which is all that is taken, or is left out in any case."""


def spec_for(topic: str, case: Case, *, private: bool) -> Pipeline:
    sinks = case.sinks or [Append(SINK, columns=case.columns.split(" from ")[0])]
    given = {"value": case.columns, "sinks": sinks, "gates": case.gates, "private": private}
    return spec_of(topic, case.transform, **given, **case.more)


def everything_said(rig: Rig, case: Case, *, private: bool) -> str:
    """All texts of the ledger, but the bytes of dead letters, and all that was logged or raised: what Airflow shows."""
    with psycopg.connect(rig.ledger.url, autocommit=True) as conn:
        conn.execute(case.before)
    topic = rig.topic(len(case.records))
    for partition, records in enumerate(case.records):
        keys = [case.keys] * len(records) if case.keys else None
        rig.send(topic, *records, partition=partition, keys=keys, headers=HEADER)
    spec = spec_for(topic, case, private=private)
    (work,) = rig.begin(spec)
    said: list[str] = []

    def doing(act: Callable[[], object]) -> None:
        try:
            with final_errors(), kept_out(private):
                said.append(str(act()))
        except Exception as error:
            said.extend(traceback.format_exception(error))

    def process() -> object:
        with errors_recorded(rig.ledger, work.token):
            return process_slice(rig.ledger, spec, work, lambda: rig.run(spec, work))

    with capture_logs() as logs:
        doing(process)
        doing(lambda: commit(rig.ledger, spec, rig.claim).message)
        with rig.ledger.begin() as conn:
            row = read_transaction(conn, "p", 1)
            why = row.reason or last_error(conn, row)
        doing(lambda: settle(rig.ledger, spec, Run("dag", "run"), succeeded=False, reason=why))
    return "\n".join([*said, json.dumps(logs, default=str), *texts(rig)])


def texts(rig: Rig) -> list[str]:
    """Each cell of the ledger's tables that is text, or has text in it."""
    found: list[str] = []
    with psycopg.connect(rig.ledger.url) as conn:
        columns = conn.execute(
            "select table_schema, table_name, column_name from information_schema.columns "
            "where (table_schema = 'ratchet' or table_name = 'dead_letters') and table_schema <> 'information_schema' "
            "and data_type in ('text', 'character varying', 'jsonb', 'json', 'ARRAY')"
        ).fetchall()
        for schema, table, column in columns:
            if table == DEAD_LETTERS and column == "headers":
                continue
            query = sql.SQL("select {}::text from {}").format(sql.Identifier(column), sql.Identifier(schema, table))
            found += [f"{table}.{column}: {cell}" for (cell,) in conn.execute(query) if cell is not None]
    return found


def leaks(said: str) -> list[str]:
    return [line for line in said.splitlines() if TEXT in line or str(NUMBER) in line]


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.all) for name in CASES])
def test_no_value_of_a_private_pipeline_is_kept_or_said(rig, name, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, "ratchet")
    for of in ("SQL", "DataFrame"):
        # PySpark's own, which write to stderr whatever else is set.
        monkeypatch.setattr(PySparkLogger.getLogger(f"{of}QueryContextLogger"), "handlers", [caplog.handler])
    # As in a task of Airflow's, whose set-up of logging lets every logger speak.
    connect = PySparkLogger.getLogger(CONNECT_LOGGER)
    monkeypatch.setattr(connect, "disabled", False)
    monkeypatch.setattr(connect, "handlers", [caplog.handler])
    said = everything_said(rig, CASES[name], private=True) + caplog.text
    assert CASES[name].told in said, "\n".join(said.splitlines()[:60])
    found = leaks(said.replace(f"{TEXT}a", "column"))
    assert not found, found


@pytest.mark.all
@pytest.mark.parametrize("name", [name for name in CASES if name not in NEVER_SAID])
def test_without_it_the_value_is_found_where_the_test_looks(rig, name):
    assert leaks(everything_said(rig, CASES[name], private=False).replace(f"{TEXT}a", "column"))
