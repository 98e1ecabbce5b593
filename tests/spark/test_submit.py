"""A driver as spark-submit starts it, with a classic session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import psycopg
import pyarrow as pa
import pytest
from kafka import KafkaProducer
from psycopg import sql
from pyspark.sql import functions as F

from ratchet.dev.stack import CHECKOUT, prerequisites
from ratchet.dev.stack.connect import spark_home
from ratchet.dev.stack.ports import HOST
from ratchet.errors import FAILED_FOR_GOOD
from ratchet.ledger.connection import Ledger
from ratchet.ledger.transactions import read_transaction
from ratchet.ledger.work import Run, SliceWork
from ratchet.operate.migrate import migrate
from ratchet.protocol.begin import begin
from ratchet.protocol.begun import Begun
from ratchet.protocol.failures import met_outages_alone
from ratchet.protocol.votes import take_try
from ratchet.source.kafka import Kafka
from ratchet.spec.pipeline import DEAD_LETTERS
from tests.spark.pipelines import dropping, failing, peeking, raising, selecting
from tests.until import until

TOPIC = "dropping"
"""Of all these specs; each test has it anew."""


def nothing(df):
    return {"dropping": df.where(F.lit(False))}


def rate_of(currency):
    return {"EUR": 1}[currency]


def raise_over_tables(rows: pa.Table) -> dict[str, pa.Table]:
    return {"raising": rows.append_column("b", [rate_of("GBP")])}


def raise_in_a_column(df):
    return {"failing": df.withColumn("a", F.udf(lambda a: rate_of("GBP"), "int")("a"))}


def peek(df):
    df.limit(1).collect()
    return {"peeking": df}


@pytest.fixture(params=[dropping.PIPELINE])
def work(request, ledger_url, kafka_properties):
    """The only slice of a transaction over ten records, one of which is no record of the topic's form."""
    spec = request.param
    with Kafka(kafka_properties) as client, Ledger(ledger_url) as ledger:
        client.admin.create_topics({TOPIC: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        producer = KafkaProducer(bootstrap_servers=kafka_properties["bootstrap.servers"], acks="all")
        for value in [*(b'{"a": %d}' % a for a in range(9)), b"bad"]:
            producer.send(TOPIC, value, partition=0)
        producer.close()
        migrate(ledger_url, [spec])
        begun = begin(ledger, spec, Run("dag", "run"), partial(client.offsets, TOPIC), lambda *_: True)
        assert isinstance(begun, Begun), begun
        work = take_try(ledger, spec, begun.claim, 0)
        assert isinstance(work, SliceWork), work
        yield work
        client.admin.delete_topics([TOPIC])
        until("the topic is gone", lambda: TOPIC not in client.admin.list_topics())


def submit(
    work: SliceWork, ledger_url: str, kafka: dict[str, str], master: str = "local[1]"
) -> subprocess.CompletedProcess:
    token = work.token
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", master, "--driver-memory", "768m"]
    command += ["--conf", "spark.ui.enabled=false"]
    command += ["--jars", ",".join(map(str, prerequisites.jars(CHECKOUT, "spark")))]
    command += [str(CHECKOUT / "jobs" / "process_slice.py"), token.pipeline]
    command += map(str, token.numbers)
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "JAVA_HOME": str(prerequisites.java().parent.parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(CHECKOUT),
        "RATCHET_PIPELINES": "tests.spark.pipelines",
        "RATCHET_LEDGER_URL": ledger_url,
        "RATCHET_KAFKA": json.dumps(kafka),
        "RATCHET_LOGS": "json",
    }
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)


@pytest.mark.all
def test_a_submitted_driver_whose_transform_drops_everything_votes_for_all_it_read(work, ledger_url, kafka_properties):
    done = submit(work, ledger_url, kafka_properties)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    with psycopg.connect(ledger_url) as conn:
        found = conn.execute("select records, reached, sinks, dead_letters from ratchet.slices").fetchall()
        delta = sql.Identifier(*work.relations[DEAD_LETTERS])
        dead = conn.execute(sql.SQL("select _partition, _offset, value from {}").format(delta)).fetchall()
    ((records, reached, sinks, dead_letters),) = found
    assert (records, reached, dead_letters) == (10, {"0": 10}, 1)
    assert sinks["dropping"]["rows"] == 0
    assert dead == [(0, 9, b"bad")]


@pytest.mark.all
@pytest.mark.parametrize("work", [peeking.PIPELINE], indirect=True)
def test_a_submitted_driver_whose_transform_looks_at_a_record_first_votes_for_all_it_read(
    work, ledger_url, kafka_properties
):
    done = submit(work, ledger_url, kafka_properties)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    with psycopg.connect(ledger_url) as conn:
        ((records, sinks, dead),) = conn.execute("select records, sinks, dead_letters from ratchet.slices").fetchall()
    assert (sinks["peeking"]["rows"], dead) == (records - dead, records // 10)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    told = [(line["pipeline"], line["txid"], line["try"]) for line in said if "records read" in line["event"]]
    assert told == [("peeking", 1, 1)]


@pytest.mark.all
@pytest.mark.parametrize(
    ("work", "caller"),
    [(raising.PIPELINE, raise_over_tables), (failing.PIPELINE, raise_in_a_column)],
    indirect=["work"],
    ids=["tables", "column"],
)
def test_a_submitted_driver_says_the_persons_own_line_and_logs_those_that_led_there(
    work, caller, ledger_url, kafka_properties
):
    done = submit(work, ledger_url, kafka_properties)
    assert done.returncode == FAILED_FOR_GOOD, done.stdout + done.stderr[-3000:]
    inner, outer = (function.__code__.co_firstlineno + 1 for function in (rate_of, caller))
    with psycopg.connect(ledger_url) as conn:
        ((detail,),) = conn.execute("select detail from ratchet.events where move = 'error'").fetchall()
    here = "tests/spark/test_submit.py"
    assert detail["code"] == "RAT-501"
    assert detail["why"].endswith(f"raised KeyError: 'GBP' ({here}, line {inner})"), detail
    said = [json.loads(line) for line in done.stderr.splitlines() + done.stdout.splitlines() if line.startswith("{")]
    (told,) = [line["event"] for line in said if line.get("code") == "RAT-501"]
    assert [f'File "{here}", line {line}, in ' in told for line in (outer, inner)] == [True, True], told


@pytest.mark.all
@pytest.mark.parametrize("work", [selecting.PIPELINE], indirect=True)
def test_a_submitted_driver_writes_what_statements_in_sql_give(work, ledger_url, kafka_properties):
    done = submit(work, ledger_url, kafka_properties)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    found = {}
    with psycopg.connect(ledger_url) as conn:
        for name, columns in (("selecting", "a"), ("parts", "a, part, _n"), (DEAD_LETTERS, "error")):
            delta = sql.Identifier(*work.relations[name])
            query = sql.SQL("select _offset, {} from {}").format(sql.SQL(columns), delta)
            found[name] = sorted(conn.execute(query).fetchall())
    assert found["selecting"] == [(a, a * 2) for a in range(4, 9)]
    assert found["parts"] == [(a, a, part, part) for a in range(9) if a != 3 for part in range(a % 3 + 1)]
    assert [offset for offset, _ in found[DEAD_LETTERS]] == [3, 9]


@pytest.mark.all
def test_a_submitted_driver_whose_master_does_not_answer_says_so_in_the_history(work, ledger_url, kafka_properties):
    done = submit(work, ledger_url, kafka_properties, master=f"spark://{HOST}:1")
    assert done.returncode == 1, done.stdout + done.stderr[-3000:]
    said = "EngineUnreachable: dropping 1.0.1.0.1: no session of Spark: "
    assert [line for line in done.stdout.splitlines() if said in line], done.stdout
    with Ledger(ledger_url) as ledger, ledger.begin() as conn:
        assert met_outages_alone(conn, read_transaction(conn, "dropping", 1))
