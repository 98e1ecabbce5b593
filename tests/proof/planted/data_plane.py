"""Mistakes in plans, in what Spark runs, and in what asks Kafka; and the rest."""

from __future__ import annotations

from tests.proof.planted.plant import SPARK, plant

PLANTS = [
    plant(
        "a plan starts one offset late",
        "protocol/plan.py",
        "    start = starts(previous, offsets)\n",
        "    start = {p: at + 1 if p in previous else at for p, at in starts(previous, offsets).items()}\n",
    ),
    plant(
        "a partition that comes later starts where retention has left it",
        "protocol/plan.py",
        "{p: previous.get(p, 0) for p in sorted",
        "{p: previous.get(p, offsets.beginning[p]) for p in sorted",
        layers=("ledger",),
    ),
    plant(
        "a line that begins at the last stable offsets leaves out what is undecided there",
        "protocol/beginning.py",
        "starts = offsets.stable",
        "starts = offsets.end or offsets.stable",
        layers=("ledger",),
    ),
    plant(
        "where a line begins is written down and not gone by",
        "protocol/sources.py",
        "        beginning.keep(conn, pipeline, begun)\n",
        "",
        layers=("ledger",),
    ),
    plant(
        "a log that was cut and has grown again is taken for the same",
        "protocol/sources.py",
        "same = offsets.same(partition, until)",
        "same = min(until, offsets.stable.get(partition, until))",
        layers=("ledger",),
    ),
    plant(
        "an answer about logs is used though more is known of them by now",
        "protocol/allocate.py",
        "if not now.has_logs_of(kafka.known) or ",
        "if ",
        layers=("ledger",),
    ),
    plant(
        "an answer is used though another topic has joined by now",
        "protocol/sources.py",
        "(self.source, self.lineages, self.topics) == (other.source, other.lineages, other.topics)",
        "(self.source, self.lineages) == (other.source, other.lineages)",
        layers=("ledger",),
    ),
    plant(
        "of every topic rows carry the partitions that Kafka gives",
        "source/columnar.py",
        "*ends, source, range_.partition)",
        "*ends, source, place.partition)",
        layers=("spark",),
    ),
    plant(
        "where an interval ends is not looked for again though another run has planned",
        "protocol/allocate.py",
        " or (offsets.wanted is not None and now != kafka.known)",
        "",
        layers=("ledger",),
    ),
    plant(
        "a slice reads what has come in place of the planned records",
        "spark/slice.py",
        "KnownLogs(work.topics, work.lineages)",
        "KnownLogs(work.topics)",
        layers=("spark",),
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
        "level: IsolationLevel = IsolationLevel.READ_COMMITTED,",
        "level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,",
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
        "what PostgreSQL refuses to commit is tried for ever",
        "protocol/halts.py",
        "is_refused(conn, row))",
        "is_refused(conn, row) and row.revision > 0)",
        layers=("ledger",),
    ),
    plant(
        "a pipeline writes into the table of another line",
        "sinks/meaning.py",
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
