-- What is adopted is held by its entries alone. A manifest stays until its query's next batch, which most batch writes
-- never have: with references of its own it kept objects from vacuum for ever that retention had let go of.
UPDATE objects
SET refs = refs - held.slices,
    dereferenced_at = CASE WHEN refs = held.slices THEN (SELECT clock_ms FROM store_info) ELSE dereferenced_at END
FROM (
    SELECT object_key, count(*) AS slices FROM sink_slices WHERE adopted_base_offset IS NOT NULL GROUP BY object_key
) AS held
WHERE objects.object_key = held.object_key;
