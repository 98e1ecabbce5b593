"""The ledger's tables, in schema `ratchet`; `ratchet/ledger/migrations` creates what is declared here."""

from datetime import datetime

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON, JSONB

SCHEMA = "ratchet"
STAGE_SCHEMA = "ratchet_stage"
DELTA_SCHEMA = "ratchet_delta"

metadata = MetaData(schema=SCHEMA)


def _now(name: str) -> Column[datetime]:
    return Column(name, DateTime(timezone=True), server_default=func.clock_timestamp(), nullable=False)


def _time(name: str) -> Column[datetime]:
    return Column(name, DateTime(timezone=True))


def _upto(name: str, comment: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default="0", comment=comment)


pipelines = Table(
    "pipelines",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("topics", JSONB, nullable=False, comment="[{topic, id, left}] by number: those of `topics` of this source"),
    Column("source", SmallInteger, nullable=False, server_default="1", comment="the source that new plans are of"),
    Column("last_txid", BigInteger, nullable=False, server_default="0"),
    _upto("compacted", "up to this txid deltas are a base, and nothing can be revised"),
    _upto("merged", "up to this txid the base is merged"),
    _upto("pruned", "up to this txid transactions have no rows here any more, or are about to lose them"),
    _now("created_at"),
    Column("maintained_at", DateTime(timezone=True), comment="when the maintenance was here last"),
    Column("due", JSONB, comment="{partition: up to where a schedule or a person has asked for its records}"),
    Column("step", BigInteger, nullable=False, server_default="0", comment="the last that destinations have to get"),
    Column("paused_behind", BigInteger, comment="beyond this txid nothing is begun or committed, until it is lifted"),
    Column("paused_by", Text),
    Column("paused_why", Text),
    _time("paused_at"),
    CheckConstraint("num_nulls(paused_behind, paused_by, paused_why, paused_at) in (0, 4)", name="a_pause_is_whole"),
    CheckConstraint(
        "0 <= pruned and pruned <= merged and merged <= compacted and compacted <= last_txid", name="base_within_line"
    ),
    comment="one row a pipeline; its row lock is the commit lock",
)

heads = Table(
    "heads",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("txid", BigInteger, nullable=False, server_default="0", comment="highest committed or voided txid"),
    ForeignKeyConstraint(["pipeline"], ["ratchet.pipelines.pipeline"], name="heads_pipeline"),
    comment="what readers may see: rows of transactions up to the head; a trigger lets it move by one at a time",
)

sources = Table(
    "sources",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("source", SmallInteger, primary_key=True, comment="rows carry it as _source"),
    Column("cause", Text, nullable=False, comment="why it begins: first, cut, made_again or repartitioned"),
    Column("partitions", Integer, nullable=False, comment="among how many the keys of its records are divided"),
    Column("first_txid", BigInteger, comment="its first transaction; null while the source before is still planned"),
    Column(
        "begun", JSONB, comment="of the first one: {rule, starts, logs, told}, where the line began and by which rule"
    ),
    Column("looks", JSONB, comment="of a compacted topic: [{at, kept, stable}], by which lost tombstones are told"),
    ForeignKeyConstraint(["pipeline"], ["ratchet.pipelines.pipeline"], name="sources_pipeline"),
    comment="the logs whose records a pipeline has taken, numbered from 1: its topics, and what they became where a "
    "person accepted that one was cut or made again, or that its keys have gone to other partitions",
)

topics = Table(
    "topics",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("source", SmallInteger, primary_key=True),
    Column(
        "number",
        SmallInteger,
        primary_key=True,
        autoincrement=False,
        comment="a partition of the line is number * 1000000 + the partition in Kafka",
    ),
    Column("topic", Text, nullable=False),
    Column("topic_id", Text, nullable=False, comment="Kafka's id of it in this source"),
    Column("joined_txid", BigInteger, comment="the transaction that it joined before; null if since the source began"),
    Column("begun", JSONB, comment="of one that joined: {rule, starts, logs}, where it began and by which rule"),
    ForeignKeyConstraint(
        ["pipeline", "source"], ["ratchet.sources.pipeline", "ratchet.sources.source"], name="topics_source"
    ),
    UniqueConstraint("pipeline", "source", "topic", name="a_topic_has_one_number"),
    comment="the topics of each source; a topic keeps its number in all of them",
)

leader_epochs = Table(
    "leader_epochs",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("source", SmallInteger, primary_key=True),
    Column("partition", Integer, primary_key=True, comment="of the line, as in `topics`"),
    Column("leader_epoch", Integer, primary_key=True, comment="Kafka's number of a partition's leader"),
    Column("from_offset", BigInteger, nullable=False, comment="the first offset of it"),
    ForeignKeyConstraint(
        ["pipeline", "source"], ["ratchet.sources.pipeline", "ratchet.sources.source"], name="leader_epochs_source"
    ),
    comment="which leaders took the records of a log, by which one that was cut is told from one that was not",
)

transactions = Table(
    "transactions",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("txid", BigInteger, primary_key=True),
    Column("revision", Integer, primary_key=True, server_default="0"),
    Column("epoch", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("claim", Integer, nullable=False, comment="number of the latest claim"),
    Column("claim_ended", Boolean, nullable=False, server_default="false"),
    Column("dag_id", Text, nullable=False, comment="the run that holds the latest claim"),
    Column("run_id", Text, nullable=False),
    Column("clear_number", Integer, nullable=False),
    Column("lease_until", DateTime(timezone=True), nullable=False),
    Column("deadline", DateTime(timezone=True), comment="when this epoch is aborted if it is still OPEN"),
    Column("code_hash", Text, nullable=False, comment="code and spec that this epoch's votes must come from"),
    Column("asked_code", Text, comment="of a revision that waited: the code of the process that asked for it"),
    Column("releases", Text, comment="of a release: the text that errors of its dead letters contain, empty for all"),
    Column("records", BigInteger, comment="records read, once prepared"),
    Column("verdict", JSONB, comment="what the gates said of this epoch, once prepared: {gate: numbers}"),
    Column("applied", JSONB, comment="what the commit applied: {sink: {rows, fingerprint}}"),
    Column("failures", Integer, nullable=False, server_default="0", comment="claims that ended with nothing done"),
    Column("halted_at", DateTime(timezone=True), comment="since when it is tried no more, until a person decides"),
    Column("txn_time", DateTime(timezone=True), nullable=False, comment="fixed when the txid is allocated"),
    _now("opened_at"),
    _time("prepared_at"),
    _time("committed_at"),
    Column("reason", Text, comment="why it was aborted or voided"),
    Column(
        "tombstones_since",
        DateTime(timezone=True),
        comment="of a compacted topic: since when tombstones of its records may have been cleaned",
    ),
    Column("tombstones_kept", Interval, comment="how long Kafka keeps them from then on"),
    CheckConstraint("num_nulls(tombstones_since, tombstones_kept) in (0, 2)", name="tombstones_have_a_term"),
    ForeignKeyConstraint(["pipeline"], ["ratchet.pipelines.pipeline"], name="transactions_pipeline"),
    CheckConstraint("txid >= 1 and epoch >= 1 and claim >= 1 and revision >= 0", name="numbers_from_one"),
    UniqueConstraint("pipeline", "txid", "epoch", name="epochs_run_on_across_revisions"),
    Index(
        "transactions_unfinished",
        "pipeline",
        "revision",
        "txid",
        postgresql_where="state in ('OPEN', 'PREPARED', 'ABORTED')",
    ),
    Index("transactions_asked_for", "pipeline", "txid", postgresql_where="asked_code is not null"),
)

runs = Table(
    "runs",
    metadata,
    Column("dag_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("clear_number", Integer, primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("txid", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False, server_default="0"),
    Column("epoch", Integer, nullable=False),
    Column("claim", Integer, nullable=False),
    _now("began_at"),
    _time("ended_at"),
    Column("outcome", Text),
    comment="which run worked on what; kept for ever, so a late task finds its own claim",
)

ranges = Table(
    "ranges",
    metadata,
    Column("pipeline", Text, nullable=False),
    Column("txid", BigInteger, nullable=False, comment="0 is where a partition starts"),
    Column("source", SmallInteger, nullable=False),
    Column("partition", Integer, nullable=False),
    Column("from_offset", BigInteger, comment="null only where a partition starts"),
    Column("until_offset", BigInteger, nullable=False),
    UniqueConstraint("pipeline", "txid", "source", "partition", name="one_range_a_partition"),
    UniqueConstraint("pipeline", "source", "partition", "until_offset", name="ranges_end_once"),
    # With the offset in front: of two indexes that begin alike PostgreSQL may take either while it has no statistics,
    # as after a restore, and would look for each new range's predecessor among all ranges of its partition.
    UniqueConstraint("from_offset", "pipeline", "source", "partition", name="ranges_start_once"),
    ForeignKeyConstraint(
        ["pipeline", "source", "partition", "from_offset"],
        [f"ratchet.ranges.{c}" for c in ("pipeline", "source", "partition", "until_offset")],
        name="ranges_tile",
        # A prune takes ranges away and lets their partition start where they end, both before this is looked at.
        deferrable=True,
        initially="IMMEDIATE",
    ),
    ForeignKeyConstraint(
        ["pipeline", "source"], ["ratchet.sources.pipeline", "ratchet.sources.source"], name="ranges_source"
    ),
    CheckConstraint("from_offset < until_offset", name="ranges_are_half_open"),
    CheckConstraint("(txid = 0) = (from_offset is null)", name="first_seen_has_no_start"),
    Index("first_seen_once", "pipeline", "source", "partition", unique=True, postgresql_where="txid = 0"),
    comment="each range starts where exactly one other ends: no gap, no overlap",
)

slices = Table(
    "slices",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("txid", BigInteger, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("slice", Integer, primary_key=True),
    Column("ranges", JSONB, nullable=False, comment="[[partition, from_offset, until_offset], ...]"),
    Column("try_number", Integer, nullable=False, server_default="0", comment="the latest try"),
    Column("nonce", BigInteger, nullable=False, server_default="0", comment="the random number of the latest try"),
    _time("tried_at"),
    _time("voted_at"),
    Column("records", BigInteger),
    Column("dead_letters", BigInteger),
    Column("sinks", JSONB, comment="{sink: {writers: [number], rows, checksum}}"),
    Column("reached", JSONB, comment="{partition: position}"),
    Column("seconds", JSONB, comment="{step: seconds}"),
    Column("absent", JSONB, comment="[[column, field, [like names]]] that no message had; null if none was good"),
    Column("cut", BigInteger, comment="moments that lost digits beyond microseconds"),
    Column("application_id", Text),
    CheckConstraint("(voted_at is null) = (sinks is null)", name="a_vote_has_its_sinks"),
    comment="the cut of an epoch into jobs, and their votes",
)

stages = Table(
    "stages",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("txid", BigInteger, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    Column("sink", Text, primary_key=True),
    Column("relation", Text, nullable=False, unique=True, comment="its exact name in schema ratchet_stage"),
    comment="every staged table there is; a row goes with its table",
)

writers = Table(
    "writers",
    metadata,
    Column(
        "writer", BigInteger, primary_key=True, autoincrement=False, comment="a random number; rows carry it as _writer"
    ),
    Column("pipeline", Text, nullable=False),
    Column("txid", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("slice", Integer, nullable=False),
    Column("try_number", Integer, nullable=False),
    Column("nonce", BigInteger, nullable=False),
    Column("task_partition", Integer, nullable=False),
    Column("task_attempt", BigInteger, nullable=False),
    Column("sink", Text, nullable=False),
    Column("schema", Text, nullable=False),
    Column("relation", Text, nullable=False, comment="the exact name of the table that has the rows"),
    Column("rows", BigInteger, nullable=False, server_default="0"),
    Column("spans", JSONB, comment="{partition: [first, last offset]}; null where positions do not ascend"),
    Index("writers_of_transactions", "pipeline", "txid", "revision"),
    comment="attempts of Spark tasks whose rows are there, one a sink, of transactions that are not committed",
)

events = Table(
    "events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("txid", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False, server_default="0"),
    Column("seq", Integer, nullable=False, comment="1, 2, 3 within its transaction's revision"),
    _now("at"),
    Column("who", Text, nullable=False),
    Column("move", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("detail", JSONB, nullable=False),
    Column("previous_hash", Text, nullable=False),
    Column("hash", Text, nullable=False),
    UniqueConstraint("pipeline", "txid", "revision", "seq", name="history_is_a_line"),
    Index("events_of_commits", "pipeline", "id", postgresql_where="move = 'COMMITTED'"),
    comment="append-only history; each row hashes the one before it",
)

losses = Table(
    "losses",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("txid", BigInteger, primary_key=True),
    Column("source", SmallInteger, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("from_offset", BigInteger, primary_key=True),
    Column("until_offset", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("reason", Text, nullable=False),
    _now("at"),
    CheckConstraint("from_offset < until_offset", name="losses_are_half_open"),
    comment="planned offsets that a person took out of a plan: Kafka has lost them, or the next source takes them",
)

dead_letter_deltas = Table(
    "dead_letters",
    metadata,
    Column("_txid", BigInteger, nullable=False),
    Column("_writer", BigInteger, nullable=False),
    Column("_offset", BigInteger, nullable=False),
    Column("_partition", Integer, nullable=False),
    Column("_source", SmallInteger, nullable=False),
    Column("_pipeline", Text, nullable=False),
    Column("timestamp", DateTime(timezone=True)),
    Column("error", Text, nullable=False),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column(
        "headers",
        Text,
        comment="[{key, value as base64}] as JSON, the very text that was voted for; a key with U+0000 is key_base64",
    ),
    Index("dead_letters_seen", "_pipeline", "_txid"),
    Index("dead_letters_writer", "_writer"),
    schema=DELTA_SCHEMA,
    comment="dead letters as they were written, also those above the head; readers have the view ratchet.dead_letters",
)

dead_letters = Table(
    "dead_letters",
    MetaData(schema=SCHEMA),
    Column("pipeline", Text),
    Column("topic_id", Text),
    Column("partition", Integer),
    Column("offset", BigInteger),
    Column("topic", Text),
    Column("timestamp", DateTime(timezone=True)),
    Column("txid", BigInteger),
    Column("error", Text),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("headers", JSON),
    Column("topic_number", Integer),
)
"""The view that readers have of dead letters: those up to their pipeline's head."""

targets = Table(
    "targets",
    metadata,
    Column("schema", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column(
        "fold",
        JSONB,
        nullable=False,
        comment="what its deltas mean: kind, key, order, measures; [[old, new]] of columns that were renamed",
    ),
    comment="whose the table of a sink is: of two lines in one table the same txid would mean two things",
)

steps = Table(
    "steps",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("step", BigInteger, primary_key=True, comment="1, 2, 3 within its pipeline"),
    Column("token", BigInteger, nullable=False, comment="a random number, which no other step has"),
    Column("txid", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False),
    _now("at"),
    ForeignKeyConstraint(["pipeline"], ["ratchet.pipelines.pipeline"], name="steps_pipeline"),
    UniqueConstraint("pipeline", "txid", "revision", name="steps_are_decided_once"),
    comment="commits of a pipeline with destinations, in the order in which these get them",
)

destinations = Table(
    "destinations",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("destination", Text, primary_key=True, comment="its address"),
    Column("sink", Text, nullable=False, comment="whose rows it gets"),
    Column("can_revise", Boolean, nullable=False, comment="whether rows that it has can give way to others"),
    Column("step", BigInteger, nullable=False, comment="up to which it has what was decided, as far as is known here"),
    Column("token", BigInteger, nullable=False, comment="that of the step, or of its start"),
    Column("started", Boolean, nullable=False, server_default="false", comment="whether it has its first mark"),
    Column(
        "since", BigInteger, nullable=False, comment="transactions beyond this one have come to it by their own steps"
    ),
    _now("reached_at"),
    _time("detached_at"),
    Column("detached_by", Text),
    Column("detached_why", Text),
    CheckConstraint("num_nulls(detached_at, detached_by, detached_why) in (0, 3)", name="a_detachment_is_whole"),
    comment="places outside of this database that get the rows of a sink; a detached one gets nothing",
)

replays = Table(
    "replays",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("txid", BigInteger, primary_key=True),
    Column("id", BigInteger, Identity(always=True), nullable=False, comment="the lowest waits the longest"),
    Column("who", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("code_hash", Text, nullable=False, comment="the code of the process that asked"),
    Column("releases", Text, comment="of a release: the text that errors of its dead letters contain, empty for all"),
    Column("given_up", Text, comment="why it cannot be begun any more; null while it waits"),
    _now("at"),
    ForeignKeyConstraint(["pipeline"], ["ratchet.pipelines.pipeline"], name="replays_pipeline"),
    UniqueConstraint("pipeline", "id", name="replays_in_order"),
    comment="revisions that are asked for and not begun; one at a time is worked on",
)

expired = Table(
    "expired",
    metadata,
    Column("pipeline", Text, primary_key=True),
    Column("schema", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("until_txid", BigInteger, primary_key=True, comment="up to which transaction its rows are deleted"),
    Column("rows", BigInteger, nullable=False),
    _now("at"),
    comment="rows of an Append that were older than it keeps them, a row for each day on which some were deleted",
)

erasures = Table(
    "erasures",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("schema", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("txid", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("checksum", Numeric(20), nullable=False, comment="the sum of the hashes of the rows, modulo 2^64"),
    Column("who", Text, nullable=False),
    Column("reason", Text, nullable=False),
    _now("at"),
    CheckConstraint("rows > 0 and checksum >= 0 and checksum < 18446744073709551616", name="erasures_are_of_rows"),
    Index("erasures_of_tables", "pipeline", "schema", "name", "txid"),
    comment="rows that a person has erased; what stays is verified by what is noted of them here",
)

drops = Table(
    "drops",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("last_txid", BigInteger, nullable=False),
    Column("head", BigInteger, nullable=False),
    Column("last_commit", Text, comment="hash of the last commit, which stands for all before it"),
    Column("relations", JSONB, nullable=False, comment="the tables and views that were dropped"),
    Column("who", Text, nullable=False),
    Column("reason", Text, nullable=False),
    _now("at"),
    comment="lines that a person has dropped, with all that the ledger and the sinks had of them",
)

exchanged = Table(
    "exchanged",
    metadata,
    Column("pipeline", Text, nullable=False),
    Column("schema", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("txid", BigInteger, nullable=False),
    Column("revision", Integer, nullable=False, comment="which has taken the rows away"),
    Column("key", ARRAY(Text), nullable=False, comment="the texts of the key's columns, in their order"),
    Index("exchanged_of_tables", "pipeline", "schema", "name", "txid", "revision"),
    comment="keys of rows that a revision has taken away, for destinations; as long as deltas can be told apart",
)

prunes = Table(
    "prunes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("pipeline", Text, nullable=False),
    Column("first_txid", BigInteger, nullable=False),
    Column("last_txid", BigInteger, nullable=False),
    Column("last_commit", Text, nullable=False, comment="hash of the last commit before `border`, for all before it"),
    Column("border", BigInteger, nullable=False, comment="the event of the first commit after last_txid"),
    Column("committed_before", DateTime(timezone=True), nullable=False, comment="when that was"),
    Column("reached", BigInteger, nullable=False, comment="up to this txid rows are gone"),
    Column("rows", JSONB, nullable=False, comment="{table: how many rows are gone}"),
    Column("who", Text, nullable=False),
    Column("reason", Text, nullable=False),
    _now("at"),
    _time("finished_at"),
    CheckConstraint("first_txid <= last_txid and reached between first_txid - 1 and last_txid", name="txids_ascend"),
    Index("prunes_of_pipelines", "pipeline", "id"),
    comment="what a person has taken out of the ledger, and what those transactions that stay are held against",
)

legal_moves = Table(
    "legal_moves",
    metadata,
    Column("from_state", Text, primary_key=True, comment="'' where there was none"),
    Column("to_state", Text, primary_key=True),
    comment="held equal to ratchet.ledger.states.LEGAL_MOVES; a trigger refuses every other move",
)
