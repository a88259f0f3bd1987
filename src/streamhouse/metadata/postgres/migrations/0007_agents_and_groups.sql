-- Registration of agents, and offset commits: the two writes whose reply must not wait for a second round trip while a
-- row that others need is locked.

CREATE FUNCTION sh_register_agent(
    p_agent_id text, p_incarnation uuid, p_address text, p_zone text, p_group text, p_metadata jsonb
) RETURNS TABLE (node_id integer, last_heartbeat bigint, started_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_superseded uuid[];
    v_former uuid;
    v_now bigint;
BEGIN
    -- An id's first registration has no row to lock yet, so concurrent ones queue up for the id itself.
    PERFORM pg_advisory_xact_lock(21321, hashtext(p_agent_id));
    SELECT n.superseded INTO v_superseded FROM node_ids AS n WHERE n.agent_id = p_agent_id FOR UPDATE;
    IF p_incarnation = ANY (v_superseded) THEN
        RAISE EXCEPTION 'a newer incarnation of agent % has registered', p_agent_id USING ERRCODE = 'SH001';
    END IF;
    INSERT INTO agents (agent_id, address, last_heartbeat, started_at, incarnation)
    VALUES (p_agent_id, p_address, 0, 0, p_incarnation) ON CONFLICT (agent_id) DO NOTHING;
    SELECT a.incarnation INTO v_former FROM agents AS a WHERE a.agent_id = p_agent_id FOR UPDATE;
    v_now := sh_now_ms();
    IF v_former <> p_incarnation THEN
        UPDATE node_ids AS n SET superseded = (n.superseded || v_former)[greatest(1, cardinality(n.superseded) - 6):]
        WHERE n.agent_id = p_agent_id;
    END IF;
    RETURN QUERY
    UPDATE agents AS a SET
        started_at = CASE WHEN a.incarnation = p_incarnation AND a.started_at > 0 THEN a.started_at ELSE v_now END,
        last_heartbeat = greatest(a.last_heartbeat, v_now), incarnation = p_incarnation, address = p_address,
        availability_zone = p_zone, agent_group = p_group, metadata = p_metadata
    FROM node_ids AS n
    WHERE a.agent_id = p_agent_id AND n.agent_id = a.agent_id
    RETURNING n.node_id, a.last_heartbeat, a.started_at;
END $$;

-- A coordinator's write: the slot's row first, at the very epoch (R1). SH003's detail: slot, epoch asked, epoch found.
CREATE FUNCTION sh_check_slot(p_slot integer, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_epoch bigint;
BEGIN
    SELECT s.epoch INTO v_epoch FROM coordinator_slots AS s WHERE s.slot = p_slot FOR SHARE;
    IF v_epoch IS DISTINCT FROM p_epoch THEN
        RAISE EXCEPTION 'stale slot epoch'
            USING ERRCODE = 'SH003', DETAIL = format('%s %s %s', p_slot, p_epoch, coalesce(v_epoch, 0));
    END IF;
END $$;

-- p_epoch NULL is the simple commit, without a coordinator. Returns the keys whose partition does not exist. The
-- topics' rows are held so that a deletion cannot pass by and leave our offsets behind.
CREATE FUNCTION sh_commit_offsets(
    p_group_id text, p_slot integer, p_epoch bigint,
    p_topic_ids uuid[], p_partition_ids integer[], p_offsets bigint[], p_leader_epochs bigint[], p_metadata text[]
) RETURNS TABLE (topic_id uuid, partition_id integer) LANGUAGE plpgsql AS $$
DECLARE
    v_group consumer_groups;
    v_now bigint;
    v_written bigint;
BEGIN
    IF p_epoch IS NOT NULL THEN
        PERFORM sh_check_slot(p_slot, p_epoch);
    END IF;
    PERFORM 1 FROM topics AS t WHERE t.topic_id IN (SELECT DISTINCT k.id FROM unnest(p_topic_ids) AS k (id))
    ORDER BY t.topic_id FOR KEY SHARE OF t;
    INSERT INTO consumer_groups (
        group_id, slot, slot_epoch, generation, member_count, payload, updated_at, empty_since, offsets_version
    ) VALUES (p_group_id, p_slot, coalesce(p_epoch, 0), 0, 0, '', 0, 0, 0) ON CONFLICT (group_id) DO NOTHING;
    SELECT g.* INTO v_group FROM consumer_groups AS g WHERE g.group_id = p_group_id FOR UPDATE;
    IF p_epoch < v_group.slot_epoch THEN
        RAISE EXCEPTION 'stale slot epoch'
            USING ERRCODE = 'SH003', DETAIL = format('%s %s %s', p_slot, p_epoch, v_group.slot_epoch);
    ELSIF p_epoch IS NULL AND v_group.member_count > 0 THEN
        RAISE EXCEPTION 'group % has % members', p_group_id, v_group.member_count USING ERRCODE = 'SH004';
    END IF;
    v_now := sh_now_ms();
    INSERT INTO group_offsets (group_id, topic_id, partition_id, committed_offset, leader_epoch, metadata, committed_at)
    SELECT p_group_id, p.topic_id, p.partition_id, k.committed_offset, k.leader_epoch, k.metadata, v_now
    FROM unnest(p_topic_ids, p_partition_ids, p_offsets, p_leader_epochs, p_metadata)
        AS k (topic_id, partition_id, committed_offset, leader_epoch, metadata)
    JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
    ON CONFLICT ON CONSTRAINT group_offsets_pkey DO UPDATE SET
        committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,
        metadata = excluded.metadata, committed_at = excluded.committed_at;
    GET DIAGNOSTICS v_written = ROW_COUNT;
    UPDATE consumer_groups AS g SET
        slot_epoch = greatest(g.slot_epoch, p_epoch), updated_at = v_now,
        -- A group without members lives as long as somebody commits for it.
        empty_since = CASE WHEN g.member_count = 0 THEN v_now END,
        offsets_version = g.offsets_version + CASE WHEN v_written > 0 THEN 1 ELSE 0 END
    WHERE g.group_id = p_group_id;
    IF p_epoch IS NULL THEN
        PERFORM sh_notify_name('groups', p_group_id);
    END IF;
    RETURN QUERY
    SELECT k.topic_id, k.partition_id
    FROM unnest(p_topic_ids, p_partition_ids) WITH ORDINALITY AS k (topic_id, partition_id, n)
    WHERE NOT EXISTS (
        SELECT 1 FROM partitions AS p WHERE p.topic_id = k.topic_id AND p.partition_id = k.partition_id)
    ORDER BY k.n;
END $$;
