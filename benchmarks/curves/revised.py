"""One transaction's rows read back from a table of 100 million rows, more and more of which were revised."""

from __future__ import annotations

import random
import time

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.curves.curve import LITTLE, Curve, Points
from benchmarks.staged import Line
from benchmarks.table import check_range, checkpoint, empty
from ratchet.ledger.work import Claim, Run
from ratchet.protocol.claims import settle
from ratchet.protocol.commit import Committed, commit

TRANSACTIONS, EVERY = 1_000, 250
SAMPLES = 20
"""How many transactions are read back at each place of the axis."""


def measure(bench: Bench) -> Points:
    """Milliseconds to read the rows of one transaction, a thousandth of the table, of those revised and of any."""
    transactions, every = (TRANSACTIONS, EVERY) if bench.records >= LITTLE else (SAMPLES, SAMPLES // 4)
    rows = 25 * bench.records // TRANSACTIONS
    points: Points = {"a transaction": {}}
    with Line(bench.url, f"bench_revised_{time.time_ns() // 10**6}") as line:
        for number in range(transactions):
            _commit(line, line.prepare(rows, str(number)), str(number))
            if number % every == 0:
                bench.tell(f"{number * rows:,} rows")
        order = random.Random(1).sample(range(transactions), transactions)
        for done in range(transactions + 1):
            if done % every == 0:
                points["a transaction"][done] = _read(bench, line, transactions, rows)
                bench.tell(f"{done:,} revisions: {points['a transaction'][done][0]:.1f} ms and so on")
            if done < transactions:
                _commit(line, line.revise(str(order[done])), str(order[done]), 1)
        check_range(bench.url, line.spec.sinks[0].name, dict.fromkeys(line.until, 0), line.until)
        empty(bench.url, line.rows)
    return points


def _commit(line: Line, claim: Claim, run_id: str, clear_number: int = 0) -> None:
    done = commit(line.ledger, line.spec, claim)
    assert isinstance(done, Committed), done
    settle(line.ledger, line.spec, Run(line.spec.name, run_id, clear_number), succeeded=True)


def _read(bench: Bench, line: Line, transactions: int, rows: int) -> list[float]:
    checkpoint(bench.url)
    took: list[float] = []
    query = sql.SQL("select count(*), sum(id)::bigint from {} where _txid = {}")
    with psycopg.connect(bench.url, autocommit=True) as conn:
        for txid in random.Random(2).sample(range(1, transactions + 1), SAMPLES):
            started = time.monotonic()
            found = conn.execute(query.format(sql.Identifier(line.spec.sinks[0].name), sql.Literal(txid))).fetchone()
            took.append(1_000 * (time.monotonic() - started))
            assert found is not None and found[0] == rows, found
    return took


CURVE = Curve(
    "A transaction's rows among those of a thousand", "revisions before", "ms", frozenset({"postgres"}), measure
)
