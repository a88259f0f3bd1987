-- What a take-over loads first is found by an index (R22); what a sweep deletes has producer_windows_by_age.
CREATE INDEX producer_windows_newest ON producer_windows (topic_id, partition_id, updated_at, producer_id);

-- Partitions some of whose windows are gone: expired, or deleted with an earlier topic of the same name. An unknown
-- producer there, up to this id, may be one that wrote before.
CREATE TABLE forgotten_producers (
    topic_id     BLOB    NOT NULL,
    partition_id INTEGER NOT NULL,
    up_to_producer_id INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition_id)
) WITHOUT ROWID;

-- An append id goes when its objects are below the horizon and it is old enough. By the commit's age alone, a sweep
-- would look at every old row again and again while the horizon stands still.
DROP INDEX commits_by_age;
CREATE INDEX commits_by_object_age ON commits (newest_object_at, committed_at);
