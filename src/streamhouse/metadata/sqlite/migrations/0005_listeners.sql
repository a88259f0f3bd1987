-- Where clients reach an agent, by protocol: {"kafka": "host:9092", "http": "host:8080"}. agents.address stays: it is
-- the Kafka listener, and all that the version before knows.
ALTER TABLE agents ADD COLUMN listeners TEXT;
