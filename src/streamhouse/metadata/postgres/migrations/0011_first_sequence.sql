-- An unknown producer must start at sequence 0, and "duplicate too old" is said only of what is known to be written (R21).
-- Batch verdict 5 is new: the producer is unknown and its sequence is not 0. The rules are in metadata/dedup.py.

CREATE OR REPLACE FUNCTION sh_judge_batches(
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
            v_verdict := CASE WHEN b.sequence = 0 THEN 0 ELSE 5 END;
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
                -- Sequences wrap at 2^31. dedup.py says what lies before the window.
                v_expected := (v_window[v_length - 2] + v_window[v_length - 1]) % 2147483648;
                v_verdict := CASE
                    WHEN b.sequence = v_expected THEN 0
                    WHEN v_window[1] - b.sequence >= b.records AND v_window[1] - b.sequence < 1073741824 THEN 2
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
