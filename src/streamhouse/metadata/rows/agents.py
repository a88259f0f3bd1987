"""Agents: one row for each agent id. Registration is each store's own: it depends on how the store locks.

A row has two columns about where clients connect. ``listeners`` maps protocols to addresses. ``address`` is older: it
is the Kafka listener. Agents of the version before, and operators, write only ``address``. So ``listeners`` counts only
while its Kafka listener equals ``address``; otherwise an older agent has registered since, and the row says "kafka:
that address" and nothing else. New agents write both columns, so that older ones still find them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from streamhouse.core.errors import AgentNotFound, AgentSuperseded
from streamhouse.metadata import checks
from streamhouse.metadata.contract import KAFKA_LISTENER, Agents, RegisteredAgent
from streamhouse.metadata.rows.layer import Row, RowStore, RowTx, optional_uuid

_NOT_LISTENING: Final = "not-listening:0"  # what an agent without a Kafka listener has always written
_SELECT: Final = """
SELECT a.agent_id, a.incarnation, n.node_id, a.address, a.listeners::text AS listeners, a.availability_zone,
       a.agent_group, a.last_heartbeat, a.started_at, a.metadata::text AS metadata
FROM agents AS a JOIN node_ids AS n ON n.agent_id = a.agent_id
"""
_LIST: Final = f"""
{_SELECT}
WHERE ($1::bigint IS NULL OR a.last_heartbeat >= (SELECT sh_now_ms()) - $1)
    AND ($2::text IS NULL OR a.agent_group = $2)
ORDER BY a.agent_id
"""
_HEARTBEAT: Final = """
UPDATE agents SET last_heartbeat = greatest(last_heartbeat, sh_tick()) WHERE agent_id = $1 AND incarnation = $2
RETURNING last_heartbeat
"""
# Registration holds the agent's number first of all. One that is under way is passed by, and one that begins now waits.
_EXPIRE: Final = """
WITH silent AS MATERIALIZED (
    SELECT a.agent_id FROM agents AS a JOIN node_ids AS n ON n.agent_id = a.agent_id
    WHERE a.last_heartbeat < (SELECT sh_now_ms()) - $1::bigint
        AND NOT EXISTS (SELECT 1 FROM partition_leases AS l
                        WHERE l.leader_agent_id = a.agent_id AND l.lease_expires_at > (SELECT sh_now_ms()))
        AND NOT EXISTS (SELECT 1 FROM coordinator_slots AS s
                        WHERE s.leader_agent_id = a.agent_id AND s.lease_expires_at > (SELECT sh_now_ms()))
    ORDER BY a.agent_id LIMIT $2 FOR UPDATE OF n SKIP LOCKED
)
DELETE FROM agents
WHERE agent_id IN (SELECT agent_id FROM silent) AND last_heartbeat < (SELECT sh_now_ms()) - $1::bigint
RETURNING agent_id
"""


class AgentRows(RowStore, Agents):
    async def heartbeat(self, agent_id: str, incarnation: UUID) -> int:
        checks.check_agent_id(agent_id)
        now_ms = await self._statement(lambda tx: tx.fetchval(_HEARTBEAT, agent_id, incarnation))
        if now_ms is not None:
            return int(now_ms)
        row = await self._fetchrow("SELECT incarnation FROM agents WHERE agent_id = $1", agent_id)
        # This very incarnation: it has registered since. It loses nothing by doing so once more.
        if row is not None and optional_uuid(row["incarnation"]) not in (None, incarnation):
            raise AgentSuperseded(f"a newer incarnation of agent {agent_id} is registered")
        raise AgentNotFound(f"agent {agent_id} is not registered", hint="register it again")

    async def list_agents(
        self, *, alive_within_ms: int | None = None, agent_group: str | None = None
    ) -> list[RegisteredAgent]:
        checks.check_duration(alive_within_ms or 0, "a liveness timeout")
        return [_to_agent(row) for row in await self._fetch(_LIST, alive_within_ms, agent_group)]

    async def expire_agents(self, *, silent_ms: int, limit: int) -> list[str]:
        checks.check_duration(silent_ms, "a silence")
        checks.check_sweep_limit(limit)
        rows = await self._statement(lambda tx: tx.fetch(_EXPIRE, silent_ms, limit))
        return sorted(row["agent_id"] for row in rows)


async def read_agent(tx: RowTx, agent_id: str) -> RegisteredAgent:
    """An agent that was registered in this very transaction."""
    row = await tx.fetchrow(f"{_SELECT} WHERE a.agent_id = $1", agent_id)
    assert row is not None
    return _to_agent(row)


def address_of(listeners: Mapping[str, str]) -> str:
    """The column ``address``, for agents of the version before."""
    return listeners.get(KAFKA_LISTENER, _NOT_LISTENING)


def _listeners(address: str, stored: str | None) -> Mapping[str, str]:
    listeners: dict[str, str] = {} if stored is None else json.loads(stored)
    if address_of(listeners) == address:
        return listeners
    return {KAFKA_LISTENER: address}


def _to_agent(row: Row) -> RegisteredAgent:
    return RegisteredAgent(
        agent_id=row["agent_id"],
        incarnation=optional_uuid(row["incarnation"]),
        node_id=row["node_id"],
        listeners=_listeners(row["address"], row["listeners"]),
        availability_zone=row["availability_zone"],
        agent_group=row["agent_group"],
        last_heartbeat_ms=row["last_heartbeat"],
        started_at_ms=row["started_at"],
        metadata=json.loads(row["metadata"]),
    )
