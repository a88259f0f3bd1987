-- A run that has signed off is over: what it sent before and what arrives late must not take a lease from the next run.
-- Its number is locked first, as in registration; an acquisition under way holds that lock and is waited for.

CREATE FUNCTION sh_deregister_agent(p_agent_id text, p_incarnation uuid) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM node_ids AS n WHERE n.agent_id = p_agent_id FOR UPDATE;
    DELETE FROM agents AS a WHERE a.agent_id = p_agent_id AND a.incarnation = p_incarnation;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE node_ids AS n SET superseded = (n.superseded || p_incarnation)[greatest(1, cardinality(n.superseded) - 6):]
    WHERE n.agent_id = p_agent_id;
    RETURN true;
END $$;
