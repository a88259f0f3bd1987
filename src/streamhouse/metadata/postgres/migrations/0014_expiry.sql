-- In the order in which commits lock them: a fleet may be at work.
LOCK TABLE commits, producer_windows IN ACCESS EXCLUSIVE MODE;

-- What a sweep deletes, and what a take-over loads first, is found by an index (R22).
--
-- Every commit moves updated_at. An index on that column would turn each of these updates into new index rows. The
-- minute changes rarely, so that most updates of a busy producer stay on their heap page (HOT).
ALTER TABLE producer_windows
    ADD COLUMN updated_minute bigint NOT NULL GENERATED ALWAYS AS (updated_at / 60000) STORED;
-- "+ 0" is for the planner: a page of one partition must not walk the index of all, and cannot with this one.
CREATE INDEX producer_windows_by_age ON producer_windows ((updated_minute + 0));
CREATE INDEX producer_windows_newest ON producer_windows (topic_id, partition_id, updated_minute, producer_id);

-- Partitions some of whose windows are gone: expired, or deleted with an earlier topic of the same name. An unknown
-- producer there, up to this id, may be one that wrote before.
CREATE TABLE forgotten_producers (
    topic_id     uuid    NOT NULL,
    partition_id integer NOT NULL,
    up_to_producer_id bigint NOT NULL,
    PRIMARY KEY (topic_id, partition_id)
);

-- An append id goes when its objects are below the horizon and it is old enough. By the commit's age alone, a sweep
-- would look at every old row again and again while the horizon stands still.
DROP INDEX commits_by_age;
CREATE INDEX commits_by_object_age ON commits (newest_object_at, committed_at);
