-- The whole schema of the foundation. The same tables and columns as PostgreSQL's; all times are epoch milliseconds.
-- UUIDs are 16-byte blobs: hex(topic_id) shows one, and their order is the order every multi-row step keeps (R10).

CREATE TABLE schema_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
);

CREATE TABLE store_info (
    id               INTEGER PRIMARY KEY CHECK (id = 1),
    cluster_id       BLOB    NOT NULL,
    durability       TEXT,
    wal_id           BLOB,
    gc_horizon_ms    INTEGER NOT NULL DEFAULT 0,
    next_producer_id INTEGER NOT NULL DEFAULT 0,
    next_node_id     INTEGER NOT NULL DEFAULT 1,
    -- The clock that never goes back, though the machine's may (R20).
    clock_ms         INTEGER NOT NULL
);

CREATE TABLE topics (
    topic_id        BLOB    PRIMARY KEY,
    name            TEXT    NOT NULL UNIQUE,
    partition_count INTEGER NOT NULL,
    write_mode      TEXT    NOT NULL,
    config          TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    version         INTEGER NOT NULL,
    retention_ms    INTEGER GENERATED ALWAYS AS
        (CAST(coalesce(json_extract(config, '$."retention.ms"'), '86400000') AS INTEGER)) VIRTUAL,
    cleanup_policy  TEXT    GENERATED ALWAYS AS
        (coalesce(json_extract(config, '$."cleanup.policy"'), 'delete')) VIRTUAL
) WITHOUT ROWID;

CREATE TABLE partitions (
    topic_id              BLOB    NOT NULL,
    partition_id          INTEGER NOT NULL,
    topic                 TEXT    NOT NULL,
    write_mode            TEXT    NOT NULL,
    log_state             TEXT    NOT NULL DEFAULT 'OPEN',
    high_watermark        INTEGER NOT NULL DEFAULT 0,
    log_start_offset      INTEGER NOT NULL DEFAULT 0,
    -- Room for transactions: last stable offset = coalesce(first_unstable_offset, high_watermark).
    first_unstable_offset INTEGER,
    leader_epoch          INTEGER NOT NULL DEFAULT 0,
    gc_horizon_ms         INTEGER NOT NULL DEFAULT 0,
    compaction_cursor     INTEGER NOT NULL DEFAULT 0,
    last_compaction_id    BLOB,
    max_timestamp         INTEGER NOT NULL DEFAULT -1,
    PRIMARY KEY (topic_id, partition_id)
) WITHOUT ROWID;

-- What people see of leadership; the fence is partitions.leader_epoch (R1). Rows are never deleted (S1.13).
CREATE TABLE partition_leases (
    topic            TEXT    NOT NULL,
    partition_id     INTEGER NOT NULL,
    leader_agent_id  TEXT    NOT NULL,
    lease_expires_at INTEGER NOT NULL,
    acquired_at      INTEGER NOT NULL,
    epoch            INTEGER NOT NULL,
    topic_id         BLOB,
    incarnation      BLOB,
    wal_id           BLOB,
    PRIMARY KEY (topic, partition_id)
) WITHOUT ROWID;
CREATE INDEX partition_leases_by_topic_id ON partition_leases (topic_id, partition_id);
CREATE INDEX partition_leases_by_leader ON partition_leases (leader_agent_id);

CREATE TABLE coordinator_slots (
    slot             INTEGER PRIMARY KEY,
    leader_agent_id  TEXT,
    lease_expires_at INTEGER NOT NULL DEFAULT 0,
    acquired_at      INTEGER NOT NULL DEFAULT 0,
    epoch            INTEGER NOT NULL DEFAULT 0,
    incarnation      BLOB,
    wal_id           BLOB
);
INSERT INTO coordinator_slots (slot)
WITH RECURSIVE numbered (slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM numbered WHERE slot < 49)
SELECT slot FROM numbered;

CREATE TABLE epoch_history (
    topic_id     BLOB    NOT NULL,
    partition_id INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    agent_id     TEXT    NOT NULL,
    wal_id       BLOB    NOT NULL,
    started_at   INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition_id, epoch)
) WITHOUT ROWID;

-- A lease an operator writes by hand with the six columns (S1.22) fences like any other: its epoch goes into the
-- partition's row and history. Our own writes come with topic_id and have moved that row before, so they pass by.
CREATE TRIGGER lease_inserted_by_hand AFTER INSERT ON partition_leases WHEN NEW.topic_id IS NULL
BEGIN
    UPDATE partition_leases SET topic_id = (SELECT topic_id FROM topics WHERE name = NEW.topic)
    WHERE topic = NEW.topic AND partition_id = NEW.partition_id;
    INSERT INTO epoch_history (topic_id, partition_id, epoch, start_offset, agent_id, wal_id, started_at)
    SELECT topic_id, partition_id, NEW.epoch, high_watermark, NEW.leader_agent_id, zeroblob(16), NEW.acquired_at
    FROM partitions
    WHERE topic_id = (SELECT topic_id FROM topics WHERE name = NEW.topic) AND partition_id = NEW.partition_id
        AND write_mode = 'leased' AND leader_epoch < NEW.epoch;
    UPDATE partitions SET leader_epoch = NEW.epoch
    WHERE topic_id = (SELECT topic_id FROM topics WHERE name = NEW.topic) AND partition_id = NEW.partition_id
        AND write_mode = 'leased' AND leader_epoch < NEW.epoch;
END;
CREATE TRIGGER lease_updated_by_hand AFTER UPDATE OF epoch ON partition_leases
WHEN NEW.epoch > OLD.epoch AND NEW.epoch > (
    SELECT leader_epoch FROM partitions
    WHERE topic_id = NEW.topic_id AND partition_id = NEW.partition_id AND write_mode = 'leased'
)
BEGIN
    UPDATE partition_leases SET incarnation = NULL, wal_id = NULL
    WHERE topic = NEW.topic AND partition_id = NEW.partition_id;
    INSERT INTO epoch_history (topic_id, partition_id, epoch, start_offset, agent_id, wal_id, started_at)
    SELECT topic_id, partition_id, NEW.epoch, high_watermark, NEW.leader_agent_id, zeroblob(16), NEW.acquired_at
    FROM partitions WHERE topic_id = NEW.topic_id AND partition_id = NEW.partition_id;
    UPDATE partitions SET leader_epoch = NEW.epoch
    WHERE topic_id = NEW.topic_id AND partition_id = NEW.partition_id;
END;

-- running_max_timestamp is the largest max_timestamp of this and all earlier entries, so that "the first entry that
-- reaches time T" is a ceiling lookup too.
CREATE TABLE entries (
    topic_id              BLOB    NOT NULL,
    partition_id          INTEGER NOT NULL,
    end_offset            INTEGER NOT NULL,
    base_offset           INTEGER NOT NULL,
    kind                  TEXT    NOT NULL,
    object_key            TEXT    NOT NULL,
    byte_offset           INTEGER NOT NULL,
    byte_length           INTEGER NOT NULL,
    record_count          INTEGER NOT NULL,
    encoding              TEXT    NOT NULL,
    min_timestamp         INTEGER NOT NULL,
    max_timestamp         INTEGER NOT NULL,
    running_max_timestamp INTEGER NOT NULL,
    epoch                 INTEGER NOT NULL,
    created_at            INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition_id, end_offset)
) WITHOUT ROWID;
CREATE INDEX entries_by_time ON entries (topic_id, partition_id, running_max_timestamp, end_offset);

CREATE VIEW segments AS
SELECT topics.name AS topic, entries.*
FROM entries JOIN topics ON topics.topic_id = entries.topic_id;

-- One reference per entry, pending compaction and sink slice that names the object (R7).
CREATE TABLE objects (
    object_key      TEXT    PRIMARY KEY,
    size_bytes      INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    refs            INTEGER NOT NULL CHECK (refs >= 0),
    dereferenced_at INTEGER
) WITHOUT ROWID;
CREATE INDEX objects_dereferenced ON objects (dereferenced_at, object_key) WHERE dereferenced_at IS NOT NULL;

-- The partitions each append id has committed (R5).
CREATE TABLE commits (
    append_id        BLOB    PRIMARY KEY,
    outcomes         TEXT    NOT NULL,
    newest_object_at INTEGER NOT NULL,
    committed_at     INTEGER NOT NULL
);
CREATE INDEX commits_by_age ON commits (committed_at);

CREATE TABLE producer_windows (
    topic_id       BLOB    NOT NULL,
    partition_id   INTEGER NOT NULL,
    producer_id    INTEGER NOT NULL,
    producer_epoch INTEGER NOT NULL,
    batches        TEXT    NOT NULL,
    updated_at     INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition_id, producer_id)
) WITHOUT ROWID;
CREATE INDEX producer_windows_by_age ON producer_windows (updated_at);

CREATE TABLE agents (
    agent_id          TEXT    PRIMARY KEY,
    address           TEXT    NOT NULL,
    availability_zone TEXT    NOT NULL DEFAULT 'default',
    agent_group       TEXT    NOT NULL DEFAULT 'default',
    last_heartbeat    INTEGER NOT NULL,
    started_at        INTEGER NOT NULL,
    metadata          TEXT    NOT NULL DEFAULT '{}',
    incarnation       BLOB
) WITHOUT ROWID;

CREATE TABLE node_ids (
    agent_id   TEXT    PRIMARY KEY,
    node_id    INTEGER NOT NULL UNIQUE,
    superseded TEXT    NOT NULL DEFAULT '[]'
) WITHOUT ROWID;
-- Here rather than in code, so that an agent an operator registers by hand has its number too.
CREATE TRIGGER agent_gets_node_id AFTER INSERT ON agents
WHEN NOT EXISTS (SELECT 1 FROM node_ids WHERE agent_id = NEW.agent_id)
BEGIN
    INSERT INTO node_ids (agent_id, node_id) SELECT NEW.agent_id, next_node_id FROM store_info;
    UPDATE store_info SET next_node_id = next_node_id + 1;
END;

CREATE TABLE lease_transfers (
    transfer_id        BLOB    PRIMARY KEY,
    topic_id           BLOB,
    partition_id       INTEGER,
    slot               INTEGER,
    from_agent         TEXT    NOT NULL,
    to_agent           TEXT    NOT NULL,
    epoch              INTEGER NOT NULL,
    state              TEXT    NOT NULL,
    reason             TEXT    NOT NULL DEFAULT '',
    target_incarnation BLOB,
    target_wal_id      BLOB,
    created_at         INTEGER NOT NULL,
    deadline_at        INTEGER NOT NULL,
    ended_at           INTEGER
) WITHOUT ROWID;
CREATE INDEX lease_transfers_open ON lease_transfers (topic_id, partition_id, slot) WHERE ended_at IS NULL;
CREATE INDEX lease_transfers_ended ON lease_transfers (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE consumer_groups (
    group_id        TEXT    PRIMARY KEY,
    slot            INTEGER NOT NULL,
    slot_epoch      INTEGER NOT NULL,
    generation      INTEGER NOT NULL,
    member_count    INTEGER NOT NULL,
    payload         BLOB    NOT NULL,
    updated_at      INTEGER NOT NULL,
    empty_since     INTEGER,
    offsets_version INTEGER NOT NULL
);
CREATE INDEX consumer_groups_by_slot ON consumer_groups (slot);
CREATE INDEX consumer_groups_empty ON consumer_groups (empty_since) WHERE empty_since IS NOT NULL;

CREATE TABLE group_offsets (
    group_id         TEXT    NOT NULL,
    topic_id         BLOB    NOT NULL,
    partition_id     INTEGER NOT NULL,
    committed_offset INTEGER NOT NULL,
    leader_epoch     INTEGER NOT NULL,
    metadata         TEXT    NOT NULL,
    committed_at     INTEGER NOT NULL,
    PRIMARY KEY (group_id, topic_id, partition_id)
) WITHOUT ROWID;
CREATE INDEX group_offsets_by_topic ON group_offsets (topic_id);

CREATE TABLE compactions (
    topic_id         BLOB    NOT NULL,
    partition_id     INTEGER NOT NULL,
    compaction_id    BLOB    NOT NULL,
    state            TEXT    NOT NULL,
    base_offset      INTEGER NOT NULL,
    end_offset       INTEGER NOT NULL,
    tail_base_offset INTEGER NOT NULL,
    sources          TEXT    NOT NULL,
    target           TEXT    NOT NULL,
    object_key       TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition_id)
) WITHOUT ROWID;

CREATE TABLE claims (
    name       TEXT    PRIMARY KEY,
    owner      TEXT    NOT NULL,
    claimed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX claims_by_expiry ON claims (expires_at);

CREATE TABLE read_pins (
    pin_id     BLOB    PRIMARY KEY,
    owner      TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

-- The last batch of each (query, topic), which never expires, and the manifest of that batch (R8).
CREATE TABLE sink_queries (
    query_id      TEXT    NOT NULL,
    topic_id      BLOB    NOT NULL,
    last_batch_id INTEGER NOT NULL,
    complete      INTEGER NOT NULL,
    registered_at INTEGER NOT NULL,
    PRIMARY KEY (query_id, topic_id)
) WITHOUT ROWID;
CREATE INDEX sink_queries_by_topic ON sink_queries (topic_id);

CREATE TABLE sink_slices (
    query_id            TEXT    NOT NULL,
    topic_id            BLOB    NOT NULL,
    batch_id            INTEGER NOT NULL,
    seq                 INTEGER NOT NULL,
    partition_id        INTEGER NOT NULL,
    object_key          TEXT    NOT NULL,
    object_size         INTEGER NOT NULL,
    object_created_at   INTEGER NOT NULL,
    byte_offset         INTEGER NOT NULL,
    byte_length         INTEGER NOT NULL,
    record_count        INTEGER NOT NULL,
    encoding            TEXT    NOT NULL,
    min_timestamp       INTEGER NOT NULL,
    max_timestamp       INTEGER NOT NULL,
    adopted_base_offset INTEGER,
    adopted_end_offset  INTEGER,
    PRIMARY KEY (query_id, topic_id, batch_id, seq)
) WITHOUT ROWID;
CREATE INDEX sink_slices_unadopted ON sink_slices (topic_id, partition_id) WHERE adopted_base_offset IS NULL;

CREATE TABLE flush_requests (
    request_id   BLOB    NOT NULL,
    topic_id     BLOB    NOT NULL,
    partition_id INTEGER NOT NULL,
    requested_at INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    completed_at INTEGER,
    PRIMARY KEY (request_id, topic_id, partition_id)
) WITHOUT ROWID;
CREATE INDEX flush_requests_open ON flush_requests (topic_id, partition_id) WHERE completed_at IS NULL;
CREATE INDEX flush_requests_by_expiry ON flush_requests (expires_at);

-- Room for transactions; nothing writes it yet.
CREATE TABLE aborted_transactions (
    topic_id           BLOB    NOT NULL,
    partition_id       INTEGER NOT NULL,
    producer_id        INTEGER NOT NULL,
    first_offset       INTEGER NOT NULL,
    last_offset        INTEGER NOT NULL,
    last_stable_offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition_id, last_offset, producer_id)
) WITHOUT ROWID;
