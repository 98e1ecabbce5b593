"""Two thousand commits that wait in one triggerer, over more pipelines: what that costs, and how soon one wakes."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from statistics import median, quantiles

import psycopg
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.curves.curve import LITTLE, Curve, Points
from ratchet.airflow.trigger import TurnTrigger
from ratchet.ledger.connection import Ledger
from ratchet.ledger.states import State
from ratchet.ledger.transactions import move, move_head, read_transaction
from ratchet.operate.migrate import migrate

PIPELINES = (10, 100, 1_000)
WAITS = 2_000
IDLE_SECONDS, MOVES, EVERY_SECONDS = 60, 300, 0.1
CONNECTION = "bench_waiting"
"""The Airflow connection of the ledger, which is in the environment."""

_LINES = """
    insert into ratchet.pipelines (pipeline, topics, last_txid)
        select 'line_' || n, '[{{"topic": "t", "id": "bench"}}]', {each} + 1 from generate_series(1, {pipelines}) n;
    insert into ratchet.heads (pipeline) select pipeline from ratchet.pipelines;
    insert into ratchet.transactions
        (pipeline, txid, revision, epoch, state, claim, dag_id, run_id, clear_number, lease_until, code_hash, txn_time)
        select pipeline, txid, 0, 1, 'OPEN', 1, pipeline, 'run ' || txid, 0, now(), 'bench', now()
        from ratchet.pipelines, generate_series(1, {each} + 1) txid;
    update ratchet.transactions set state = 'PREPARED';
    analyze ratchet.transactions;
"""


def measure(bench: Bench) -> Points:
    """Milliseconds from a head's COMMIT to the event of who waited for it, and of CPU in a minute without a move."""
    names = ("from a move to its event, median", "from a move to its event, p95", "CPU in an idle minute")
    points: Points = {name: {} for name in names}
    pipelines, waits, seconds, moves = (PIPELINES, WAITS, IDLE_SECONDS, MOVES)
    if bench.records < LITTLE:
        pipelines, waits, seconds, moves = (2, 4), 20, 2, 8
    for number in pipelines:
        name = f"bench_waiting_{time.time_ns()}"
        with psycopg.connect(bench.url, autocommit=True) as conn:
            conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            try:
                url = bench.stack.database_url(name)
                took, cpu = asyncio.run(_measure(bench, url, number, waits // number, seconds, moves))
            finally:
                conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
        for line, figure in zip(names, (median(took), quantiles(took, n=20)[-1], cpu), strict=True):
            points[line][number] = [figure]
    return points


async def _measure(
    bench: Bench, url: str, pipelines: int, each: int, seconds: int, moves: int
) -> tuple[list[float], float]:
    migrate(url, [])
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(sql.SQL(_LINES).format(each=sql.Literal(each), pipelines=sql.Literal(pipelines)))
    os.environ[f"AIRFLOW_CONN_{CONNECTION.upper()}"] = url
    woken: dict[tuple[str, int], asyncio.Future[float]] = {}

    async def wait(pipeline: str, txid: int) -> None:
        trigger = TurnTrigger(CONNECTION, pipeline, txid, 0, 1, 1, 60)
        async for _ in trigger.run():
            woken[pipeline, txid].set_result(time.monotonic())

    loop = asyncio.get_running_loop()
    for n in range(1, pipelines + 1):
        woken |= {(f"line_{n}", txid): loop.create_future() for txid in range(2, each + 2)}
    tasks = [loop.create_task(wait(*key)) for key in woken]
    # Until all have been looked at once.
    await asyncio.sleep(5)
    (session,) = _sessions(url)
    began, cpu = time.thread_time(), _cpu(session)
    await asyncio.sleep(seconds)
    idle = (time.thread_time() - began + _cpu(session) - cpu) * 60 / seconds
    bench.tell(f"{len(tasks):,} commits of {pipelines:,} pipelines wait: CPU of a minute {idle:.2f} s, 1 connection")
    heads, took = dict.fromkeys((f"line_{n}" for n in range(1, pipelines + 1)), 0), []
    chance = random.Random(1)
    began, cpu = time.thread_time(), _cpu(session)
    with Ledger(url) as ledger:
        for _ in range(moves):
            pipeline = chance.choice([line for line, head in heads.items() if head < each])
            heads[pipeline] += 1
            moved = await asyncio.to_thread(_move, ledger, pipeline, heads[pipeline])
            at = await asyncio.wait_for(woken[pipeline, heads[pipeline] + 1], 60)
            took.append(1_000 * (at - moved))
            await asyncio.sleep(EVERY_SECONDS * chance.random())
    cost = (time.thread_time() - began + _cpu(session) - cpu) / moves
    bench.tell(f"{moves} moves: {1_000 * cost:.1f} ms of CPU each, {median(took):.1f} ms from a move to its event")
    assert _sessions(url) == [session]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return took, 1_000 * idle


def _move(ledger: Ledger, pipeline: str, txid: int) -> float:
    """Void a transaction in its turn, so that the next one has its own; when its COMMIT began."""
    with ledger.begin() as conn:
        move(conn, read_transaction(conn, pipeline, txid, lock=True), State.VOIDED, who="bench", why="bench")
        move_head(conn, pipeline, txid - 1)
        return time.monotonic()


def _sessions(url: str) -> list[int]:
    query = "select pid from pg_stat_activity where datname = current_database() and application_name = 'ratchet wait'"
    with psycopg.connect(url) as conn:
        return [pid for (pid,) in conn.execute(query)]


def _cpu(pid: int) -> float:
    """Seconds of a process."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


CURVE = Curve("2,000 commits that wait", "pipelines", "ms", frozenset({"postgres"}), measure)
