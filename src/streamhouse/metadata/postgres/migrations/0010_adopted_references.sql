-- What is adopted is held by its entries alone. A manifest stays until its query's next batch, which most batch writes
-- never have: with references of its own it kept objects from vacuum for ever that retention had let go of.
SELECT sh_dereference(adopted.keys)
FROM (SELECT array_agg(object_key) AS keys FROM sink_slices WHERE adopted_base_offset IS NOT NULL) AS adopted
WHERE adopted.keys IS NOT NULL;

-- As in 0005, but for the references.
CREATE OR REPLACE FUNCTION sh_adopt_intent(
    p_query_id text, p_topic_id uuid, p_batch_id bigint, p_partition_id integer, p_epoch bigint, p_base_offset bigint
) RETURNS TABLE (
    verdict integer, base_offset bigint, end_offset bigint, high_watermark bigint, leader_epoch bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_partition partitions;
    v_share record;
    v_now bigint;
BEGIN
    SELECT p.* INTO v_partition FROM partitions AS p
    WHERE p.topic_id = p_topic_id AND p.partition_id = p_partition_id FOR NO KEY UPDATE;
    PERFORM 1 FROM sink_queries AS q WHERE q.query_id = p_query_id AND q.topic_id = p_topic_id FOR UPDATE;
    v_now := sh_now_ms();

    SELECT count(*) AS slices, sum(s.record_count)::bigint AS records, max(s.max_timestamp) AS top,
           min(s.adopted_base_offset) AS adopted_base_offset, max(s.adopted_end_offset) AS adopted_end_offset
    INTO v_share FROM sink_slices AS s
    WHERE s.query_id = p_query_id AND s.topic_id = p_topic_id AND s.batch_id = p_batch_id
        AND s.partition_id = p_partition_id;
    IF v_share.slices = 0 THEN
        RETURN;
    END IF;
    base_offset := -1;
    end_offset := -1;
    high_watermark := coalesce(v_partition.high_watermark, -1);
    leader_epoch := coalesce(v_partition.leader_epoch, -1);
    verdict := CASE
        WHEN v_share.adopted_base_offset IS NOT NULL THEN 1
        WHEN v_partition.topic_id IS NULL THEN 2
        WHEN v_partition.log_state <> 'OPEN' OR v_partition.leader_epoch <> p_epoch THEN 3
        -- Before the first lease nobody leads, not even epoch 0; without leaders nobody knows the watermark beforehand.
        WHEN v_partition.write_mode = 'leased' AND (p_epoch < 1 OR p_base_offset IS NULL) THEN 3
        WHEN v_partition.write_mode <> 'leased' AND p_base_offset IS NOT NULL THEN 3
        WHEN v_partition.high_watermark < p_base_offset THEN 5
        WHEN v_partition.high_watermark > p_base_offset THEN 6
        ELSE 0 END;
    IF verdict = 1 THEN
        base_offset := v_share.adopted_base_offset;
        end_offset := v_share.adopted_end_offset;
        high_watermark := v_share.adopted_end_offset + 1;
    END IF;
    IF verdict <> 0 THEN
        RETURN NEXT;
        RETURN;
    END IF;

    UPDATE partitions AS p
    SET high_watermark = p.high_watermark + v_share.records, max_timestamp = greatest(p.max_timestamp, v_share.top)
    WHERE p.topic_id = p_topic_id AND p.partition_id = p_partition_id AND p.log_state = 'OPEN'
        AND p.high_watermark = v_partition.high_watermark AND p.leader_epoch = p_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the partition moved under lock' USING ERRCODE = 'serialization_failure';
    END IF;
    UPDATE sink_slices AS s
    SET adopted_base_offset = placed.base_offset, adopted_end_offset = placed.base_offset + s.record_count - 1
    FROM (
        SELECT l.seq, v_partition.high_watermark + (sum(l.record_count) OVER (ORDER BY l.seq) - l.record_count)::bigint
                   AS base_offset
        FROM sink_slices AS l
        WHERE l.query_id = p_query_id AND l.topic_id = p_topic_id AND l.batch_id = p_batch_id
            AND l.partition_id = p_partition_id
    ) AS placed
    WHERE s.query_id = p_query_id AND s.topic_id = p_topic_id AND s.batch_id = p_batch_id AND s.seq = placed.seq;
    INSERT INTO entries (
        topic_id, partition_id, end_offset, base_offset, kind, object_key, byte_offset, byte_length, record_count,
        encoding, min_timestamp, max_timestamp, running_max_timestamp, epoch, created_at
    )
    SELECT s.topic_id, s.partition_id, s.adopted_end_offset, s.adopted_base_offset, 'WAL', s.object_key, s.byte_offset,
           s.byte_length, s.record_count, s.encoding, s.min_timestamp, s.max_timestamp,
           greatest(v_partition.max_timestamp, max(s.max_timestamp) OVER (ORDER BY s.seq)), p_epoch, v_now
    FROM sink_slices AS s
    WHERE s.query_id = p_query_id AND s.topic_id = p_topic_id AND s.batch_id = p_batch_id
        AND s.partition_id = p_partition_id;
    -- The manifest's references are the entries' from here on: none is added, and none goes with the manifest.
    UPDATE sink_queries AS q
    SET complete = NOT EXISTS (
        SELECT 1 FROM sink_slices AS s
        WHERE s.query_id = p_query_id AND s.topic_id = p_topic_id AND s.batch_id = p_batch_id
            AND s.adopted_base_offset IS NULL)
    WHERE q.query_id = p_query_id AND q.topic_id = p_topic_id AND q.last_batch_id = p_batch_id;
    PERFORM sh_notify_keys('commit', ARRAY[p_topic_id], ARRAY[p_partition_id]);

    base_offset := v_partition.high_watermark;
    end_offset := v_partition.high_watermark + v_share.records - 1;
    high_watermark := v_partition.high_watermark + v_share.records;
    RETURN NEXT;
END $$;
