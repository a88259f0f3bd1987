-- Leases on partitions and coordinator slots: many keys in one call, each on its own terms (R10).
--
-- Lock order: the agent's number, slots, partitions, lease rows, each kind in key order. The clock is read only when
-- the locks are held: a lease that ran out while we waited for its row has run out (R20).

-- Refuses a holder that a newer incarnation has replaced. The share lock keeps a newer one from registering until we
-- are done: else the older could take over from it.
CREATE FUNCTION sh_check_incarnation(p_agent_id text, p_incarnation uuid) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_superseded uuid[];
BEGIN
    SELECT n.superseded INTO v_superseded FROM node_ids AS n WHERE n.agent_id = p_agent_id FOR SHARE;
    IF p_incarnation = ANY (v_superseded) THEN
        RAISE EXCEPTION 'a newer incarnation of agent % has registered', p_agent_id USING ERRCODE = 'SH001';
    END IF;
END $$;

-- Refuses a holder whose durability is not the store's (R2).
CREATE FUNCTION sh_check_binding(p_agent_id text, p_wal_id uuid, p_ttl_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_durability text;
    v_wal_id uuid;
BEGIN
    SELECT s.durability, s.wal_id INTO v_durability, v_wal_id FROM store_info AS s;
    IF v_durability = 'wal' AND v_wal_id <> p_wal_id THEN
        RAISE EXCEPTION 'the store is bound to WAL %, and agent % writes WAL %', v_wal_id, p_agent_id, p_wal_id
            USING ERRCODE = 'SH002';
    ELSIF p_ttl_ms IS NULL AND v_durability IS DISTINCT FROM 'wal' THEN
        RAISE EXCEPTION 'agent % asks for a lease that never expires, and the store is not bound to a WAL', p_agent_id
            USING ERRCODE = 'SH002';
    END IF;
END $$;

-- NEVER_MS of contract/leases.py.
CREATE FUNCTION sh_lease_expiry(p_now bigint, p_ttl_ms bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(p_now + p_ttl_ms, 253402300799000)
$$;

-- What becomes of a lease that is asked for: take it, extend it, or leave it to its holder. No row at all is NULL.
CREATE FUNCTION sh_judge_lease(
    p_now bigint, p_ttl_ms bigint, p_agent_id text, p_incarnation uuid, p_wal_id uuid,
    l_agent_id text, l_incarnation uuid, l_wal_id uuid, l_expires_at bigint
) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN l_agent_id IS NULL OR l_expires_at <= p_now THEN 'acquired'
        WHEN l_agent_id = p_agent_id AND l_incarnation = p_incarnation THEN 'extended'
        WHEN l_agent_id = p_agent_id OR (p_ttl_ms IS NULL AND l_wal_id = p_wal_id) THEN 'acquired'
        ELSE 'held' END
$$;

-- Rows of keys that exist, numbered as asked: partitions by p_partition_places, slots by p_slot_places.
CREATE FUNCTION sh_acquire_leases(
    p_agent_id text, p_incarnation uuid, p_wal_id uuid, p_ttl_ms bigint,
    p_topic_ids uuid[], p_partition_ids integer[], p_partition_places integer[],
    p_slots integer[], p_slot_places integer[]
) RETURNS TABLE (
    place integer, verdict text, topic text, agent_id text, incarnation uuid, epoch bigint, acquired_at bigint,
    expires_at bigint, expired boolean, high_watermark bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint;
    v_expiry bigint;
BEGIN
    PERFORM sh_check_incarnation(p_agent_id, p_incarnation);
    PERFORM sh_check_binding(p_agent_id, p_wal_id, p_ttl_ms);
    PERFORM 1 FROM coordinator_slots AS s WHERE s.slot = ANY (p_slots) ORDER BY s.slot FOR UPDATE;
    PERFORM 1 FROM unnest(p_topic_ids, p_partition_ids) AS k (topic_id, partition_id)
    JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
    ORDER BY p.topic_id, p.partition_id FOR NO KEY UPDATE OF p;
    PERFORM 1 FROM unnest(p_topic_ids, p_partition_ids) AS k (topic_id, partition_id)
    JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
    JOIN partition_leases AS l ON l.topic = p.topic AND l.partition_id = p.partition_id
    ORDER BY l.topic, l.partition_id FOR NO KEY UPDATE OF l;
    v_now := sh_now_ms();
    v_expiry := sh_lease_expiry(v_now, p_ttl_ms);

    RETURN QUERY
    WITH asked AS (
        SELECT k.place, p.topic_id, p.partition_id, p.topic, p.high_watermark, l.leader_agent_id, l.incarnation,
               coalesce(l.epoch, 0) AS epoch, l.acquired_at, l.lease_expires_at,
               sh_judge_lease(v_now, p_ttl_ms, p_agent_id, p_incarnation, p_wal_id,
                              l.leader_agent_id, l.incarnation, l.wal_id, l.lease_expires_at) AS verdict
        FROM unnest(p_topic_ids, p_partition_ids, p_partition_places) AS k (topic_id, partition_id, place)
        JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
        LEFT JOIN partition_leases AS l ON l.topic = p.topic AND l.partition_id = p.partition_id
        WHERE p.write_mode = 'leased'
    ), taken AS (
        UPDATE partitions AS p SET leader_epoch = greatest(p.leader_epoch, a.epoch) + 1
        FROM asked AS a
        WHERE a.verdict = 'acquired' AND p.topic_id = a.topic_id AND p.partition_id = a.partition_id
        RETURNING a.place, p.topic_id, p.partition_id, p.topic, p.high_watermark, p.leader_epoch
    ), noted AS (
        INSERT INTO epoch_history (topic_id, partition_id, epoch, start_offset, agent_id, wal_id, started_at)
        SELECT t.topic_id, t.partition_id, t.leader_epoch, t.high_watermark, p_agent_id, p_wal_id, v_now FROM taken AS t
    ), shown AS (
        INSERT INTO partition_leases AS l (
            topic, partition_id, leader_agent_id, lease_expires_at, acquired_at, epoch, topic_id, incarnation, wal_id
        )
        SELECT t.topic, t.partition_id, p_agent_id, v_expiry, v_now, t.leader_epoch, t.topic_id, p_incarnation, p_wal_id
        FROM taken AS t
        ON CONFLICT ON CONSTRAINT partition_leases_pkey DO UPDATE SET
            leader_agent_id = excluded.leader_agent_id, lease_expires_at = excluded.lease_expires_at,
            acquired_at = excluded.acquired_at, epoch = excluded.epoch, topic_id = excluded.topic_id,
            incarnation = excluded.incarnation, wal_id = excluded.wal_id
    ), extended AS (
        UPDATE partition_leases AS l SET lease_expires_at = greatest(l.lease_expires_at, v_expiry)
        FROM asked AS a
        WHERE a.verdict = 'extended' AND l.topic = a.topic AND l.partition_id = a.partition_id
        RETURNING a.place, l.topic, l.epoch, l.acquired_at, l.lease_expires_at, a.high_watermark
    ), told AS (
        SELECT sh_notify_keys('leases', array_agg(t.topic_id), array_agg(t.partition_id))
        FROM taken AS t HAVING count(*) > 0
    )
    SELECT t.place, 'acquired', t.topic, p_agent_id, p_incarnation, t.leader_epoch, v_now, v_expiry, false,
           t.high_watermark
    FROM taken AS t LEFT JOIN told ON true
    UNION ALL
    SELECT e.place, 'extended', e.topic, p_agent_id, p_incarnation, e.epoch, e.acquired_at, e.lease_expires_at, false,
           e.high_watermark
    FROM extended AS e
    UNION ALL
    SELECT a.place, 'held', a.topic, a.leader_agent_id, a.incarnation, a.epoch, a.acquired_at, a.lease_expires_at,
           false, a.high_watermark
    FROM asked AS a WHERE a.verdict = 'held';

    IF cardinality(p_slots) = 0 THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH asked AS (
        SELECT k.place, s.slot,
               sh_judge_lease(v_now, p_ttl_ms, p_agent_id, p_incarnation, p_wal_id,
                              s.leader_agent_id, s.incarnation, s.wal_id, s.lease_expires_at) AS verdict
        FROM unnest(p_slots, p_slot_places) AS k (slot, place) JOIN coordinator_slots AS s ON s.slot = k.slot
    ), changed AS (
        UPDATE coordinator_slots AS s SET
            epoch = s.epoch + CASE a.verdict WHEN 'acquired' THEN 1 ELSE 0 END,
            acquired_at = CASE a.verdict WHEN 'acquired' THEN v_now ELSE s.acquired_at END,
            lease_expires_at = CASE a.verdict WHEN 'acquired' THEN v_expiry ELSE greatest(s.lease_expires_at, v_expiry) END,
            leader_agent_id = p_agent_id, incarnation = p_incarnation, wal_id = p_wal_id
        FROM asked AS a
        WHERE a.verdict <> 'held' AND s.slot = a.slot
        RETURNING a.place, a.verdict, s.epoch, s.acquired_at, s.lease_expires_at
    ), told AS (
        SELECT sh_notify_keys('leases', '{}', '{}') FROM changed AS c WHERE c.verdict = 'acquired' LIMIT 1
    )
    SELECT c.place, c.verdict, NULL::text, p_agent_id, p_incarnation, c.epoch, c.acquired_at, c.lease_expires_at, false,
           -1::bigint
    FROM changed AS c LEFT JOIN told ON true
    UNION ALL
    SELECT a.place, 'held', NULL, s.leader_agent_id, s.incarnation, s.epoch, s.acquired_at, s.lease_expires_at, false, -1
    FROM asked AS a JOIN coordinator_slots AS s ON s.slot = a.slot WHERE a.verdict = 'held';
END $$;

-- Locks the lease rows of partitions and slots, in key order, for a renewal or a release.
CREATE FUNCTION sh_lock_leases(p_topic_ids uuid[], p_partition_ids integer[], p_slots integer[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM coordinator_slots AS s WHERE s.slot = ANY (p_slots) ORDER BY s.slot FOR NO KEY UPDATE;
    PERFORM 1 FROM unnest(p_topic_ids, p_partition_ids) AS k (topic_id, partition_id)
    JOIN partition_leases AS l ON l.topic_id = k.topic_id AND l.partition_id = k.partition_id
    ORDER BY l.topic, l.partition_id FOR NO KEY UPDATE OF l;
END $$;

-- A row of each lease asked for, as it stands afterwards; renewed or not. Never bumps an epoch (S1.13).
CREATE FUNCTION sh_renew_leases(
    p_agent_id text, p_incarnation uuid, p_wal_id uuid, p_ttl_ms bigint,
    p_topic_ids uuid[], p_partition_ids integer[], p_epochs bigint[], p_partition_places integer[],
    p_slots integer[], p_slot_epochs bigint[], p_slot_places integer[]
) RETURNS TABLE (
    place integer, renewed boolean, topic text, agent_id text, incarnation uuid, epoch bigint, acquired_at bigint,
    expires_at bigint, expired boolean, high_watermark bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint;
    v_expiry bigint;
BEGIN
    IF p_ttl_ms IS NULL THEN
        PERFORM sh_check_binding(p_agent_id, p_wal_id, p_ttl_ms);
    END IF;
    PERFORM sh_lock_leases(p_topic_ids, p_partition_ids, p_slots);
    v_now := sh_now_ms();
    v_expiry := sh_lease_expiry(v_now, p_ttl_ms);
    RETURN QUERY
    WITH asked AS (
        SELECT k.place, l.topic, l.partition_id, l.leader_agent_id, l.incarnation, l.epoch, l.acquired_at,
               l.lease_expires_at, p.high_watermark,
               l.leader_agent_id = p_agent_id AND l.incarnation IS NOT DISTINCT FROM p_incarnation
                   AND l.epoch = k.epoch AND p.leader_epoch = k.epoch AND l.lease_expires_at > v_now AS mine
        FROM unnest(p_topic_ids, p_partition_ids, p_epochs, p_partition_places) AS k (topic_id, partition_id, epoch, place)
        JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
        JOIN partition_leases AS l ON l.topic_id = p.topic_id AND l.partition_id = p.partition_id
    ), extended AS (
        UPDATE partition_leases AS l SET lease_expires_at = greatest(l.lease_expires_at, v_expiry)
        FROM asked AS a WHERE a.mine AND l.topic = a.topic AND l.partition_id = a.partition_id
    )
    SELECT a.place, a.mine, a.topic, a.leader_agent_id, a.incarnation, a.epoch, a.acquired_at,
           CASE WHEN a.mine THEN greatest(a.lease_expires_at, v_expiry) ELSE a.lease_expires_at END,
           a.lease_expires_at <= v_now, a.high_watermark
    FROM asked AS a;

    IF cardinality(p_slots) = 0 THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH asked AS (
        SELECT k.place, s.*, s.leader_agent_id = p_agent_id AND s.incarnation IS NOT DISTINCT FROM p_incarnation
                   AND s.epoch = k.epoch AND s.lease_expires_at > v_now AS mine
        FROM unnest(p_slots, p_slot_epochs, p_slot_places) AS k (slot, epoch, place)
        JOIN coordinator_slots AS s ON s.slot = k.slot WHERE s.leader_agent_id IS NOT NULL
    ), extended AS (
        UPDATE coordinator_slots AS s SET lease_expires_at = greatest(s.lease_expires_at, v_expiry)
        FROM asked AS a WHERE a.mine AND s.slot = a.slot
    )
    SELECT a.place, a.mine, NULL::text, a.leader_agent_id, a.incarnation, a.epoch, a.acquired_at,
           CASE WHEN a.mine THEN greatest(a.lease_expires_at, v_expiry) ELSE a.lease_expires_at END,
           a.lease_expires_at <= v_now, -1::bigint
    FROM asked AS a;
END $$;

-- The places of those that were mine at that epoch; they have expired now.
CREATE FUNCTION sh_release_leases(
    p_agent_id text, p_incarnation uuid,
    p_topic_ids uuid[], p_partition_ids integer[], p_epochs bigint[], p_partition_places integer[],
    p_slots integer[], p_slot_epochs bigint[], p_slot_places integer[]
) RETURNS TABLE (place integer) LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint;
BEGIN
    PERFORM sh_lock_leases(p_topic_ids, p_partition_ids, p_slots);
    v_now := sh_now_ms();
    RETURN QUERY
    WITH ended AS (
        UPDATE partition_leases AS l SET lease_expires_at = least(l.lease_expires_at, v_now)
        FROM unnest(p_topic_ids, p_partition_ids, p_epochs, p_partition_places) AS k (topic_id, partition_id, epoch, place)
        WHERE l.topic_id = k.topic_id AND l.partition_id = k.partition_id AND l.epoch = k.epoch
            AND l.leader_agent_id = p_agent_id AND l.incarnation IS NOT DISTINCT FROM p_incarnation
        RETURNING k.place, k.topic_id, k.partition_id
    ), told AS (
        SELECT sh_notify_keys('leases', array_agg(e.topic_id), array_agg(e.partition_id))
        FROM ended AS e HAVING count(*) > 0
    )
    SELECT e.place FROM ended AS e LEFT JOIN told ON true;
    RETURN QUERY
    WITH ended AS (
        UPDATE coordinator_slots AS s SET lease_expires_at = least(s.lease_expires_at, v_now)
        FROM unnest(p_slots, p_slot_epochs, p_slot_places) AS k (slot, epoch, place)
        WHERE s.slot = k.slot AND s.epoch = k.epoch
            AND s.leader_agent_id = p_agent_id AND s.incarnation IS NOT DISTINCT FROM p_incarnation
        RETURNING k.place
    ), told AS (
        SELECT sh_notify_keys('leases', '{}', '{}') FROM ended AS e LIMIT 1
    )
    SELECT e.place FROM ended AS e LEFT JOIN told ON true;
END $$;
