-- What the other functions and statements stand on: notifications, object references, pins, and the triggers that let
-- people write agents and leases by hand (S1.22).

-- A NOTIFY payload must stay under 8000 bytes; a longer list of partitions says "any". The reader of these lines is
-- notices.py.
CREATE FUNCTION sh_notify_keys(p_kind text, p_topic_ids uuid[], p_partition_ids integer[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT pg_notify('streamhouse', CASE WHEN length(body) < 7900 THEN p_kind || ' ' || body ELSE 'any' END)
    FROM (
        SELECT coalesce(string_agg(replace(topic_id::text, '-', '') || ':' || partitions, ';'), '') AS body
        FROM (
            SELECT topic_id, string_agg(partition_id::text, ',') AS partitions
            FROM unnest(p_topic_ids, p_partition_ids) AS listed (topic_id, partition_id)
            GROUP BY topic_id
        ) AS by_topic
    ) AS line
$$;

CREATE FUNCTION sh_notify_name(p_kind text, p_name text) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_notify('streamhouse', p_kind || ' ' || p_name)
$$;

-- Take one reference off each key listed (a key listed twice loses two). The shared lock makes the creation of a pin
-- wait for us: without it a pin could be stamped after our clock reading and still find the entries we are about to
-- drop, whose objects would then count as dereferenced before the pin (R7).
CREATE FUNCTION sh_dereference(p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(21320, 2);
    v_now := sh_now_ms();
    PERFORM 1 FROM objects AS o
    WHERE o.object_key IN (SELECT DISTINCT listed.key FROM unnest(p_keys) AS listed (key))
    ORDER BY o.object_key FOR NO KEY UPDATE OF o;
    UPDATE objects AS o
    SET refs = o.refs - gone.refs,
        dereferenced_at = CASE WHEN o.refs = gone.refs THEN v_now ELSE o.dereferenced_at END
    FROM (SELECT listed.key, count(*) AS refs FROM unnest(p_keys) AS listed (key) GROUP BY listed.key) AS gone
    WHERE o.object_key = gone.key;
END $$;

-- Add references; a new one ends the object's being dereferenced.
CREATE FUNCTION sh_reference(p_keys text[], p_sizes bigint[], p_times bigint[], p_refs bigint[]) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO objects AS o (object_key, size_bytes, created_at, refs)
    SELECT listed.key, min(listed.size_bytes), min(listed.created_at), sum(listed.refs)
    FROM unnest(p_keys, p_sizes, p_times, p_refs) AS listed (key, size_bytes, created_at, refs)
    WHERE listed.refs > 0
    GROUP BY listed.key ORDER BY listed.key COLLATE "C"
    ON CONFLICT (object_key) DO UPDATE SET refs = o.refs + excluded.refs, dereferenced_at = NULL
$$;

CREATE FUNCTION sh_create_pin(p_pin_id uuid, p_owner text, p_ttl_ms bigint)
RETURNS TABLE (created_at bigint, expires_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint;
BEGIN
    -- Waits for every sh_dereference under way, so that what they drop is gone before this pin's reader looks.
    PERFORM pg_advisory_xact_lock(21320, 2);
    v_now := sh_now_ms();
    DELETE FROM read_pins AS p WHERE p.expires_at <= v_now;
    RETURN QUERY
    INSERT INTO read_pins AS p (pin_id, owner, created_at, expires_at)
    VALUES (p_pin_id, p_owner, v_now, v_now + p_ttl_ms)
    ON CONFLICT (pin_id) DO UPDATE SET expires_at = greatest(p.expires_at, excluded.expires_at)
    RETURNING p.created_at, p.expires_at;
END $$;

-- The newest five of a flat window; PRODUCER_WINDOW of core/limits.py.
CREATE FUNCTION sh_last_batches(p_batches bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT p_batches[greatest(1, cardinality(p_batches) - 14):]
$$;

-- Partitions p_from … p_count - 1 of a topic: at the store-wide GC horizon, their epochs going on from what the name's
-- lease rows last held. The caller holds the topic's row and a share lock on store_info, so that the horizon cannot be
-- raised past a partition that is not visible yet (R6).
CREATE FUNCTION sh_add_partitions(p_topic_id uuid, p_from integer, p_count integer) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO partitions (topic_id, partition_id, topic, write_mode, leader_epoch, gc_horizon_ms)
    SELECT t.topic_id, n, t.name, t.write_mode,
           CASE WHEN t.write_mode = 'leased' THEN coalesce(l.epoch, 0) ELSE 0 END, s.gc_horizon_ms
    FROM topics AS t CROSS JOIN store_info AS s CROSS JOIN generate_series(p_from, p_count - 1) AS n
    LEFT JOIN partition_leases AS l ON l.topic = t.name AND l.partition_id = n
    WHERE t.topic_id = p_topic_id
$$;

-- Here rather than in code, so that an agent an operator registers by hand has its number too.
CREATE FUNCTION sh_agent_gets_node_id() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_node_id integer;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM node_ids AS n WHERE n.agent_id = NEW.agent_id) THEN
        UPDATE store_info SET next_node_id = next_node_id + 1 RETURNING next_node_id - 1 INTO v_node_id;
        INSERT INTO node_ids (agent_id, node_id) VALUES (NEW.agent_id, v_node_id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER agent_gets_node_id AFTER INSERT ON agents FOR EACH ROW EXECUTE FUNCTION sh_agent_gets_node_id();

-- A lease an operator writes by hand, with the six columns of S1.7, fences like any other: its epoch goes into the
-- partition's row and history and never goes back. Our own writes move the partition's row first, so the triggers find
-- nothing left to do for them.
CREATE FUNCTION sh_carry_lease(p_lease partition_leases) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO epoch_history (topic_id, partition_id, epoch, start_offset, agent_id, wal_id, started_at)
    SELECT p.topic_id, p.partition_id, p_lease.epoch, p.high_watermark, p_lease.leader_agent_id,
           '00000000-0000-0000-0000-000000000000', p_lease.acquired_at
    FROM partitions AS p
    WHERE p.topic_id = p_lease.topic_id AND p.partition_id = p_lease.partition_id;
    UPDATE partitions AS p SET leader_epoch = p_lease.epoch
    WHERE p.topic_id = p_lease.topic_id AND p.partition_id = p_lease.partition_id;
    PERFORM sh_notify_keys('leases', ARRAY[p_lease.topic_id], ARRAY[p_lease.partition_id]);
END $$;

-- The partition that a lease row names, locked: the partition's row is locked before the lease's, as everywhere.
CREATE FUNCTION sh_partition_of_lease(p_topic text, p_partition_id integer) RETURNS SETOF partitions
LANGUAGE plpgsql AS $$
DECLARE
    v_partition partitions;
BEGIN
    SELECT p.* INTO v_partition FROM partitions AS p JOIN topics AS t ON t.topic_id = p.topic_id
    WHERE t.name = p_topic AND p.partition_id = p_partition_id FOR NO KEY UPDATE OF p;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_partition.write_mode <> 'leased' THEN
        RAISE EXCEPTION 'topic % is leaderless: its partitions have no leader and no lease', p_topic
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEXT v_partition;
END $$;

CREATE FUNCTION sh_lease_inserting_by_hand() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_partition partitions;
BEGIN
    SELECT * INTO v_partition FROM sh_partition_of_lease(NEW.topic, NEW.partition_id);
    NEW.topic_id := v_partition.topic_id;
    IF NEW.epoch <= v_partition.leader_epoch THEN
        NEW.epoch := v_partition.leader_epoch + 1;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER lease_inserting_by_hand BEFORE INSERT ON partition_leases FOR EACH ROW
WHEN (NEW.incarnation IS NULL) EXECUTE FUNCTION sh_lease_inserting_by_hand();

-- Only now is the row certain to be there: an INSERT … ON CONFLICT may have ended otherwise.
CREATE FUNCTION sh_lease_inserted_by_hand() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM sh_carry_lease(NEW);
    RETURN NULL;
END $$;
CREATE TRIGGER lease_inserted_by_hand AFTER INSERT ON partition_leases FOR EACH ROW
WHEN (NEW.incarnation IS NULL AND NEW.topic_id IS NOT NULL) EXECUTE FUNCTION sh_lease_inserted_by_hand();

CREATE FUNCTION sh_lease_updating() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_partition partitions;
BEGIN
    NEW.epoch := greatest(NEW.epoch, OLD.epoch);
    SELECT * INTO v_partition FROM sh_partition_of_lease(NEW.topic, NEW.partition_id);
    IF v_partition.topic_id IS NULL OR (NEW.epoch > OLD.epoch AND NEW.epoch = v_partition.leader_epoch) THEN
        RETURN NEW;
    END IF;
    IF NEW.leader_agent_id <> OLD.leader_agent_id AND NEW.epoch <= v_partition.leader_epoch THEN
        NEW.epoch := v_partition.leader_epoch + 1;
    END IF;
    IF NEW.epoch > v_partition.leader_epoch THEN
        NEW.topic_id := v_partition.topic_id;
        NEW.incarnation := NULL;
        NEW.wal_id := NULL;
        NEW.acquired_at := CASE WHEN NEW.acquired_at = OLD.acquired_at THEN sh_now_ms() ELSE NEW.acquired_at END;
        PERFORM sh_carry_lease(NEW);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER lease_updating BEFORE UPDATE ON partition_leases FOR EACH ROW
WHEN (NEW.epoch <> OLD.epoch OR NEW.leader_agent_id <> OLD.leader_agent_id) EXECUTE FUNCTION sh_lease_updating();
