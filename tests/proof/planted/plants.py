"""Wrong versions of the protocol, each a small change of the code, as a tired developer could make it."""

from __future__ import annotations

from dataclasses import dataclass

LEDGER = ("schedules", "ledger")
"""What may catch a mistake in the ledger's code."""
SPARK = ("spark",)
"""What may catch one in the code that Spark runs, or that asks Kafka."""


@dataclass(frozen=True)
class Change:
    """In one file below `include/ratchet`, `old`, which is there once, becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Plant:
    """A mistake, and the layers of tests that are asked whether they see it."""

    name: str
    changes: tuple[Change, ...]
    layers: tuple[str, ...] = LEDGER


def plant(name: str, file: str, old: str, new: str, *more: tuple[str, str, str], layers=LEDGER) -> Plant:
    """A mistake of one change, or of several."""
    return Plant(name, tuple(Change(*change) for change in ((file, old, new), *more)), layers)


IN_BETWEEN = "conn.connection.dbapi_connection.commit()"
"""Commits what has been done so far, in the midst of a database transaction."""
AGAIN = 'conn.exec_driver_sql(f"savepoint {conn.get_nested_transaction()._savepoint}")'
"""After that, so that what comes next finds its savepoint."""
ADVANCE = "            done.append(row.txid)\n        elif row.state != State.VOIDED:\n            break\n"

PLANTS = [
    plant(
        "rows are picked without their try",
        "sinks/stage.py",
        "    on = sa.and_(*(staged.c[n] == named.c[n] for n in names))",
        '    on = sa.and_(*(staged.c[n] == named.c[n] for n in names if n != "_try"))',
    ),
    plant(
        "the whole stage is applied instead of the tags that the votes name",
        "sinks/stage.py",
        "    return select(*columns).select_from(staged.join(named, on))",
        "    return select(*columns).select_from(staged)",
    ),
    plant(
        "a task attempt that Spark has superseded is accepted",
        "sinks/stage.py",
        "    on = sa.and_(*(staged.c[n] == named.c[n] for n in names))",
        '    on = sa.and_(*(staged.c[n] == named.c[n] for n in names if n != "_task_attempt"))',
    ),
    plant(
        "a vote is counted without the lock on its transaction",
        "protocol/votes.py",
        "        row = read_transaction(conn, token.pipeline, token.txid, token.revision, lock=True)\n"
        "        current = read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice)\n"
        "        if current.voted_at is not None and _is_same(",
        "        row = read_transaction(conn, token.pipeline, token.txid, token.revision)\n"
        "        current = read_slice(conn, token.pipeline, token.txid, token.epoch, token.slice)\n"
        "        if current.voted_at is not None and _is_same(",
    ),
    plant(
        "a slice that has voted takes a new try",
        "protocol/votes.py",
        "        if current.voted_at is not None:\n            return NothingToDo",
        "        if False:\n            return NothingToDo",
        (
            "protocol/votes.py",
            "            slices.c.slice == current.slice,\n            slices.c.voted_at.is_(None),\n",
            "            slices.c.slice == current.slice,\n",
        ),
    ),
    plant(
        "a vote is taken whatever its epoch",
        "ledger/fence.py",
        "    if row.epoch != token.epoch or row.state != State.OPEN:",
        "    if row.state != State.OPEN:",
    ),
    plant(
        "a vote is taken whatever its try",
        "ledger/fence.py",
        "    if current.try_number != token.try_number:",
        "    if False:",
        ("protocol/votes.py", "            slices.c.try_number == token.try_number,\n", ""),
    ),
    plant(
        "the last vote counts one slice too few",
        "protocol/votes.py",
        "    if missing:\n        return None",
        "    if missing > 1:\n        return None",
    ),
    plant(
        "the code of a vote is not looked at",
        "protocol/votes.py",
        "        if vote.code_hash != row.code_hash:",
        "        if False:",
        ("protocol/votes.py", "        if spec.code_hash != row.code_hash:", "        if False:"),
    ),
    plant(
        "gates are run after the group commit",
        "protocol/commit.py",
        "        if row.state == State.PREPARED and row.halted_at is None and is_passed(spec, row):",
        "        if row.state == State.PREPARED:",
    ),
    plant(
        "a verdict outlives its epoch",
        "protocol/claims.py",
        '("prepared_at", "records", "verdict", "reason")',
        '("prepared_at", "records", "reason")',
    ),
    plant(
        "the head stops at a voided successor",
        "protocol/commit.py",
        "        elif row.state != State.VOIDED:\n            break",
        "        else:\n            break",
    ),
    plant(
        "one failing member undoes the group",
        "protocol/commit.py",
        "                return Advanced(tuple(done), row.txid, why)",
        "                raise Refused(why) from failure",
    ),
    plant(
        "a group commit skips a gap",
        "protocol/commit.py",
        ADVANCE,
        ADVANCE.replace("            break\n", "            head += 1\n            continue\n"),
        (
            "protocol/commit.py",
            "pipelines.c.head == head).values(head=head + 1)",
            "pipelines.c.head <= head).values(head=head + 1)",
        ),
    ),
    plant(
        "the head moves in a database transaction of its own",
        "protocol/commit.py",
        "        _move_head(conn, spec.name, head)",
        f"        {IN_BETWEEN}\n        _move_head(conn, spec.name, head)",
    ),
    plant(
        "dead letters become visible before the rest",
        "protocol/commit.py",
        "    for sink in sinks:\n        name = sink.name\n        of_sink",
        "    for sink in [sinks[-1], *sinks[:-1]]:\n        name = sink.name\n"
        f"        if sink is sinks[0]:\n            {IN_BETWEEN}\n            {AGAIN}\n"
        "        of_sink",
    ),
    plant(
        "a commit does without the lock on the pipeline",
        "ledger/transactions.py",
        "where(pipelines.c.pipeline == pipeline).with_for_update()\n",
        "where(pipelines.c.pipeline == pipeline)\n",
    ),
    plant(
        "the state is not looked at again under the commit lock",
        "protocol/commit.py",
        "        ended = _ended(row, claim)\n        if ended:\n            return ended\n        if not",
        "        if not",
    ),
    plant(
        "an adoption keeps stale votes",
        "protocol/claims.py",
        'epoch = {"epoch": row.epoch + 1, "code_hash": code,',
        'epoch = {"code_hash": code,',
        ("protocol/claims.py", "        copy_cut(conn, row, row.epoch - 1)\n", ""),
    ),
    plant(
        "the cut is computed anew when a transaction is tried again",
        "protocol/plan.py",
        '                "ranges": without(part.ranges, lost),',
        '                "ranges": without([[p, a, b - (b - a) // 2] for p, a, b in part.ranges], lost),',
    ),
    plant(
        "an adoption takes what its run still works on",
        "protocol/claims.py",
        "    return [row for row in within if row.claim_ended or not is_active(row.dag_id, row.run_id)]",
        "    return within",
        ("protocol/claims.py", "            transactions.c.claim_ended | ~holds(spec.lease_seconds),\n", ""),
    ),
    plant(
        "a lease does not fence",
        "protocol/votes.py",
        "        if row.epoch != claim.epoch or row.claim != claim.number:\n"
        '            raise Fenced(f"{claim.pipeline}: {where}: run',
        '        if row.epoch != claim.epoch:\n            raise Fenced(f"{claim.pipeline}: {where}: run',
    ),
    plant(
        "a lease is renewed by whoever held it once",
        "protocol/leases.py",
        "        if row.claim != claim.number or row.claim_ended:\n            raise Fenced",
        "        if row.claim_ended:\n            raise Fenced",
    ),
    plant(
        "settle ends whichever claim there is",
        "protocol/claims.py",
        "        if row.claim != mine.claim or row.claim_ended:\n            return f",
        "        if row.claim_ended:\n            return f",
    ),
    plant(
        "a stage is discarded while its epoch is prepared",
        "protocol/commit.py",
        "        transactions.c.state.in_([State.OPEN, State.PREPARED]),\n    )\n    with ledger.begin()",
        "        transactions.c.state == State.OPEN,\n    )\n    with ledger.begin()",
    ),
    plant(
        "stages are discarded by the beginning of their names",
        "sinks/stage.py",
        "    conn.execute(DropTable(sa.Table(relation, sa.MetaData(), schema=STAGE_SCHEMA), if_exists=True))\n"
        "    conn.execute(delete(stages).where(stages.c.relation == relation))",
        '    prefix = relation.rsplit("_", 2)[0]\n'
        '    found = select(stages.c.relation).where(stages.c.relation.like(prefix + "%"))\n'
        "    for name in conn.execute(found).scalars().all():\n"
        "        conn.execute(DropTable(sa.Table(name, sa.MetaData(), schema=STAGE_SCHEMA), if_exists=True))\n"
        "        conn.execute(delete(stages).where(stages.c.relation == name))",
    ),
    plant(
        "a deadline aborts what is prepared",
        "protocol/deadlines.py",
        "            transactions.c.state == State.OPEN,\n            transactions.c.deadline <",
        "            transactions.c.state.in_([State.OPEN, State.PREPARED]),\n            transactions.c.deadline <",
    ),
    plant(
        "a revision forgets the keys that only the older delta has",
        "sinks/keyed.py",
        "        self._touch(conn, touched, txid)\n        conn.execute(delete(self.delta)",
        "        conn.execute(delete(self.delta)",
    ),
    plant(
        "a revision leaves the older rows of an Append",
        "sinks/append.py",
        "        if of.replaces:\n",
        "        if False:\n",
    ),
    plant(
        "an older revision replaces a newer one",
        "protocol/commit.py",
        "        if newer is not None and newer > row.revision:",
        "        if False:",
        (
            "protocol/revise.py",
            "        move(conn, newest, State.ABORTED, who=str(run), why=why, reason=why)",
            "        pass",
        ),
    ),
    plant(
        "a plan starts one offset late",
        "protocol/plan.py",
        "    start = {p: previous.get(p, offsets.beginning[p]) for p in sorted(offsets.stable)}",
        "    start = {p: previous[p] + 1 if p in previous else offsets.beginning[p] for p in sorted(offsets.stable)}",
    ),
    plant(
        "a late task stages its rows",
        "ledger/fence.py",
        "    check_try(row, current, token)\n",
        "",
        layers=("schedules", "ledger", "spark"),
    ),
    plant(
        "Spark reads what its producer has not committed",
        "spark/reader.py",
        '"kafka.isolation.level": "read_committed"',
        '"kafka.isolation.level": "read_uncommitted"',
        layers=SPARK,
    ),
    plant(
        "a plan goes up to the high watermark instead of the last stable offset",
        "source/kafka.py",
        "wanted, isolation_level=IsolationLevel.READ_COMMITTED, timeout_ms=TIMEOUT_MS",
        "wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, timeout_ms=TIMEOUT_MS",
        layers=SPARK,
    ),
    plant(
        "a read is complete by the count of its records instead of their positions",
        "spark/slice.py",
        "        if position < r.until_offset:",
        '        if seen[f"records_{r.partition}"] is None:',
        layers=SPARK,
    ),
    plant(
        "the driver names every attempt that it finds staged, not those that Spark accepted",
        "spark/staging.py",
        "    reports = rows.mapInArrow(Staging(sink, into), _REPORT).collect()\n",
        """\
    reports = rows.mapInArrow(Staging(sink, into), _REPORT).collect()
    import psycopg
    from psycopg import sql
    from pyspark.sql import Row
    by = {r.partition: r.checksum for r in reports}
    with psycopg.connect(into.ledger_url) as conn:
        found = conn.execute(
            sql.SQL("select _task_partition, _task_attempt, count(*) from {} "
                    "where _slice = %s and _try = %s group by 1, 2")
            .format(sql.Identifier("ratchet_stage", into.stages[sink.name])), (into.token.slice, into.token.try_number)
        ).fetchall()
    reports = [Row(partition=p, attempt=a, rows=n, checksum=by[p]) for p, a, n in found]
""",
        layers=SPARK,
    ),
    plant(
        "a group takes along what waits for a person",
        "protocol/commit.py",
        "row.state == State.PREPARED and row.halted_at is None and is_passed",
        "row.state == State.PREPARED and is_passed",
    ),
    plant(
        "an outage counts as a failure of the transaction",
        "protocol/halts.py",
        "    failed = unfinished and not met_outages_alone(conn, row)",
        "    failed = unfinished",
    ),
    plant(
        "a pipeline writes into the table of another line",
        "sinks/tables.py",
        "    if existing and has_line:",
        "    if False:",
    ),
    plant(
        "what a compaction had no time for is never compacted",
        "protocol/compact.py",
        ".values(merged=to))",
        ".values(merged=until))",
    ),
    plant(
        "a session of Spark is used by two jobs at once",
        "spark/sessions.py",
        "                file.unlink()\n                taken.append",
        "                taken.append",
        layers=SPARK,
    ),
    plant(
        "a job finds the views of the job before it in its session",
        "spark/engine.py",
        "            _drop_views(session)\n",
        "",
        layers=SPARK,
    ),
    plant(
        "a job is given the plans of the job before it in its session",
        "spark/engine.py",
        "    LogicalPlan._nextPlanId = secrets.randbelow(2**62)\n",
        "",
        layers=SPARK,
    ),
    plant(
        "what a transform's module imports is no part of its version",
        "spec/code.py",
        'if found not in seen and found.partition(".")[0] == top:',
        "if found == module and found not in seen:",
        layers=SPARK,
    ),
    plant(
        "rows of another slice are combined",
        "sinks/writer.py",
        "    if not foreign.any():",
        "    if True:",
        layers=SPARK,
    ),
    plant(
        "a statement that PostgreSQL gives up passes for an outage",
        "sinks/writer.py",
        "        if error.sqlstate is None or isinstance(error, _ENDED):",
        "        if True:",
        layers=SPARK,
    ),
    plant(
        "a try that ended without a word is no failure beside an outage",
        "protocol/failures.py",
        " and (bool(overdue) or not silent)",
        "",
    ),
]
