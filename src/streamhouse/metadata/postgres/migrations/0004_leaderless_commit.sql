-- The leaderless commit and the adoption of a sink intent. See 0003 for the rules both commits keep and for the numbers
-- of the verdicts.

-- Judge the batches of idempotent producers exactly as metadata/dedup.py does, for slices whose code is 0. Returns a
-- verdict for every batch, and for a duplicate its original's offset, or -1 - i when the original is batch i of this
-- same commit (which has no offset yet). Batches without producer id are appended.
CREATE FUNCTION sh_judge_batches(
    p_codes integer[], p_topic_ids uuid[], p_partition_ids integer[],
    p_slices integer[], p_record_counts bigint[], p_producers bigint[], p_producer_epochs bigint[], p_sequences bigint[],
    OUT verdicts integer[], OUT origins bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    b record;
    v_slice integer := 0;
    v_producer bigint := -1;
    v_epoch bigint;
    v_window bigint[];
    v_length integer;
    v_expected bigint;
    v_verdict integer;
BEGIN
    verdicts := array_fill(0, ARRAY[cardinality(p_slices)]);
    origins := array_fill(-1::bigint, ARRAY[cardinality(p_slices)]);
    FOR b IN
        SELECT l.i, l.slice, l.producer_id, l.epoch, l.sequence, l.records,
               coalesce(w.producer_epoch, -1) AS known_epoch, coalesce(w.batches, '{}') AS known
        FROM unnest(p_slices, p_producers, p_producer_epochs, p_sequences, p_record_counts)
            WITH ORDINALITY AS l (slice, producer_id, epoch, sequence, records, i)
        LEFT JOIN producer_windows AS w
            ON w.topic_id = p_topic_ids[l.slice] AND w.partition_id = p_partition_ids[l.slice]
            AND w.producer_id = l.producer_id
        WHERE l.producer_id >= 0 AND p_codes[l.slice] = 0
        ORDER BY l.slice, l.producer_id, l.i
    LOOP
        IF b.slice <> v_slice OR b.producer_id <> v_producer THEN
            v_slice := b.slice;
            v_producer := b.producer_id;
            v_epoch := b.known_epoch;
            v_window := b.known;
        END IF;
        v_length := cardinality(v_window);
        IF b.epoch < v_epoch THEN
            v_verdict := 4;
        ELSIF v_length = 0 THEN
            v_verdict := 0;
        ELSIF b.epoch > v_epoch THEN
            v_verdict := CASE WHEN b.sequence = 0 THEN 0 ELSE 3 END;
        ELSE
            v_verdict := NULL;
            FOR k IN 1 .. v_length BY 3 LOOP
                IF v_window[k] = b.sequence AND v_window[k + 1] = b.records THEN
                    v_verdict := 1;
                    origins[b.i] := v_window[k + 2];
                    EXIT;
                END IF;
            END LOOP;
            IF v_verdict IS NULL THEN
                -- Sequences wrap at 2^31. Half the space behind is the past, half ahead is a gap.
                v_expected := (v_window[v_length - 2] + v_window[v_length - 1]) % 2147483648;
                v_verdict := CASE
                    WHEN b.sequence = v_expected THEN 0
                    WHEN (v_expected - b.sequence + 2147483648) % 2147483648 < 1073741824 THEN 2
                    ELSE 3 END;
            END IF;
        END IF;
        verdicts[b.i] := v_verdict;
        IF v_verdict = 0 THEN
            IF b.epoch <> v_epoch THEN
                v_epoch := b.epoch;
                v_window := '{}';
            END IF;
            v_window := sh_last_batches(v_window || ARRAY[b.sequence, b.records, -1 - b.i]);
        END IF;
    END LOOP;
END $$;

-- Append what was judged to be appended: entries (one per surviving run), references, windows, watermarks. Offsets
-- come in as p_offsets, one per batch. Returns nothing; raises a serialization failure if a row moved under our lock.
CREATE FUNCTION sh_append_batches(
    p_object_key text, p_object_size bigint, p_object_time bigint, p_now bigint,
    p_codes integer[], p_found bigint[], p_maxima bigint[], p_totals bigint[], p_tops bigint[],
    p_topic_ids uuid[], p_partition_ids integer[], p_byte_offsets bigint[],
    p_encodings integer[], p_encoding_names text[],
    p_slices integer[], p_record_counts bigint[], p_byte_lengths bigint[],
    p_min_timestamps bigint[], p_max_timestamps bigint[],
    p_producers bigint[], p_producer_epochs bigint[], p_sequences bigint[],
    p_verdicts integer[], p_offsets bigint[], p_any_producer boolean
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_moving bigint;
    v_moved bigint;
    v_entries bigint;
BEGIN
    SELECT count(*) INTO v_moving FROM unnest(p_codes, p_totals) AS s (code, total) WHERE s.code = 0 AND s.total > 0;
    UPDATE partitions AS p
    SET high_watermark = p.high_watermark + s.total, max_timestamp = greatest(p.max_timestamp, s.top)
    FROM unnest(p_topic_ids, p_partition_ids, p_codes, p_found, p_totals, p_tops)
        AS s (topic_id, partition_id, code, found, total, top)
    WHERE s.code = 0 AND s.total > 0 AND p.topic_id = s.topic_id AND p.partition_id = s.partition_id
        AND p.high_watermark = s.found AND p.log_state = 'OPEN' AND p.write_mode = 'leaderless'
        AND p.gc_horizon_ms <= p_object_time;
    GET DIAGNOSTICS v_moved = ROW_COUNT;
    IF v_moved <> v_moving THEN
        RAISE EXCEPTION '% of % partitions moved under lock', v_moved, v_moving USING ERRCODE = 'serialization_failure';
    END IF;
    IF v_moving = 0 THEN
        RETURN;
    END IF;

    INSERT INTO entries (
        topic_id, partition_id, end_offset, base_offset, kind, object_key, byte_offset, byte_length, record_count,
        encoding, min_timestamp, max_timestamp, running_max_timestamp, epoch, created_at
    )
    SELECT p_topic_ids[r.slice], p_partition_ids[r.slice], min(r.at) + sum(r.records)::bigint - 1, min(r.at), 'WAL',
           p_object_key, p_byte_offsets[r.slice] + min(r.skipped), sum(r.bytes), sum(r.records),
           p_encoding_names[p_encodings[r.slice]], min(r.min_timestamp), max(r.max_timestamp),
           greatest(p_maxima[r.slice], max(max(r.max_timestamp)) OVER (PARTITION BY r.slice ORDER BY r.run)), 0, p_now
    FROM (
        SELECT b.*, p_offsets[b.i] AS at,
               coalesce(sum(b.bytes) OVER (
                   PARTITION BY b.slice ORDER BY b.i ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint
                   AS skipped,
               count(*) FILTER (WHERE p_verdicts[b.i] <> 0) OVER (PARTITION BY b.slice ORDER BY b.i) AS run
        FROM unnest(p_slices, p_record_counts, p_byte_lengths, p_min_timestamps, p_max_timestamps)
            WITH ORDINALITY AS b (slice, records, bytes, min_timestamp, max_timestamp, i)
        WHERE p_codes[b.slice] = 0
    ) AS r
    WHERE p_verdicts[r.i] = 0
    GROUP BY r.slice, r.run;
    GET DIAGNOSTICS v_entries = ROW_COUNT;
    PERFORM sh_reference(ARRAY[p_object_key], ARRAY[p_object_size], ARRAY[p_object_time], ARRAY[v_entries]);
    PERFORM sh_notify_keys('commit', array_agg(k.topic_id), array_agg(k.partition_id))
    FROM unnest(p_topic_ids, p_partition_ids, p_codes, p_totals) AS k (topic_id, partition_id, code, total)
    WHERE k.code = 0 AND k.total > 0;

    IF p_any_producer THEN
        INSERT INTO producer_windows (topic_id, partition_id, producer_id, producer_epoch, batches, updated_at)
        SELECT p_topic_ids[g.slice], p_partition_ids[g.slice], g.producer_id, g.epoch,
               sh_last_batches(CASE WHEN w.producer_epoch = g.epoch THEN w.batches || g.batches ELSE g.batches END),
               p_now
        FROM (
            SELECT a.slice, a.producer_id, a.epoch, array_agg(part.value ORDER BY a.i, part.place) AS batches
            FROM (
                SELECT b.*, max(b.epoch) OVER (PARTITION BY b.slice, b.producer_id) AS newest
                FROM unnest(p_slices, p_producers, p_producer_epochs, p_sequences, p_record_counts, p_offsets, p_verdicts)
                    WITH ORDINALITY AS b (slice, producer_id, epoch, sequence, records, at, verdict, i)
                WHERE b.producer_id >= 0 AND b.verdict = 0 AND p_codes[b.slice] = 0
            ) AS a
            CROSS JOIN LATERAL unnest(ARRAY[a.sequence, a.records, a.at]) WITH ORDINALITY AS part (value, place)
            WHERE a.epoch = a.newest
            GROUP BY a.slice, a.producer_id, a.epoch
        ) AS g
        LEFT JOIN producer_windows AS w
            ON w.topic_id = p_topic_ids[g.slice] AND w.partition_id = p_partition_ids[g.slice]
            AND w.producer_id = g.producer_id
        ON CONFLICT (topic_id, partition_id, producer_id) DO UPDATE
        SET producer_epoch = excluded.producer_epoch, batches = excluded.batches, updated_at = excluded.updated_at;
    END IF;
END $$;

-- Slice n lists batches p_firsts[n] … p_lasts[n]. A slice without producers lists one, the sum of its batches: nobody
-- asks about them singly, and p_listed[n] is false.
CREATE FUNCTION sh_commit_leaderless(
    p_append_id uuid, p_object_key text, p_object_size bigint, p_object_time bigint,
    p_topic_ids uuid[], p_partition_ids integer[], p_byte_offsets bigint[],
    p_encodings integer[], p_encoding_names text[],
    p_listed boolean[], p_firsts integer[], p_lasts integer[],
    p_slices integer[], p_record_counts bigint[], p_byte_lengths bigint[],
    p_min_timestamps bigint[], p_max_timestamps bigint[],
    p_producers bigint[], p_producer_epochs bigint[], p_sequences bigint[]
) RETURNS TABLE (
    verdicts integer[], base_offsets bigint[], end_offsets bigint[], high_watermarks bigint[], leader_epochs bigint[],
    batch_verdicts integer[], batch_offsets bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_any_producer boolean := true = ANY (p_listed);
    v_earlier jsonb;
    v_now bigint;
    v_codes integer[];
    v_found bigint[];
    v_epochs bigint[];
    v_maxima bigint[];
    v_totals bigint[];
    v_tops bigint[];
    v_origins bigint[];
    v_offsets bigint[];
BEGIN
    PERFORM 1 FROM unnest(p_topic_ids, p_partition_ids) AS k (topic_id, partition_id)
    JOIN partitions AS p ON p.topic_id = k.topic_id AND p.partition_id = k.partition_id
    ORDER BY p.topic_id, p.partition_id FOR NO KEY UPDATE OF p;
    SELECT c.outcomes || '{}' INTO v_earlier FROM commits AS c WHERE c.append_id = p_append_id;
    v_now := sh_now_ms();

    SELECT array_agg(j.code ORDER BY j.n), array_agg(j.high_watermark ORDER BY j.n),
           array_agg(j.leader_epoch ORDER BY j.n), array_agg(j.max_timestamp ORDER BY j.n)
    INTO v_codes, v_found, v_epochs, v_maxima
    FROM (
        SELECT s.n, coalesce(p.high_watermark, -1) AS high_watermark, coalesce(p.leader_epoch, -1) AS leader_epoch,
               coalesce(p.max_timestamp, -1) AS max_timestamp,
               CASE WHEN v_earlier ? (s.topic_id || ':' || s.partition_id) THEN 1
                    WHEN p.topic_id IS NULL THEN 2
                    WHEN p.log_state <> 'OPEN' OR p.write_mode <> 'leaderless' THEN 3
                    WHEN p.gc_horizon_ms > p_object_time THEN 4
                    ELSE 0 END AS code
        FROM unnest(p_topic_ids, p_partition_ids) WITH ORDINALITY AS s (topic_id, partition_id, n)
        LEFT JOIN partitions AS p ON p.topic_id = s.topic_id AND p.partition_id = s.partition_id
    ) AS j;

    IF v_any_producer THEN
        SELECT j.verdicts, j.origins INTO batch_verdicts, v_origins FROM sh_judge_batches(
            v_codes, p_topic_ids, p_partition_ids,
            p_slices, p_record_counts, p_producers, p_producer_epochs, p_sequences) AS j;
    ELSE
        batch_verdicts := array_fill(0, ARRAY[cardinality(p_slices)]);
    END IF;

    SELECT array_agg(o.at ORDER BY o.i) INTO v_offsets FROM (
        SELECT b.i, v_found[b.slice] + coalesce(sum(b.records) FILTER (WHERE b.verdict = 0) OVER (
                   PARTITION BY b.slice ORDER BY b.i ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS at
        FROM unnest(p_slices, p_record_counts, batch_verdicts) WITH ORDINALITY AS b (slice, records, verdict, i)
    ) AS o;
    SELECT array_agg(t.total ORDER BY t.slice), array_agg(t.top ORDER BY t.slice) INTO v_totals, v_tops FROM (
        SELECT b.slice, coalesce(sum(b.records) FILTER (WHERE b.verdict = 0), 0)::bigint AS total,
               coalesce(max(b.max_timestamp) FILTER (WHERE b.verdict = 0), -1) AS top
        FROM unnest(p_slices, p_record_counts, p_max_timestamps, batch_verdicts)
            AS b (slice, records, max_timestamp, verdict)
        GROUP BY b.slice
    ) AS t;

    PERFORM sh_append_batches(
        p_object_key, p_object_size, p_object_time, v_now, v_codes, v_found, v_maxima, v_totals, v_tops,
        p_topic_ids, p_partition_ids, p_byte_offsets, p_encodings, p_encoding_names,
        p_slices, p_record_counts, p_byte_lengths, p_min_timestamps, p_max_timestamps,
        p_producers, p_producer_epochs, p_sequences, batch_verdicts, v_offsets, v_any_producer);

    IF v_any_producer THEN
        SELECT array_agg(CASE b.verdict WHEN 0 THEN v_offsets[b.i]
                                        WHEN 1 THEN CASE WHEN b.origin >= 0 THEN b.origin ELSE v_offsets[-1 - b.origin] END
                                        ELSE -1 END ORDER BY b.i)
        INTO batch_offsets FROM unnest(batch_verdicts, v_origins) WITH ORDINALITY AS b (verdict, origin, i);
    END IF;

    INSERT INTO commits AS c (append_id, outcomes, newest_object_at, committed_at)
    SELECT p_append_id,
           jsonb_object_agg(
               s.topic_id || ':' || s.partition_id,
               jsonb_build_array(
                   CASE WHEN s.total > 0 THEN s.found ELSE -1 END,
                   CASE WHEN s.total > 0 THEN s.found + s.total - 1 ELSE -1 END, s.found + s.total, s.epoch)
               || CASE WHEN s.listed
                       THEN jsonb_build_array(batch_verdicts[s.first:s.last], batch_offsets[s.first:s.last])
                       ELSE '[]' END),
           p_object_time, v_now
    FROM unnest(p_topic_ids, p_partition_ids, v_codes, v_found, v_totals, v_epochs, p_listed, p_firsts, p_lasts)
        AS s (topic_id, partition_id, code, found, total, epoch, listed, first, last)
    WHERE s.code = 0 HAVING count(*) > 0
    ON CONFLICT (append_id) DO UPDATE
    SET outcomes = c.outcomes || excluded.outcomes, committed_at = excluded.committed_at;

    IF v_any_producer AND 1 = ANY (v_codes) THEN
        -- What an earlier sending answered, batch by batch.
        SELECT array_agg(CASE v_codes[b.slice] WHEN 1 THEN (b.earlier -> 4 ->> b.place)::integer ELSE b.verdict END
                         ORDER BY b.i),
               array_agg(CASE v_codes[b.slice] WHEN 1 THEN (b.earlier -> 5 ->> b.place)::bigint ELSE b.at END
                         ORDER BY b.i)
        INTO batch_verdicts, batch_offsets
        FROM (
            SELECT l.*, (l.i - p_firsts[l.slice])::integer AS place,
                   v_earlier -> (p_topic_ids[l.slice] || ':' || p_partition_ids[l.slice]) AS earlier
            FROM unnest(p_slices, batch_verdicts, batch_offsets) WITH ORDINALITY AS l (slice, verdict, at, i)
        ) AS b;
    END IF;

    RETURN QUERY
    SELECT v_codes,
           array_agg(CASE WHEN j.code = 1 THEN (j.earlier ->> 0)::bigint
                          WHEN j.code = 0 AND j.total > 0 THEN j.found ELSE -1 END ORDER BY j.n),
           array_agg(CASE WHEN j.code = 1 THEN (j.earlier ->> 1)::bigint
                          WHEN j.code = 0 AND j.total > 0 THEN j.found + j.total - 1 ELSE -1 END ORDER BY j.n),
           array_agg(CASE j.code WHEN 1 THEN (j.earlier ->> 2)::bigint
                                 WHEN 0 THEN j.found + j.total ELSE j.found END ORDER BY j.n),
           array_agg(CASE j.code WHEN 1 THEN (j.earlier ->> 3)::bigint ELSE j.epoch END ORDER BY j.n),
           batch_verdicts, batch_offsets
    FROM (
        SELECT s.*, v_earlier -> (s.topic_id || ':' || s.partition_id) AS earlier
        FROM unnest(p_topic_ids, p_partition_ids, v_codes, v_found, v_totals, v_epochs)
            WITH ORDINALITY AS s (topic_id, partition_id, code, found, total, epoch, n)
    ) AS j;
END $$;
