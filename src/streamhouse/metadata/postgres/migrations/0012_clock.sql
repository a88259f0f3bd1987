-- A clock that never goes back (R20, R23). PostgreSQL's own does: NTP sets it back, or a standby on another machine takes
-- over. Then every lease, pin and heartbeat that is stored would live as much longer as the clock went back.
--
-- One row keeps a reading of our clock (now_ms) and what the server's clock showed at that moment (clock_ms).
--
--   sh_clock_ms()  the server's clock, as it is
--   sh_now_ms()    our clock: the server's clock; while that is behind, the stored reading plus the time since then
--   sh_tick()      the same, and stores the reading when the stored one is older than 500 ms, or when the server's
--                  clock has gone back behind it
--   sh_tick_now()  the same, and stores the reading always, waiting for the row if it must
--
-- No commit waits for that row. Commits only read it. sh_tick() takes its lock with SKIP LOCKED: the session that holds
-- it is storing a reading at this moment. The calls that give out a deadline tick: heartbeats, renewed and acquired
-- leases, and every call for the time. So a step back takes away at most what has passed since the last of these, and
-- until the next one the clock stands still. Pins and the GC horizon order things by their time, so they store it
-- exactly: what is dereferenced after a pin is never stamped before it (R7), and the horizon is never ahead of the clock
-- (R6: else every object would be stale, and all writes would stop for the length of the step).
--
-- Behind, our clock runs at 15/16 of full speed. Leases end on time (7% late), and the server's clock catches up (in 80
-- minutes after a step of five). No more than ten seconds count between two ticks: a server's clock that is put right
-- again, forward, must not add the same minutes a second time. Nothing ticks only while no agent runs.
CREATE TABLE store_clock (
    id       integer PRIMARY KEY CHECK (id = 1),
    now_ms   bigint NOT NULL,
    clock_ms bigint NOT NULL
) WITH (fillfactor = 10);

CREATE FUNCTION sh_clock_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint
$$;

-- A store whose clock went back before this migration: what it promised last counts.
INSERT INTO store_clock (id, now_ms, clock_ms)
SELECT 1, greatest(sh_clock_ms(), coalesce((SELECT s.gc_horizon_ms FROM store_info AS s), 0)), sh_clock_ms();

CREATE FUNCTION sh_clock_reading(p_clock_ms bigint, p_stored_ms bigint, p_stored_clock_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(p_clock_ms,
                    p_stored_ms + least(greatest(p_clock_ms - p_stored_clock_ms, 0), 10000) * 15 / 16)
$$;

CREATE OR REPLACE FUNCTION sh_now_ms() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_clock bigint := sh_clock_ms();
BEGIN
    RETURN coalesce(
        (SELECT sh_clock_reading(v_clock, s.now_ms, s.clock_ms) FROM store_clock AS s WHERE s.id = 1), v_clock);
END $$;

CREATE FUNCTION sh_tick() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_clock bigint := sh_clock_ms();
    v_stored store_clock;
BEGIN
    SELECT * INTO v_stored FROM store_clock AS s WHERE s.id = 1;
    IF v_clock < v_stored.clock_ms
        OR sh_clock_reading(v_clock, v_stored.now_ms, v_stored.clock_ms) >= v_stored.now_ms + 500
    THEN
        SELECT * INTO v_stored FROM store_clock AS s WHERE s.id = 1 FOR NO KEY UPDATE SKIP LOCKED;
        IF FOUND THEN
            v_clock := sh_clock_ms();
            UPDATE store_clock AS s
            SET now_ms = sh_clock_reading(v_clock, s.now_ms, s.clock_ms), clock_ms = v_clock WHERE s.id = 1;
        END IF;
    END IF;
    RETURN sh_now_ms();
END $$;

CREATE FUNCTION sh_tick_now() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_clock bigint;
BEGIN
    PERFORM 1 FROM store_clock AS s WHERE s.id = 1 FOR NO KEY UPDATE;
    v_clock := sh_clock_ms();
    UPDATE store_clock AS s
    SET now_ms = sh_clock_reading(v_clock, s.now_ms, s.clock_ms), clock_ms = v_clock WHERE s.id = 1;
    RETURN (SELECT s.now_ms FROM store_clock AS s WHERE s.id = 1);
END $$;

-- As in 0002, but the pin's time is stored.
CREATE OR REPLACE FUNCTION sh_create_pin(p_pin_id uuid, p_owner text, p_ttl_ms bigint)
RETURNS TABLE (created_at bigint, expires_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_now bigint;
BEGIN
    -- Waits for every sh_dereference under way, so that what they drop is gone before this pin's reader looks.
    PERFORM pg_advisory_xact_lock(21320, 2);
    v_now := sh_tick_now();
    DELETE FROM read_pins AS p WHERE p.expires_at <= v_now;
    RETURN QUERY
    INSERT INTO read_pins AS p (pin_id, owner, created_at, expires_at)
    VALUES (p_pin_id, p_owner, v_now, v_now + p_ttl_ms)
    ON CONFLICT (pin_id) DO UPDATE SET expires_at = greatest(p.expires_at, excluded.expires_at)
    RETURNING p.created_at, p.expires_at;
END $$;
