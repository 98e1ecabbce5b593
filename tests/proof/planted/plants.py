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
PLANTS = [
    plant(
        "a vote names a writer of another try",
        "protocol/votes.py",
        "        if of != token.numbers or writer.sink != sink:",
        "        if False:",
    ),
    plant(
        "all rows of a transaction are taken instead of those of the writers that the votes name",
        "sinks/delta.py",
        "    return of.c._txid == rows.txid, of.c._writer == sa.any_(writers)",
        "    return (of.c._txid == rows.txid,)",
    ),
    plant(
        "a writer that no vote names is left below the head",
        "protocol/leftovers.py",
        "    return tuple(left)",
        "    return ()",
    ),
    plant(
        "leftovers are not looked for under the commit lock",
        "protocol/commit.py",
        "        if leftovers.under(conn, row):",
        "        if False:",
    ),
    plant(
        "a void leaves its rows below the head",
        "protocol/leftovers.py",
        "    left = WriterRow.all(",
        "    if row.state == State.VOIDED:\n        return ()\n    left = WriterRow.all(",
    ),
    plant(
        "rows above the head are seen",
        "sinks/views.py",
        '"where d._txid + 0 <= (select txid from {heads} where pipeline = {pipeline})"',
        '"where d._txid <= (select last_txid from ratchet.pipelines where pipeline = {pipeline}) or {heads} is null"',
    ),
    plant(
        "dead letters above the head are seen",
        "ledger/migrations/versions/0001_ledger.sql",
        "WHERE d._txid <= h.txid;",
        "WHERE d._txid >= 0;",
    ),
    plant(
        "a revision's rows are written under its txid before its commit",
        "sinks/stage.py",
        "    return row.revision > 0 or sink.stages",
        "    return sink.stages",
    ),
    plant(
        "a row is doubled across two writers",
        "protocol/votes.py",
        "    if len(spans) < len(told) or not are_apart(spans):",
        "    if len(spans) < len(told):",
    ),
    plant(
        "keys are folded anew from rows above the head too",
        "sinks/keyed.py",
        "chosen = select(deltas).join(wanted, same_key).where(deltas.c._txid <= head)",
        "chosen = select(deltas).join(wanted, same_key)",
    ),
    plant(
        "a try of a ledger that was restored passes for that of the same numbers",
        "ledger/fence.py",
        "    if current.nonce != token.nonce:",
        "    if False:",
    ),
    plant(
        "a vote on other ranges than the slice's is taken",
        "protocol/votes.py",
        "        _check_ranges(current, token, vote)\n",
        "",
    ),
    plant(
        "what was prepared with other code is folded by this one",
        "protocol/commit.py",
        "    if row.code_hash != spec.code_hash:\n        raise OtherCode",
        "    if False:\n        raise OtherCode",
        (
            "protocol/commit.py",
            " and row.halted_at is None and row.code_hash == spec.code_hash",
            " and row.halted_at is None",
        ),
    ),
    plant(
        "a deletion deletes what has a greater order",
        "sinks/upsert.py",
        "        goes = [_is_later(into.c[self.order], merged.c[self.order])] if self.order else []",
        "        goes = []",
    ),
    plant(
        "what was deleted comes back with a record of a lesser order",
        "sinks/upsert.py",
        "            living = living.where(*self._not_deleted_later(merged, self.order, of.txid))",
        "            pass",
    ),
    plant(
        "a compaction forgets deletions that have an order",
        "sinks/upsert.py",
        "        return kept if self.order else kept.where(~reduced.c._deleted)",
        "        return kept.where(~reduced.c._deleted)",
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
        ("protocol/votes.py", "        if spec.code_hash == row.code_hash:", "        if True:"),
    ),
    plant(
        "gates are run after the group commit",
        "protocol/commit.py",
        "not (is_ready and other is None and is_passed(spec, row)):",
        "not (is_ready and other is None):",
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
        "        if row.state != State.VOIDED and not (is_ready",
        "        if not (is_ready",
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
        "            break\n        if leftovers.under",
        "            head += 1\n            continue\n        if leftovers.under",
        ("ledger/transactions.py", "heads.c.txid == head).values", "heads.c.txid <= head).values"),
        ("ledger/migrations/versions/0001_ledger.sql", "NEW.txid <> OLD.txid + 1 OR", "NEW.txid <= OLD.txid OR"),
    ),
    plant(
        "the head moves in a database transaction of its own",
        "protocol/commit.py",
        "        move_head(conn, spec.name, head)",
        f"        {IN_BETWEEN}\n        move_head(conn, spec.name, head)",
    ),
    plant(
        "a state is folded in a database transaction before that of the decision",
        "protocol/commit.py",
        "            applied[sink.name] = sink.fold(conn, of)\n",
        f"            applied[sink.name] = sink.fold(conn, of)\n        {IN_BETWEEN}\n        {AGAIN}\n",
    ),
    plant(
        "a commit does without the lock on the pipeline",
        "ledger/transactions.py",
        "conn.execute(_line(pipeline).with_for_update())",
        "conn.execute(_line(pipeline))",
    ),
    plant(
        "the state is not looked at again under the commit lock",
        "protocol/commit.py",
        "            ended = _ended(row, claim)\n            if ended and not done:\n                return ended\n",
        "            ended = None\n",
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
        "        self._touch(conn, touched, of.txid)\n        conn.execute(delete(into)",
        "        conn.execute(delete(into)",
    ),
    plant(
        "a revision leaves the older rows of an Append",
        "sinks/kept.py",
        "        conn.execute(delete(into).where(into.c._txid == of.txid, *self.mine(into, of.pipeline)))\n",
        "",
    ),
    plant(
        "an older revision replaces a newer one",
        "protocol/commit.py",
        "    if newer is not None and newer > row.revision:",
        "    if False:",
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
        "a late task writes its rows",
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
        "the driver names every writer that it finds, not those of attempts that Spark accepted",
        "spark/writing.py",
        "    reports = rows.mapInArrow(Writing(sink, into), _REPORT).collect()\n",
        """\
    reports = rows.mapInArrow(Writing(sink, into), _REPORT).collect()
    import psycopg
    from pyspark.sql import Row
    with psycopg.connect(into.ledger_url) as conn:
        found = conn.execute(
            "select writer, rows from ratchet.writers where sink = %s and slice = %s and try_number = %s",
            [sink.name, into.token.slice, into.token.try_number],
        ).fetchall()
    reports = [Row(writer=w, rows=n, checksum="0") for w, n in found]
""",
        layers=SPARK,
    ),
    plant(
        "a group takes along what waits for a person",
        "protocol/commit.py",
        "row.state == State.PREPARED and row.halted_at is None and row.code_hash",
        "row.state == State.PREPARED and row.code_hash",
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
