"""A transform that looks up what was valid at its transaction's time: each slice, try and replay sees the same."""

from __future__ import annotations

import json

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from ratchet import Append, Json, Pipeline, Topic
from ratchet.ledger.transactions import newest_revision
from ratchet.ledger.work import Run
from ratchet.operate import replay
from ratchet.operate.verify import recompute, verify
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit
from ratchet.spark import slice as slice_module

from .rig import Rig, address

COLUMNS = "id int, currency string, rate decimal(10,4), at timestamp"
AS_OF = "select currency, rate from rates where valid_from <= %(at)s and (valid_to is null or valid_to > %(at)s)"
URL = ""
"""Where the frames' rates are; what works on tables is elsewhere, and has it from the records."""


def over_tables(orders: pa.Table) -> dict[str, pa.Table]:
    at = orders.column("_txn_time")
    with psycopg.connect(orders.column("url")[0].as_py()) as conn:
        rates = dict(conn.execute(AS_OF, {"at": at[0].as_py()}).fetchall())
    found = [rates.get(currency) for currency in orders.column("currency").to_pylist()]
    return {"priced": orders.append_column("rate", pa.array(found, pa.decimal128(10, 4))).append_column("at", at)}


def over_frames(orders):
    with psycopg.connect(URL) as conn:
        rows = conn.execute("select currency as c, rate, valid_from, valid_to from rates").fetchall()
    rates = orders.sparkSession.createDataFrame(
        rows, "c string, rate decimal(10,4), valid_from timestamp, valid_to timestamp"
    )
    at = F.col("_txn_time")
    is_valid = (F.col("valid_from") <= at) & (F.col("valid_to").isNull() | (F.col("valid_to") > at))
    found = orders.join(F.broadcast(rates), (F.col("currency") == F.col("c")) & is_valid, "left")
    return {"priced": found.withColumn("at", at)}


def change(conn: psycopg.Connection, rate: str) -> None:
    """From now on another rate."""
    conn.execute("update rates set valid_to = clock_timestamp() where valid_to is null")
    conn.execute("insert into rates select 'EUR', %s, max(valid_to), null from rates", [rate])


def do(rig: Rig, spec: Pipeline, run: str) -> None:
    works = rig.begin(spec, run)
    for work in works:
        # Another try sees the same as one that is lost.
        slice_module.run_slice(rig.spark, spec, work, rig.ledger.url, rig.servers)
        work = rig.retry(spec, work.token.slice)
        rig.check(spec, work, rig.run(spec, work))
    assert isinstance(commit(rig.ledger, spec, rig.claim), Committed)
    settle(rig.ledger, spec, Run("dag", run), succeeded=True)


@pytest.mark.parametrize("transform", [over_tables, pytest.param(over_frames, marks=pytest.mark.all)])
def test_a_replay_sees_what_was_valid_at_its_transactions_time(rig, monkeypatch, transform):
    monkeypatch.setattr(f"{__name__}.URL", rig.ledger.url)
    topic = rig.topic()
    spec = Pipeline(
        name="p",
        source=Topic(topic, value=Json("id int, currency string, url string")),
        transform=address(transform),
        sinks=[Append("priced", columns=COLUMNS)],
        max_records=4,
        slice_records=2,
    )

    def send(*numbers: int) -> None:
        given = [{"id": n, "currency": "EUR", "url": rig.ledger.url} for n in numbers]
        rig.send(topic, *(json.dumps(one).encode() for one in given))

    def seen() -> dict[int, str]:
        rows = conn.execute("select id, rate, at, _txid from priced order by id").fetchall()
        for txid in {row[3] for row in rows}:
            with rig.ledger.begin() as ledger:
                wanted = newest_revision(ledger, spec.name, txid).txn_time
            assert {row[2] for row in rows if row[3] == txid} == {wanted}
        return {row[0]: str(row[1]) for row in rows}

    def differs() -> bool:
        again = recompute(rig.ledger, spec, lambda works: slice_module.recompute(rig.spark, spec, works, rig.servers))
        return bool(again.faults)

    with psycopg.connect(rig.ledger.url, autocommit=True) as conn:
        conn.execute(
            "create table rates (currency text, rate numeric(10,4), valid_from timestamptz, valid_to timestamptz)"
        )
        conn.execute("insert into rates values ('EUR', 1.1, '2000-01-01Z', null)")
        send(1, 2, 3, 4)
        do(rig, spec, "first")
        change(conn, "1.2")
        send(5)
        do(rig, spec, "second")
        was = {1: "1.1000", 2: "1.1000", 3: "1.1000", 4: "1.1000", 5: "1.2000"}
        assert seen() == was
        change(conn, "1.3")
        replay.ask(rig.ledger, spec, 1, 2, reason="what was it then", who="amy")
        do(rig, spec, "third")
        do(rig, spec, "fourth")
        with rig.ledger.begin() as ledger:
            assert [newest_revision(ledger, spec.name, txid).revision for txid in (1, 2)] == [1, 1]
        assert seen() == was
        assert [fault for check in verify(rig.ledger, spec) for fault in check.faults] == [] and not differs()
        # What is changed in place was never so.
        conn.execute("update rates set rate = 1.15 where rate = 1.1")
        assert differs()
