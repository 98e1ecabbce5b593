"""Mistakes in votes, gates, commits, claims, leases and revisions: how the line of transactions goes on."""

from __future__ import annotations

from tests.proof.planted.plant import plant

IN_BETWEEN = "conn.connection.dbapi_connection.commit()"
"""Commits what has been done so far, in the midst of a database transaction."""
AGAIN = 'conn.exec_driver_sql(f"savepoint {conn.get_nested_transaction()._savepoint}")'
"""After that, so that what comes next finds its savepoint."""
PLANTS = [
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
        "protocol/prepare.py",
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
        "        if row.claim != mine.claim or row.claim_ended:\n            return Settled",
        "        if row.claim_ended:\n            return Settled",
    ),
    plant(
        "monitoring is told what is only planned",
        "protocol/plan.py",
        "newest_until(conn, line.pipeline, source, line.head)",
        "newest_until(conn, line.pipeline, source, line.last_txid)",
        layers=("ledger",),
    ),
    plant(
        "the hash of an event leaves out who made the move",
        "ledger/history.py",
        '"revision", "seq", "who", "move", "epoch"',
        '"revision", "seq", "move", "epoch"',
        layers=("ledger",),
    ),
    plant(
        "a stage is discarded while its epoch is prepared",
        "protocol/leftovers.py",
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
        "            is_in(State.OPEN),\n            transactions.c.deadline <",
        "            is_in(State.OPEN, State.PREPARED),\n            transactions.c.deadline <",
    ),
    plant(
        "a revision forgets the keys that only the older delta has",
        "sinks/keyed.py",
        "            self._touch(conn, touched, older)\n",
        "",
    ),
    plant(
        "a revision leaves the older rows of an Append",
        "sinks/kept.py",
        "            conn.execute(delete(into).where(into.c._txid == of.txid, *self.mine(into, of.pipeline)))\n",
        "            pass\n",
    ),
    plant(
        "an older revision replaces a newer one",
        "protocol/commit.py",
        "    if newer is not None and newer > row.revision:",
        "    if False:",
        (
            "protocol/revise.py",
            "        move(conn, newest, State.ABORTED, who=str(run), why=superseded, reason=superseded)",
            "        pass",
        ),
    ),
    plant(
        "runs that follow take what came after a run was asked for",
        "protocol/due.py",
        "    return {p: due.get(str(p), 0) for p in offsets.stable}",
        "    return dict(offsets.stable)",
        layers=("ledger",),
    ),
    plant(
        "a line is dropped without waiting for what a job is about to commit",
        "operate/drop.py",
        "    conn.execute(rows.with_for_update())\n",
        "    conn.execute(rows)\n",
        layers=("ledger",),
    ),
    plant(
        "a run that asks and meets other work makes nothing due",
        "protocol/begin.py",
        "        unheard = due.ask_besides(ledger, spec, kafka_offsets) if wants.asks and is_busy else None\n",
        "        unheard = None\n",
        layers=("ledger",),
    ),
    plant(
        "a cleared run is revised beside another revision",
        "protocol/begin.py",
        "    if replays.is_going_on(conn, spec.name, besides=before.txid):\n",
        "    if False:\n",
    ),
    plant(
        "a revision that was asked for is asked for still when it is begun",
        "protocol/replays.py",
        "        taken(conn, spec.name, wanted.txid)\n",
        "",
    ),
    plant(
        "a log that was cut is not looked at where nothing is left to plan of it",
        "protocol/plan.py",
        "    fixed, planned = course.fixed, course.taken\n",
        "    fixed, planned = course.left, course.taken\n",
        layers=("ledger",),
    ),
    plant(
        "a log that was cut below where the next source begins is not told",
        "protocol/plan.py",
        "    fixed, planned = course.fixed, course.taken\n",
        "    fixed, planned = course.taken, course.taken\n",
        layers=("ledger",),
    ),
    plant(
        "where keys have moved is not asked again after a loss has passed over the source that waited",
        "protocol/sources.py",
        "        forgotten = _passed_over(conn, line) if sinks else None\n",
        "        forgotten = None\n",
        layers=("ledger",),
    ),
    plant(
        "an answer of Kafka from before a restore or a drop counts for the line after it",
        "protocol/sources.py",
        "    return Known(line.last_txid, opened_at, line.source,",
        "    return Known(line.last_txid, None, line.source,",
    ),
    plant(
        "a topic joins at its first offset whatever the spec says",
        "protocol/membership.py",
        '"until_offset": at} for p, at in mine.items()])',
        '"until_offset": 0} for p, at in mine.items()])',
    ),
    plant(
        "plans go on by what was known before a topic joined or came back",
        "protocol/allocate.py",
        "    line = membership.join(conn, spec, line, offsets)\n",
        "    course = course_of(conn, line)\n    line = membership.join(conn, spec, line, offsets)\n",
        ("protocol/allocate.py", "    course = course_of(conn, line)\n    if course", "    if course"),
    ),
    plant(
        "a topic that is left gives its number away",
        "protocol/membership.py",
        "Topics(tuple(replace(each, left=each.left or n in numbers) for n, each in enumerate(line.topics)))",
        "Topics(tuple(each for n, each in enumerate(line.topics) if n not in numbers))",
    ),
    plant(
        "what is planned of a topic that is left is given up as lost",
        "operate/actions.py",
        "    offsets = kafka_offsets(None, replace(known.logs, may_lack=True))\n",
        "    offsets = kafka_offsets(None, known.logs)\n",
    ),
    plant(
        "what other code has voted for of a topic that is left counts as gone",
        "protocol/begin.py",
        "voted_and_gone(conn, row, kafka.of_all)",
        "voted_and_gone(conn, row, kafka.offsets)",
    ),
]
