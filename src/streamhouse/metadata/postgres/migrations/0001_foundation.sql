-- The whole schema of the foundation. The same tables and columns as SQLite's; all times are epoch milliseconds.
-- Names and ids compare bytewise (COLLATE "C"), so that every backend lists in the same order whatever the locale.

CREATE TABLE schema_migrations (
    version    integer PRIMARY KEY,
    name       text    NOT NULL,
    applied_at bigint  NOT NULL
);

-- The clock that every expiry uses, and the only one. clock_timestamp(), never now(): a transaction that waited for a
-- lock must see the time it has become (R20).
CREATE FUNCTION sh_now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

CREATE TABLE store_info (
    id               integer PRIMARY KEY CHECK (id = 1),
    cluster_id       uuid    NOT NULL,
    durability       text,
    wal_id           uuid,
    gc_horizon_ms    bigint  NOT NULL DEFAULT 0,
    next_producer_id bigint  NOT NULL DEFAULT 0,
    next_node_id     integer NOT NULL DEFAULT 1
);

CREATE TABLE topics (
    topic_id        uuid    PRIMARY KEY,
    name            text    COLLATE "C" NOT NULL UNIQUE,
    partition_count integer NOT NULL,
    write_mode      text    NOT NULL,
    config          jsonb   NOT NULL,
    created_at      bigint  NOT NULL,
    version         bigint  NOT NULL,
    retention_ms    bigint  GENERATED ALWAYS AS (
        CASE WHEN config ->> 'retention.ms' ~ '^-?[0-9]{1,18}$' THEN (config ->> 'retention.ms')::bigint
             ELSE 86400000 END
    ) STORED,
    cleanup_policy  text    GENERATED ALWAYS AS (coalesce(config ->> 'cleanup.policy', 'delete')) STORED
);

-- Every commit updates these rows in place: half a page is left free so that no index entry has to follow.
CREATE TABLE partitions (
    topic_id              uuid    NOT NULL,
    partition_id          integer NOT NULL,
    topic                 text    COLLATE "C" NOT NULL,
    write_mode            text    NOT NULL,
    log_state             text    NOT NULL DEFAULT 'OPEN',
    high_watermark        bigint  NOT NULL DEFAULT 0,
    log_start_offset      bigint  NOT NULL DEFAULT 0,
    -- Room for transactions: last stable offset = coalesce(first_unstable_offset, high_watermark).
    first_unstable_offset bigint,
    leader_epoch          bigint  NOT NULL DEFAULT 0,
    gc_horizon_ms         bigint  NOT NULL DEFAULT 0,
    compaction_cursor     bigint  NOT NULL DEFAULT 0,
    last_compaction_id    uuid,
    max_timestamp         bigint  NOT NULL DEFAULT -1,
    PRIMARY KEY (topic_id, partition_id)
) WITH (fillfactor = 50);

-- What people see of leadership; the fence is partitions.leader_epoch (R1). Rows are never deleted (S1.13).
CREATE TABLE partition_leases (
    topic            text    COLLATE "C" NOT NULL,
    partition_id     integer NOT NULL,
    leader_agent_id  text    COLLATE "C" NOT NULL,
    lease_expires_at bigint  NOT NULL,
    acquired_at      bigint  NOT NULL,
    epoch            bigint  NOT NULL,
    topic_id         uuid,
    incarnation      uuid,
    wal_id           uuid,
    PRIMARY KEY (topic, partition_id)
) WITH (fillfactor = 70);
CREATE INDEX partition_leases_by_topic_id ON partition_leases (topic_id, partition_id);
CREATE INDEX partition_leases_by_leader ON partition_leases (leader_agent_id);

CREATE TABLE coordinator_slots (
    slot             integer PRIMARY KEY,
    leader_agent_id  text    COLLATE "C",
    lease_expires_at bigint  NOT NULL DEFAULT 0,
    acquired_at      bigint  NOT NULL DEFAULT 0,
    epoch            bigint  NOT NULL DEFAULT 0,
    incarnation      uuid,
    wal_id           uuid
) WITH (fillfactor = 50);
INSERT INTO coordinator_slots (slot) SELECT generate_series(0, 49);

CREATE TABLE epoch_history (
    topic_id     uuid    NOT NULL,
    partition_id integer NOT NULL,
    epoch        bigint  NOT NULL,
    start_offset bigint  NOT NULL,
    agent_id     text    NOT NULL,
    wal_id       uuid    NOT NULL,
    started_at   bigint  NOT NULL,
    PRIMARY KEY (topic_id, partition_id, epoch)
);

-- running_max_timestamp is the largest max_timestamp of this and all earlier entries, so that "the first entry that
-- reaches time T" is a ceiling lookup too.
CREATE TABLE entries (
    topic_id              uuid    NOT NULL,
    partition_id          integer NOT NULL,
    end_offset            bigint  NOT NULL,
    base_offset           bigint  NOT NULL,
    kind                  text    NOT NULL,
    object_key            text    NOT NULL,
    byte_offset           bigint  NOT NULL,
    byte_length           bigint  NOT NULL,
    record_count          bigint  NOT NULL,
    encoding              text    NOT NULL,
    min_timestamp         bigint  NOT NULL,
    max_timestamp         bigint  NOT NULL,
    running_max_timestamp bigint  NOT NULL,
    epoch                 bigint  NOT NULL,
    created_at            bigint  NOT NULL,
    PRIMARY KEY (topic_id, partition_id, end_offset),
    CHECK (0 <= base_offset AND base_offset <= end_offset)
);
CREATE INDEX entries_by_time ON entries (topic_id, partition_id, running_max_timestamp, end_offset);

CREATE VIEW segments AS
SELECT topics.name AS topic, entries.* FROM entries JOIN topics ON topics.topic_id = entries.topic_id;

-- One reference per entry, pending compaction and sink slice that names the object (R7).
CREATE TABLE objects (
    object_key      text   COLLATE "C" PRIMARY KEY,
    size_bytes      bigint NOT NULL,
    created_at      bigint NOT NULL,
    refs            bigint NOT NULL CHECK (refs >= 0),
    dereferenced_at bigint
) WITH (fillfactor = 80);
CREATE INDEX objects_dereferenced ON objects (dereferenced_at, object_key) WHERE dereferenced_at IS NOT NULL;

-- The partitions each append id has committed (R5): {"<topic id>:<partition>": [base, end, watermark, epoch, …]}.
CREATE TABLE commits (
    append_id        uuid   PRIMARY KEY,
    outcomes         jsonb  NOT NULL,
    newest_object_at bigint NOT NULL,
    committed_at     bigint NOT NULL
);
CREATE INDEX commits_by_age ON commits (committed_at);

-- batches is flat, oldest first: sequence, record count, base offset, sequence, … (R9).
CREATE TABLE producer_windows (
    topic_id       uuid     NOT NULL,
    partition_id   integer  NOT NULL,
    producer_id    bigint   NOT NULL,
    producer_epoch bigint   NOT NULL,
    batches        bigint[] NOT NULL,
    updated_at     bigint   NOT NULL,
    PRIMARY KEY (topic_id, partition_id, producer_id)
) WITH (fillfactor = 60);

CREATE TABLE agents (
    agent_id          text   COLLATE "C" PRIMARY KEY,
    address           text   NOT NULL,
    availability_zone text   NOT NULL DEFAULT 'default',
    agent_group       text   NOT NULL DEFAULT 'default',
    last_heartbeat    bigint NOT NULL,
    started_at        bigint NOT NULL,
    metadata          jsonb  NOT NULL DEFAULT '{}',
    incarnation       uuid
) WITH (fillfactor = 50);

CREATE TABLE node_ids (
    agent_id   text    COLLATE "C" PRIMARY KEY,
    node_id    integer NOT NULL UNIQUE,
    superseded uuid[]  NOT NULL DEFAULT '{}'
);

CREATE TABLE lease_transfers (
    transfer_id        uuid   PRIMARY KEY,
    topic_id           uuid,
    partition_id       integer,
    slot               integer,
    from_agent         text   COLLATE "C" NOT NULL,
    to_agent           text   COLLATE "C" NOT NULL,
    epoch              bigint NOT NULL,
    state              text   NOT NULL,
    reason             text   NOT NULL DEFAULT '',
    target_incarnation uuid,
    target_wal_id      uuid,
    created_at         bigint NOT NULL,
    deadline_at        bigint NOT NULL,
    ended_at           bigint
);
CREATE INDEX lease_transfers_open ON lease_transfers (topic_id, partition_id, slot) WHERE ended_at IS NULL;
CREATE INDEX lease_transfers_ended ON lease_transfers (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE consumer_groups (
    group_id        text    COLLATE "C" PRIMARY KEY,
    slot            integer NOT NULL,
    slot_epoch      bigint  NOT NULL,
    generation      bigint  NOT NULL,
    member_count    bigint  NOT NULL,
    payload         bytea   NOT NULL,
    updated_at      bigint  NOT NULL,
    empty_since     bigint,
    offsets_version bigint  NOT NULL
);
CREATE INDEX consumer_groups_by_slot ON consumer_groups (slot);
CREATE INDEX consumer_groups_empty ON consumer_groups (empty_since) WHERE empty_since IS NOT NULL;

CREATE TABLE group_offsets (
    group_id         text    COLLATE "C" NOT NULL,
    topic_id         uuid    NOT NULL,
    partition_id     integer NOT NULL,
    committed_offset bigint  NOT NULL,
    leader_epoch     bigint  NOT NULL,
    metadata         text    NOT NULL,
    committed_at     bigint  NOT NULL,
    PRIMARY KEY (group_id, topic_id, partition_id)
) WITH (fillfactor = 70);
CREATE INDEX group_offsets_by_topic ON group_offsets (topic_id);

CREATE TABLE compactions (
    topic_id         uuid    NOT NULL,
    partition_id     integer NOT NULL,
    compaction_id    uuid    NOT NULL,
    state            text    NOT NULL,
    base_offset      bigint  NOT NULL,
    end_offset       bigint  NOT NULL,
    tail_base_offset bigint  NOT NULL,
    sources          jsonb   NOT NULL,
    target           jsonb   NOT NULL,
    object_key       text    NOT NULL,
    created_at       bigint  NOT NULL,
    PRIMARY KEY (topic_id, partition_id)
);

CREATE TABLE claims (
    name       text   COLLATE "C" PRIMARY KEY,
    owner      text   COLLATE "C" NOT NULL,
    claimed_at bigint NOT NULL,
    expires_at bigint NOT NULL
);
CREATE INDEX claims_by_expiry ON claims (expires_at);

CREATE TABLE read_pins (
    pin_id     uuid   PRIMARY KEY,
    owner      text   NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL
);

-- The last batch of each (query, topic), which never expires, and the manifest of that batch (R8).
CREATE TABLE sink_queries (
    query_id      text    COLLATE "C" NOT NULL,
    topic_id      uuid    NOT NULL,
    last_batch_id bigint  NOT NULL,
    complete      boolean NOT NULL,
    registered_at bigint  NOT NULL,
    PRIMARY KEY (query_id, topic_id)
);
CREATE INDEX sink_queries_by_topic ON sink_queries (topic_id);

CREATE TABLE sink_slices (
    query_id            text    COLLATE "C" NOT NULL,
    topic_id            uuid    NOT NULL,
    batch_id            bigint  NOT NULL,
    seq                 integer NOT NULL,
    partition_id        integer NOT NULL,
    object_key          text    NOT NULL,
    object_size         bigint  NOT NULL,
    object_created_at   bigint  NOT NULL,
    byte_offset         bigint  NOT NULL,
    byte_length         bigint  NOT NULL,
    record_count        bigint  NOT NULL,
    encoding            text    NOT NULL,
    min_timestamp       bigint  NOT NULL,
    max_timestamp       bigint  NOT NULL,
    adopted_base_offset bigint,
    adopted_end_offset  bigint,
    PRIMARY KEY (query_id, topic_id, batch_id, seq)
);
CREATE INDEX sink_slices_by_topic ON sink_slices (topic_id);
CREATE INDEX sink_slices_unadopted ON sink_slices (topic_id, partition_id) WHERE adopted_base_offset IS NULL;

CREATE TABLE flush_requests (
    request_id   uuid    NOT NULL,
    topic_id     uuid    NOT NULL,
    partition_id integer NOT NULL,
    requested_at bigint  NOT NULL,
    expires_at   bigint  NOT NULL,
    completed_at bigint,
    PRIMARY KEY (request_id, topic_id, partition_id)
);
CREATE INDEX flush_requests_open ON flush_requests (topic_id, partition_id) WHERE completed_at IS NULL;
CREATE INDEX flush_requests_by_expiry ON flush_requests (expires_at);

-- Room for transactions; nothing writes it yet.
CREATE TABLE aborted_transactions (
    topic_id           uuid    NOT NULL,
    partition_id       integer NOT NULL,
    producer_id        bigint  NOT NULL,
    first_offset       bigint  NOT NULL,
    last_offset        bigint  NOT NULL,
    last_stable_offset bigint  NOT NULL,
    PRIMARY KEY (topic_id, partition_id, last_offset, producer_id)
);
