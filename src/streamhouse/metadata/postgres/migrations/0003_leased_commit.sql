-- The leased commit: one call, one statement, one round trip.
--
-- Each locks its partitions' rows in key order (R10) and only then looks for the append id. Inside a VOLATILE function
-- under READ COMMITTED every statement has a snapshot of its own, so whatever a twin of this very commit wrote while we
-- waited for its locks is visible by then (R5). The UPDATE that moves a watermark checks watermark, epoch, state and
-- horizon itself (R1): the locks give order, not safety.
--
-- Lists come as parallel arrays; slice n is element n of each. Where two lists of unknown length have to meet, it is by
-- subscript or by GROUP BY and never by a join, which would be planned for ten rows and cost the product for thousands.
-- Subscripts into long lists are used on fixed-width types without NULLs only: there they are constant-time.
--
-- Verdicts: 0 committed, 1 committed by an earlier sending, 2 gone, 3 fenced, 4 stale object, 5 not yet, 6 taken.
-- Batch verdicts: 0 appended, 1 duplicate, 2 duplicate too old, 3 out of order, 4 stale producer.

CREATE FUNCTION sh_commit_leased(
    p_append_id uuid,
    p_topic_ids uuid[], p_partition_ids integer[], p_epochs bigint[], p_base_offsets bigint[], p_record_counts bigint[],
    p_kinds text[], p_objects integer[], p_byte_offsets bigint[], p_byte_lengths bigint[], p_encodings text[],
    p_min_timestamps bigint[], p_max_timestamps bigint[],
    -- The objects that p_objects counts from 1.
    p_object_keys text[], p_object_sizes bigint[], p_object_times bigint[],
    -- Producer windows: of which slice, whose, whether they replace the stored one, and which part of p_window_values.
    p_window_slices integer[], p_window_producers bigint[], p_window_epochs bigint[], p_window_anew boolean[],
    p_window_firsts integer[], p_window_lasts integer[], p_window_values bigint[]
) RETURNS TABLE (
    verdicts integer[], base_offsets bigint[], end_offsets bigint[], high_watermarks bigint[], leader_epochs bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_earlier jsonb;
    v_now bigint;
    v_moved boolean[];
    v_refs bigint[];
BEGIN
    PERFORM 1 FROM unnest(p_topic_ids, p_partition_ids) AS k (topic_id, partition_id)
    JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
    ORDER BY p.topic_id, p.partition_id FOR NO KEY UPDATE OF p;

    -- "|| {}" unpacks it once, for the look-ups below.
    SELECT c.outcomes || '{}' INTO v_earlier FROM commits AS c WHERE c.append_id = p_append_id;
    v_now := sh_now_ms();

    WITH moved AS (
        UPDATE partitions AS p
        SET high_watermark = s.base_offset + s.record_count, max_timestamp = greatest(p.max_timestamp, s.max_timestamp)
        FROM unnest(
            p_topic_ids, p_partition_ids, p_epochs, p_base_offsets, p_record_counts, p_kinds, p_objects,
            p_byte_offsets, p_byte_lengths, p_encodings, p_min_timestamps, p_max_timestamps
        ) WITH ORDINALITY AS s (
            topic_id, partition_id, epoch, base_offset, record_count, kind, object,
            byte_offset, byte_length, encoding, min_timestamp, max_timestamp, n
        )
        WHERE p.topic_id = s.topic_id AND p.partition_id = s.partition_id
            AND p.high_watermark = s.base_offset AND p.leader_epoch = s.epoch
            AND p.log_state = 'OPEN' AND p.write_mode = 'leased'
            AND p.gc_horizon_ms <= p_object_times[s.object]
            AND (v_earlier IS NULL OR NOT v_earlier ? (s.topic_id || ':' || s.partition_id))
        RETURNING s.*, p.max_timestamp AS running_max_timestamp
    ), written AS (
        INSERT INTO entries (
            topic_id, partition_id, end_offset, base_offset, kind, object_key, byte_offset, byte_length, record_count,
            encoding, min_timestamp, max_timestamp, running_max_timestamp, epoch, created_at
        )
        SELECT m.topic_id, m.partition_id, m.base_offset + m.record_count - 1, m.base_offset, m.kind,
               p_object_keys[m.object], m.byte_offset, m.byte_length, m.record_count, m.encoding,
               m.min_timestamp, m.max_timestamp, m.running_max_timestamp, m.epoch, v_now
        FROM moved AS m
    ), remembered AS (
        INSERT INTO commits AS c (append_id, outcomes, newest_object_at, committed_at)
        SELECT p_append_id,
               jsonb_object_agg(
                   m.topic_id || ':' || m.partition_id,
                   jsonb_build_array(m.base_offset, m.base_offset + m.record_count - 1,
                                     m.base_offset + m.record_count, m.epoch)),
               (SELECT max(t.at) FROM unnest(p_object_times) AS t (at)), v_now
        FROM moved AS m HAVING count(*) > 0
        ON CONFLICT (append_id) DO UPDATE
        SET outcomes = c.outcomes || excluded.outcomes, committed_at = excluded.committed_at
    ), counted AS (
        SELECT r.object, count(*) - 1 AS refs
        FROM (SELECT m.object FROM moved AS m UNION ALL SELECT generate_series(1, cardinality(p_object_keys))) AS r
        GROUP BY r.object
    ), marked AS (
        SELECT f.n, bool_or(f.moved) AS moved
        FROM (SELECT m.n, true AS moved FROM moved AS m
              UNION ALL SELECT generate_series(1, cardinality(p_topic_ids)), false) AS f
        GROUP BY f.n
    )
    SELECT (SELECT array_agg(m.moved ORDER BY m.n) FROM marked AS m),
           (SELECT array_agg(c.refs ORDER BY c.object) FROM counted AS c)
    INTO v_moved, v_refs;

    IF true = ANY (v_moved) THEN
        PERFORM sh_reference(p_object_keys, p_object_sizes, p_object_times, v_refs);
        PERFORM sh_notify_keys('commit', array_agg(k.topic_id), array_agg(k.partition_id))
        FROM unnest(p_topic_ids, p_partition_ids, v_moved) AS k (topic_id, partition_id, moved) WHERE k.moved;
    END IF;
    IF cardinality(p_window_slices) > 0 THEN
        INSERT INTO producer_windows AS o (topic_id, partition_id, producer_id, producer_epoch, batches, updated_at)
        SELECT p_topic_ids[w.slice], p_partition_ids[w.slice], w.producer_id, w.epoch,
               CASE WHEN known.producer_epoch = w.epoch AND NOT w.anew
                    THEN sh_last_batches(known.batches || p_window_values[w.first:w.last])
                    ELSE p_window_values[w.first:w.last] END,
               v_now
        FROM unnest(p_window_slices, p_window_producers, p_window_epochs, p_window_anew, p_window_firsts, p_window_lasts)
            AS w (slice, producer_id, epoch, anew, first, last)
        LEFT JOIN producer_windows AS known
            ON known.topic_id = p_topic_ids[w.slice] AND known.partition_id = p_partition_ids[w.slice]
            AND known.producer_id = w.producer_id
        WHERE v_moved[w.slice]
        ON CONFLICT (topic_id, partition_id, producer_id) DO UPDATE
        SET producer_epoch = excluded.producer_epoch, batches = excluded.batches, updated_at = excluded.updated_at;
    END IF;

    RETURN QUERY
    SELECT array_agg(j.verdict ORDER BY j.n),
           array_agg(CASE j.verdict WHEN 0 THEN j.base_offset WHEN 1 THEN (j.earlier ->> 0)::bigint ELSE -1 END
                     ORDER BY j.n),
           array_agg(CASE j.verdict WHEN 0 THEN j.base_offset + j.record_count - 1
                                    WHEN 1 THEN (j.earlier ->> 1)::bigint ELSE -1 END ORDER BY j.n),
           array_agg(coalesce((j.earlier ->> 2)::bigint, j.high_watermark, -1) ORDER BY j.n),
           array_agg(coalesce((j.earlier ->> 3)::bigint, j.leader_epoch, -1) ORDER BY j.n)
    FROM (
        SELECT s.n, s.base_offset, s.record_count, p.high_watermark, p.leader_epoch,
               v_earlier -> (s.topic_id || ':' || s.partition_id) AS earlier,
               CASE WHEN v_moved[s.n] THEN 0
                    WHEN v_earlier ? (s.topic_id || ':' || s.partition_id) THEN 1
                    WHEN p.topic_id IS NULL THEN 2
                    WHEN p.leader_epoch <> s.epoch OR p.log_state <> 'OPEN' OR p.write_mode <> 'leased' THEN 3
                    WHEN p.gc_horizon_ms > p_object_times[s.object] THEN 4
                    WHEN p.high_watermark < s.base_offset THEN 5
                    ELSE 6 END AS verdict
        FROM unnest(p_topic_ids, p_partition_ids, p_epochs, p_base_offsets, p_record_counts, p_objects)
            WITH ORDINALITY AS s (topic_id, partition_id, epoch, base_offset, record_count, object, n)
        LEFT JOIN partitions AS p ON p.topic_id = s.topic_id AND p.partition_id = s.partition_id
    ) AS j;
END $$;
