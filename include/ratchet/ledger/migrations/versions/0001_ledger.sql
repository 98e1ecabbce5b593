CREATE TABLE ratchet_delta.dead_letters (
    _txid BIGINT NOT NULL,
    _writer BIGINT NOT NULL,
    _offset BIGINT NOT NULL,
    _partition INTEGER NOT NULL,
    _source SMALLINT NOT NULL,
    _pipeline TEXT NOT NULL,
    timestamp TIMESTAMP WITH TIME ZONE,
    error TEXT NOT NULL,
    key BYTEA,
    value BYTEA,
    headers TEXT
);
CREATE INDEX dead_letters_seen ON ratchet_delta.dead_letters (_pipeline, _txid);
CREATE INDEX dead_letters_writer ON ratchet_delta.dead_letters (_writer);
COMMENT ON TABLE ratchet_delta.dead_letters IS 'dead letters as they were written, also those above the head; readers have the view ratchet.dead_letters';
COMMENT ON COLUMN ratchet_delta.dead_letters.headers IS '[{key, value as base64}] as JSON, the very text that was voted for; a key with U+0000 is key_base64';

CREATE TABLE ratchet.drops (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    pipeline TEXT NOT NULL,
    last_txid BIGINT NOT NULL,
    head BIGINT NOT NULL,
    last_commit TEXT,
    relations JSONB NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (id)
);
COMMENT ON TABLE ratchet.drops IS 'lines that a person has dropped, with all that the ledger and the sinks had of them';
COMMENT ON COLUMN ratchet.drops.last_commit IS 'hash of the last commit, which stands for all before it';
COMMENT ON COLUMN ratchet.drops.relations IS 'the tables and views that were dropped';

CREATE TABLE ratchet.erasures (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    pipeline TEXT NOT NULL,
    schema TEXT NOT NULL,
    name TEXT NOT NULL,
    txid BIGINT NOT NULL,
    rows BIGINT NOT NULL,
    checksum NUMERIC(20) NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT erasures_are_of_rows CHECK (rows > 0 and checksum >= 0 and checksum < 18446744073709551616)
);
CREATE INDEX erasures_of_tables ON ratchet.erasures (pipeline, schema, name, txid);
COMMENT ON TABLE ratchet.erasures IS 'rows that a person has erased; what stays is verified by what is noted of them here';
COMMENT ON COLUMN ratchet.erasures.checksum IS 'the sum of the hashes of the rows, modulo 2^64';

CREATE TABLE ratchet.events (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    pipeline TEXT NOT NULL,
    txid BIGINT NOT NULL,
    revision INTEGER DEFAULT '0' NOT NULL,
    seq INTEGER NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    who TEXT NOT NULL,
    move TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    detail JSONB NOT NULL,
    previous_hash TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT history_is_a_line UNIQUE (pipeline, txid, revision, seq)
);
CREATE INDEX events_of_commits ON ratchet.events (pipeline, id) WHERE move = 'COMMITTED';
COMMENT ON TABLE ratchet.events IS 'append-only history; each row hashes the one before it';
COMMENT ON COLUMN ratchet.events.seq IS '1, 2, 3 within its transaction''s revision';

CREATE TABLE ratchet.exchanged (
    pipeline TEXT NOT NULL,
    schema TEXT NOT NULL,
    name TEXT NOT NULL,
    txid BIGINT NOT NULL,
    revision INTEGER NOT NULL,
    key TEXT[] NOT NULL
);
CREATE INDEX exchanged_of_tables ON ratchet.exchanged (pipeline, schema, name, txid, revision);
COMMENT ON TABLE ratchet.exchanged IS 'keys of rows that a revision has taken away, for destinations; as long as deltas can be told apart';
COMMENT ON COLUMN ratchet.exchanged.revision IS 'which has taken the rows away';
COMMENT ON COLUMN ratchet.exchanged.key IS 'the texts of the key''s columns, in their order';

CREATE TABLE ratchet.expired (
    pipeline TEXT NOT NULL,
    schema TEXT NOT NULL,
    name TEXT NOT NULL,
    until_txid BIGINT NOT NULL,
    rows BIGINT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (pipeline, schema, name, until_txid)
);
COMMENT ON TABLE ratchet.expired IS 'rows of an Append that were older than it keeps them, a row for each day on which some were deleted';
COMMENT ON COLUMN ratchet.expired.until_txid IS 'up to which transaction its rows are deleted';

CREATE TABLE ratchet.legal_moves (
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    PRIMARY KEY (from_state, to_state)
);
COMMENT ON TABLE ratchet.legal_moves IS 'held equal to ratchet.ledger.states.LEGAL_MOVES; a trigger refuses every other move';
COMMENT ON COLUMN ratchet.legal_moves.from_state IS ''''' where there was none';

CREATE TABLE ratchet.losses (
    pipeline TEXT NOT NULL,
    txid BIGINT NOT NULL,
    source SMALLINT NOT NULL,
    partition INTEGER NOT NULL,
    from_offset BIGINT NOT NULL,
    until_offset BIGINT NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (pipeline, txid, source, partition, from_offset),
    CONSTRAINT losses_are_half_open CHECK (from_offset < until_offset)
);
COMMENT ON TABLE ratchet.losses IS 'planned offsets that a person took out of a plan: Kafka has lost them, or the next source takes them';

CREATE TABLE ratchet.pipelines (
    pipeline TEXT NOT NULL,
    topics JSONB NOT NULL,
    source SMALLINT DEFAULT '1' NOT NULL,
    last_txid BIGINT DEFAULT '0' NOT NULL,
    compacted BIGINT DEFAULT '0' NOT NULL,
    merged BIGINT DEFAULT '0' NOT NULL,
    pruned BIGINT DEFAULT '0' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    maintained_at TIMESTAMP WITH TIME ZONE,
    due JSONB,
    step BIGINT DEFAULT '0' NOT NULL,
    paused_behind BIGINT,
    paused_by TEXT,
    paused_why TEXT,
    paused_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (pipeline),
    CONSTRAINT a_pause_is_whole CHECK (num_nulls(paused_behind, paused_by, paused_why, paused_at) in (0, 4)),
    CONSTRAINT base_within_line
        CHECK (0 <= pruned and pruned <= merged and merged <= compacted and compacted <= last_txid)
);
COMMENT ON TABLE ratchet.pipelines IS 'one row a pipeline; its row lock is the commit lock';
COMMENT ON COLUMN ratchet.pipelines.topics IS '[{topic, id, left}] by number: those of `topics` of this source';
COMMENT ON COLUMN ratchet.pipelines.source IS 'the source that new plans are of';
COMMENT ON COLUMN ratchet.pipelines.compacted IS 'up to this txid deltas are a base, and nothing can be revised';
COMMENT ON COLUMN ratchet.pipelines.merged IS 'up to this txid the base is merged';
COMMENT ON COLUMN ratchet.pipelines.pruned IS 'up to this txid transactions have no rows here any more, or are about to lose them';
COMMENT ON COLUMN ratchet.pipelines.maintained_at IS 'when the maintenance was here last';
COMMENT ON COLUMN ratchet.pipelines.due IS '{partition: up to where a schedule or a person has asked for its records}';
COMMENT ON COLUMN ratchet.pipelines.step IS 'the last that destinations have to get';
COMMENT ON COLUMN ratchet.pipelines.paused_behind IS 'beyond this txid nothing is begun or committed, until it is lifted';

CREATE TABLE ratchet.heads (
    pipeline TEXT NOT NULL,
    txid BIGINT DEFAULT '0' NOT NULL,
    PRIMARY KEY (pipeline),
    CONSTRAINT heads_pipeline FOREIGN KEY(pipeline) REFERENCES ratchet.pipelines (pipeline)
);
COMMENT ON TABLE ratchet.heads IS 'what readers may see: rows of transactions up to the head; a trigger lets it move by one at a time';
COMMENT ON COLUMN ratchet.heads.txid IS 'highest committed or voided txid';

CREATE TABLE ratchet.prunes (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    pipeline TEXT NOT NULL,
    first_txid BIGINT NOT NULL,
    last_txid BIGINT NOT NULL,
    last_commit TEXT NOT NULL,
    border BIGINT NOT NULL,
    committed_before TIMESTAMP WITH TIME ZONE NOT NULL,
    reached BIGINT NOT NULL,
    rows JSONB NOT NULL,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (id),
    CONSTRAINT txids_ascend CHECK (first_txid <= last_txid and reached between first_txid - 1 and last_txid)
);
CREATE INDEX prunes_of_pipelines ON ratchet.prunes (pipeline, id);
COMMENT ON TABLE ratchet.prunes IS 'what a person has taken out of the ledger, and what those transactions that stay are held against';
COMMENT ON COLUMN ratchet.prunes.last_commit IS 'hash of the last commit before `border`, for all before it';
COMMENT ON COLUMN ratchet.prunes.border IS 'the event of the first commit after last_txid';
COMMENT ON COLUMN ratchet.prunes.committed_before IS 'when that was';
COMMENT ON COLUMN ratchet.prunes.reached IS 'up to this txid rows are gone';
COMMENT ON COLUMN ratchet.prunes.rows IS '{table: how many rows are gone}';

CREATE TABLE ratchet.sources (
    pipeline TEXT NOT NULL,
    source SMALLINT NOT NULL,
    cause TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    first_txid BIGINT,
    begun JSONB,
    looks JSONB,
    PRIMARY KEY (pipeline, source),
    CONSTRAINT sources_pipeline FOREIGN KEY(pipeline) REFERENCES ratchet.pipelines (pipeline)
);
COMMENT ON TABLE ratchet.sources IS 'the logs whose records a pipeline has taken, numbered from 1: its topics, and what they became where a person accepted that one was cut or made again, or that its keys have gone to other partitions';
COMMENT ON COLUMN ratchet.sources.source IS 'rows carry it as _source';
COMMENT ON COLUMN ratchet.sources.cause IS 'why it begins: first, cut, made_again or repartitioned';
COMMENT ON COLUMN ratchet.sources.partitions IS 'among how many the keys of its records are divided';
COMMENT ON COLUMN ratchet.sources.first_txid IS 'its first transaction; null while the source before is still planned';
COMMENT ON COLUMN ratchet.sources.begun IS 'of the first one: {rule, starts, logs, told}, where the line began and by which rule';
COMMENT ON COLUMN ratchet.sources.looks IS 'of a compacted topic: [{at, kept, stable}], by which lost tombstones are told';

CREATE TABLE ratchet.topics (
    pipeline TEXT NOT NULL,
    source SMALLINT NOT NULL,
    number SMALLINT NOT NULL,
    topic TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    joined_txid BIGINT,
    begun JSONB,
    PRIMARY KEY (pipeline, source, number),
    CONSTRAINT topics_source FOREIGN KEY(pipeline, source) REFERENCES ratchet.sources (pipeline, source),
    CONSTRAINT a_topic_has_one_number UNIQUE (pipeline, source, topic)
);
COMMENT ON TABLE ratchet.topics IS 'the topics of each source; a topic keeps its number in all of them';
COMMENT ON COLUMN ratchet.topics.number IS 'a partition of the line is number * 1000000 + the partition in Kafka';
COMMENT ON COLUMN ratchet.topics.topic_id IS 'Kafka''s id of it in this source';
COMMENT ON COLUMN ratchet.topics.joined_txid IS 'the transaction that it joined before; null if since the source began';
COMMENT ON COLUMN ratchet.topics.begun IS 'of one that joined: {rule, starts, logs}, where it began and by which rule';

CREATE TABLE ratchet.ranges (
    pipeline TEXT NOT NULL,
    txid BIGINT NOT NULL,
    source SMALLINT NOT NULL,
    partition INTEGER NOT NULL,
    from_offset BIGINT,
    until_offset BIGINT NOT NULL,
    CONSTRAINT one_range_a_partition UNIQUE (pipeline, txid, source, partition),
    CONSTRAINT ranges_end_once UNIQUE (pipeline, source, partition, until_offset),
    CONSTRAINT ranges_start_once UNIQUE (from_offset, pipeline, source, partition),
    CONSTRAINT ranges_tile FOREIGN KEY(pipeline, source, partition, from_offset) REFERENCES ratchet.ranges (pipeline, source, partition, until_offset)
        DEFERRABLE INITIALLY IMMEDIATE,
    CONSTRAINT ranges_source FOREIGN KEY(pipeline, source) REFERENCES ratchet.sources (pipeline, source),
    CONSTRAINT ranges_are_half_open CHECK (from_offset < until_offset),
    CONSTRAINT first_seen_has_no_start CHECK ((txid = 0) = (from_offset is null))
);
CREATE UNIQUE INDEX first_seen_once ON ratchet.ranges (pipeline, source, partition) WHERE txid = 0;
COMMENT ON TABLE ratchet.ranges IS 'each range starts where exactly one other ends: no gap, no overlap';
COMMENT ON COLUMN ratchet.ranges.txid IS '0 is where a partition starts';
COMMENT ON COLUMN ratchet.ranges.from_offset IS 'null only where a partition starts';

CREATE TABLE ratchet.leader_epochs (
    pipeline TEXT NOT NULL,
    source SMALLINT NOT NULL,
    partition INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL,
    from_offset BIGINT NOT NULL,
    PRIMARY KEY (pipeline, source, partition, leader_epoch),
    CONSTRAINT leader_epochs_source FOREIGN KEY(pipeline, source) REFERENCES ratchet.sources (pipeline, source)
);
COMMENT ON TABLE ratchet.leader_epochs IS 'which leaders took the records of a log, by which one that was cut is told from one that was not';
COMMENT ON COLUMN ratchet.leader_epochs.partition IS 'of the line, as in `topics`';
COMMENT ON COLUMN ratchet.leader_epochs.leader_epoch IS 'Kafka''s number of a partition''s leader';
COMMENT ON COLUMN ratchet.leader_epochs.from_offset IS 'the first offset of it';

CREATE TABLE ratchet.steps (
    pipeline TEXT NOT NULL,
    step BIGINT NOT NULL,
    token BIGINT NOT NULL,
    txid BIGINT NOT NULL,
    revision INTEGER NOT NULL,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (pipeline, step),
    CONSTRAINT steps_pipeline FOREIGN KEY(pipeline) REFERENCES ratchet.pipelines (pipeline),
    CONSTRAINT steps_are_decided_once UNIQUE (pipeline, txid, revision)
);
COMMENT ON TABLE ratchet.steps IS 'commits of a pipeline with destinations, in the order in which these get them';
COMMENT ON COLUMN ratchet.steps.step IS '1, 2, 3 within its pipeline';
COMMENT ON COLUMN ratchet.steps.token IS 'a random number, which no other step has';

CREATE TABLE ratchet.destinations (
    pipeline TEXT NOT NULL,
    destination TEXT NOT NULL,
    sink TEXT NOT NULL,
    can_revise BOOLEAN NOT NULL,
    step BIGINT NOT NULL,
    token BIGINT NOT NULL,
    started BOOLEAN DEFAULT 'false' NOT NULL,
    since BIGINT NOT NULL,
    reached_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    detached_at TIMESTAMP WITH TIME ZONE,
    detached_by TEXT,
    detached_why TEXT,
    PRIMARY KEY (pipeline, destination),
    CONSTRAINT a_detachment_is_whole CHECK (num_nulls(detached_at, detached_by, detached_why) in (0, 3))
);
COMMENT ON TABLE ratchet.destinations IS 'places outside of this database that get the rows of a sink; a detached one gets nothing';
COMMENT ON COLUMN ratchet.destinations.destination IS 'its address';
COMMENT ON COLUMN ratchet.destinations.sink IS 'whose rows it gets';
COMMENT ON COLUMN ratchet.destinations.can_revise IS 'whether rows that it has can give way to others';
COMMENT ON COLUMN ratchet.destinations.step IS 'up to which it has what was decided, as far as is known here';
COMMENT ON COLUMN ratchet.destinations.token IS 'that of the step, or of its start';
COMMENT ON COLUMN ratchet.destinations.started IS 'whether it has its first mark';
COMMENT ON COLUMN ratchet.destinations.since IS 'transactions beyond this one have come to it by their own steps';

CREATE TABLE ratchet.replays (
    pipeline TEXT NOT NULL,
    txid BIGINT NOT NULL,
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    who TEXT NOT NULL,
    reason TEXT NOT NULL,
    code_hash TEXT NOT NULL,
    releases TEXT,
    given_up TEXT,
    at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (pipeline, txid),
    CONSTRAINT replays_pipeline FOREIGN KEY(pipeline) REFERENCES ratchet.pipelines (pipeline),
    CONSTRAINT replays_in_order UNIQUE (pipeline, id)
);
COMMENT ON TABLE ratchet.replays IS 'revisions that are asked for and not begun; one at a time is worked on';
COMMENT ON COLUMN ratchet.replays.id IS 'the lowest waits the longest';
COMMENT ON COLUMN ratchet.replays.code_hash IS 'the code of the process that asked';
COMMENT ON COLUMN ratchet.replays.releases IS 'of a release: the text that errors of its dead letters contain, empty for all';
COMMENT ON COLUMN ratchet.replays.given_up IS 'why it cannot be begun any more; null while it waits';

CREATE TABLE ratchet.runs (
    dag_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    clear_number INTEGER NOT NULL,
    pipeline TEXT NOT NULL,
    txid BIGINT NOT NULL,
    revision INTEGER DEFAULT '0' NOT NULL,
    epoch INTEGER NOT NULL,
    claim INTEGER NOT NULL,
    began_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    outcome TEXT,
    PRIMARY KEY (dag_id, run_id, clear_number)
);
COMMENT ON TABLE ratchet.runs IS 'which run worked on what; kept for ever, so a late task finds its own claim';

CREATE TABLE ratchet.slices (
    pipeline TEXT NOT NULL,
    txid BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    slice INTEGER NOT NULL,
    ranges JSONB NOT NULL,
    try_number INTEGER DEFAULT '0' NOT NULL,
    nonce BIGINT DEFAULT '0' NOT NULL,
    tried_at TIMESTAMP WITH TIME ZONE,
    voted_at TIMESTAMP WITH TIME ZONE,
    records BIGINT,
    dead_letters BIGINT,
    sinks JSONB,
    reached JSONB,
    seconds JSONB,
    absent JSONB,
    cut BIGINT,
    application_id TEXT,
    PRIMARY KEY (pipeline, txid, epoch, slice),
    CONSTRAINT a_vote_has_its_sinks CHECK ((voted_at is null) = (sinks is null))
);
COMMENT ON TABLE ratchet.slices IS 'the cut of an epoch into jobs, and their votes';
COMMENT ON COLUMN ratchet.slices.ranges IS '[[partition, from_offset, until_offset], ...]';
COMMENT ON COLUMN ratchet.slices.try_number IS 'the latest try';
COMMENT ON COLUMN ratchet.slices.nonce IS 'the random number of the latest try';
COMMENT ON COLUMN ratchet.slices.sinks IS '{sink: {writers: [number], rows, checksum}}';
COMMENT ON COLUMN ratchet.slices.reached IS '{partition: position}';
COMMENT ON COLUMN ratchet.slices.seconds IS '{step: seconds}';
COMMENT ON COLUMN ratchet.slices.absent IS '[[column, field, [like names]]] that no message had; null if none was good';
COMMENT ON COLUMN ratchet.slices.cut IS 'moments that lost digits beyond microseconds';

CREATE TABLE ratchet.stages (
    pipeline TEXT NOT NULL,
    txid BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    sink TEXT NOT NULL,
    relation TEXT NOT NULL,
    PRIMARY KEY (pipeline, txid, epoch, sink),
    UNIQUE (relation)
);
COMMENT ON TABLE ratchet.stages IS 'every staged table there is; a row goes with its table';
COMMENT ON COLUMN ratchet.stages.relation IS 'its exact name in schema ratchet_stage';

CREATE TABLE ratchet.targets (
    schema TEXT NOT NULL,
    name TEXT NOT NULL,
    pipeline TEXT NOT NULL,
    fold JSONB NOT NULL,
    PRIMARY KEY (schema, name)
);
COMMENT ON TABLE ratchet.targets IS 'whose the table of a sink is: of two lines in one table the same txid would mean two things';
COMMENT ON COLUMN ratchet.targets.fold IS 'what its deltas mean: kind, key, order, measures; [[old, new]] of columns that were renamed';

CREATE TABLE ratchet.transactions (
    pipeline TEXT NOT NULL,
    txid BIGINT NOT NULL,
    revision INTEGER DEFAULT '0' NOT NULL,
    epoch INTEGER NOT NULL,
    state TEXT NOT NULL,
    claim INTEGER NOT NULL,
    claim_ended BOOLEAN DEFAULT 'false' NOT NULL,
    dag_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    clear_number INTEGER NOT NULL,
    lease_until TIMESTAMP WITH TIME ZONE NOT NULL,
    deadline TIMESTAMP WITH TIME ZONE,
    code_hash TEXT NOT NULL,
    asked_code TEXT,
    releases TEXT,
    records BIGINT,
    verdict JSONB,
    applied JSONB,
    failures INTEGER DEFAULT '0' NOT NULL,
    halted_at TIMESTAMP WITH TIME ZONE,
    txn_time TIMESTAMP WITH TIME ZONE NOT NULL,
    opened_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    prepared_at TIMESTAMP WITH TIME ZONE,
    committed_at TIMESTAMP WITH TIME ZONE,
    reason TEXT,
    tombstones_since TIMESTAMP WITH TIME ZONE,
    tombstones_kept INTERVAL,
    PRIMARY KEY (pipeline, txid, revision),
    CONSTRAINT transactions_pipeline FOREIGN KEY(pipeline) REFERENCES ratchet.pipelines (pipeline),
    CONSTRAINT numbers_from_one CHECK (txid >= 1 and epoch >= 1 and claim >= 1 and revision >= 0),
    CONSTRAINT epochs_run_on_across_revisions UNIQUE (pipeline, txid, epoch),
    CONSTRAINT tombstones_have_a_term CHECK (num_nulls(tombstones_since, tombstones_kept) in (0, 2))
);
CREATE INDEX transactions_asked_for ON ratchet.transactions (pipeline, txid)
    WHERE asked_code is not null;
CREATE INDEX transactions_unfinished ON ratchet.transactions (pipeline, revision, txid)
    WHERE state in ('OPEN', 'PREPARED', 'ABORTED');
COMMENT ON COLUMN ratchet.transactions.claim IS 'number of the latest claim';
COMMENT ON COLUMN ratchet.transactions.dag_id IS 'the run that holds the latest claim';
COMMENT ON COLUMN ratchet.transactions.code_hash IS 'code and spec that this epoch''s votes must come from';
COMMENT ON COLUMN ratchet.transactions.asked_code IS 'of a revision that waited: the code of the process that asked for it';
COMMENT ON COLUMN ratchet.transactions.releases IS 'of a release: the text that errors of its dead letters contain, empty for all';
COMMENT ON COLUMN ratchet.transactions.records IS 'records read, once prepared';
COMMENT ON COLUMN ratchet.transactions.deadline IS 'when this epoch is aborted if it is still OPEN';
COMMENT ON COLUMN ratchet.transactions.verdict IS 'what the gates said of this epoch, once prepared: {gate: numbers}';
COMMENT ON COLUMN ratchet.transactions.applied IS 'what the commit applied: {sink: {rows, fingerprint}}';
COMMENT ON COLUMN ratchet.transactions.failures IS 'claims that ended with nothing done';
COMMENT ON COLUMN ratchet.transactions.halted_at IS 'since when it is tried no more, until a person decides';
COMMENT ON COLUMN ratchet.transactions.txn_time IS 'fixed when the txid is allocated';
COMMENT ON COLUMN ratchet.transactions.reason IS 'why it was aborted or voided';
COMMENT ON COLUMN ratchet.transactions.tombstones_since IS 'of a compacted topic: since when tombstones of its records may have been cleaned';
COMMENT ON COLUMN ratchet.transactions.tombstones_kept IS 'how long Kafka keeps them from then on';

CREATE TABLE ratchet.writers (
    writer BIGINT NOT NULL,
    pipeline TEXT NOT NULL,
    txid BIGINT NOT NULL,
    revision INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    slice INTEGER NOT NULL,
    try_number INTEGER NOT NULL,
    nonce BIGINT NOT NULL,
    task_partition INTEGER NOT NULL,
    task_attempt BIGINT NOT NULL,
    sink TEXT NOT NULL,
    schema TEXT NOT NULL,
    relation TEXT NOT NULL,
    rows BIGINT DEFAULT '0' NOT NULL,
    spans JSONB,
    PRIMARY KEY (writer)
);
CREATE INDEX writers_of_transactions ON ratchet.writers (pipeline, txid, revision);
COMMENT ON TABLE ratchet.writers IS 'attempts of Spark tasks whose rows are there, one a sink, of transactions that are not committed';
COMMENT ON COLUMN ratchet.writers.writer IS 'a random number; rows carry it as _writer';
COMMENT ON COLUMN ratchet.writers.relation IS 'the exact name of the table that has the rows';
COMMENT ON COLUMN ratchet.writers.spans IS '{partition: [first, last offset]}; null where positions do not ascend';

CREATE VIEW ratchet.dead_letters AS
SELECT d._pipeline AS pipeline, t.topic_id, d._partition % 1000000 AS partition, d._offset AS "offset", t.topic,
    d.timestamp, d._txid AS txid, d.error, d.key, d.value, d.headers::json AS headers,
    d._partition / 1000000 AS topic_number
FROM ratchet_delta.dead_letters d
JOIN ratchet.heads h ON h.pipeline = d._pipeline
LEFT JOIN ratchet.topics t
    ON t.pipeline = d._pipeline AND t.source = d._source AND t.number = d._partition / 1000000
WHERE d._txid <= h.txid;
COMMENT ON VIEW ratchet.dead_letters IS 'records that gave no row, with the reason, up to the head of their pipeline';

CREATE FUNCTION ratchet.check_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.state = OLD.state THEN
        RETURN NEW;
    END IF;
    IF NOT EXISTS (
        SELECT FROM ratchet.legal_moves
        WHERE from_state = CASE TG_OP WHEN 'INSERT' THEN '' ELSE OLD.state END AND to_state = NEW.state
    ) THEN
        RAISE EXCEPTION 'transaction % of %: no legal move to %', NEW.txid, NEW.pipeline, NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER legal_move BEFORE INSERT OR UPDATE ON ratchet.transactions
    FOR EACH ROW EXECUTE FUNCTION ratchet.check_move();

CREATE FUNCTION ratchet.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the history is append-only' USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON ratchet.events
    FOR EACH STATEMENT EXECUTE FUNCTION ratchet.refuse_change();
CREATE FUNCTION ratchet.check_removal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM ratchet.pipelines WHERE pipeline = OLD.pipeline AND pruned >= OLD.txid) THEN
        RAISE EXCEPTION 'the history is append-only' USING ERRCODE = 'check_violation';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER goes_with_its_line BEFORE DELETE ON ratchet.events
    FOR EACH ROW WHEN (OLD.pipeline IS DISTINCT FROM current_setting('ratchet.dropped', true))
    EXECUTE FUNCTION ratchet.check_removal();

CREATE FUNCTION ratchet.check_head() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.txid <> OLD.txid + 1 OR NOT EXISTS (
        SELECT FROM ratchet.transactions
        WHERE pipeline = NEW.pipeline AND txid = NEW.txid AND revision = 0 AND state IN ('COMMITTED', 'VOIDED')
    ) THEN
        RAISE EXCEPTION 'the head of % is %; it cannot move to %', NEW.pipeline, OLD.txid, NEW.txid
            USING ERRCODE = 'check_violation';
    END IF;
    IF EXISTS (SELECT FROM ratchet.pipelines WHERE pipeline = NEW.pipeline AND paused_behind < NEW.txid) THEN
        RAISE EXCEPTION 'line % is paused; its head cannot move to %', NEW.pipeline, NEW.txid
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER head_moves_by_one BEFORE UPDATE ON ratchet.heads
    FOR EACH ROW EXECUTE FUNCTION ratchet.check_head();
