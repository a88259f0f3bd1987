-- Where clients reach an agent, by protocol: {"kafka": "host:9092", "http": "host:8080"}. Agents of the version before
-- know only agents.address, which stays: it is the Kafka listener. They register with the function of six arguments,
-- which does not touch the new column; rows/agents.py says how a reader tells that such a row's listeners are old.
ALTER TABLE agents ADD COLUMN listeners jsonb;

CREATE FUNCTION sh_register_agent(
    p_agent_id text, p_incarnation uuid, p_address text, p_zone text, p_group text, p_metadata jsonb, p_listeners jsonb
) RETURNS TABLE (node_id integer, last_heartbeat bigint, started_at bigint) LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    SELECT r.node_id, r.last_heartbeat, r.started_at
    FROM sh_register_agent(p_agent_id, p_incarnation, p_address, p_zone, p_group, p_metadata) AS r;
    UPDATE agents AS a SET listeners = p_listeners WHERE a.agent_id = p_agent_id;
END $$;
