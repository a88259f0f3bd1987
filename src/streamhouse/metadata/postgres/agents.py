"""Agents: who is there, who is alive."""

from __future__ import annotations

import json
from typing import Final
from uuid import UUID

from streamhouse.core.errors import AgentNotFound, AgentSuperseded
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Agent, AgentInfo, Agents
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.postgres.rows import plain_uuid
from streamhouse.metadata.postgres.session import Row

_REGISTER: Final = "SELECT * FROM sh_register_agent($1, $2, $3, $4, $5, $6::text::jsonb)"
# One statement: the heartbeat if it is mine, and who has the id if it is not.
_HEARTBEAT: Final = """
WITH clock AS MATERIALIZED (SELECT sh_tick() AS now_ms), beaten AS (
    UPDATE agents AS a SET last_heartbeat = greatest(a.last_heartbeat, clock.now_ms)
    FROM clock WHERE a.agent_id = $1 AND a.incarnation = $2
    RETURNING clock.now_ms
)
SELECT (SELECT now_ms FROM beaten) AS now_ms,
       (SELECT a.incarnation FROM agents AS a WHERE a.agent_id = $1) AS registered
"""
_LIST: Final = """
SELECT a.agent_id, a.incarnation, n.node_id, a.address, a.availability_zone, a.agent_group, a.last_heartbeat,
       a.started_at, a.metadata::text AS metadata
FROM agents AS a JOIN node_ids AS n ON n.agent_id = a.agent_id
WHERE ($1::bigint IS NULL OR a.last_heartbeat >= (SELECT sh_now_ms()) - $1)
    AND ($2::text IS NULL OR a.agent_group = $2)
ORDER BY a.agent_id
"""


class PostgresAgents(Agents):
    _database: Database

    async def register_agent(self, info: AgentInfo) -> Agent:
        checks.check_agent(info)
        metadata = dict(info.metadata)
        row = await self._database.fetchrow(
            _REGISTER,
            info.agent_id,
            info.incarnation,
            info.address,
            info.availability_zone,
            info.agent_group,
            json.dumps(metadata),
        )
        assert row is not None
        return Agent(
            agent_id=info.agent_id,
            incarnation=info.incarnation,
            node_id=row["node_id"],
            address=info.address,
            availability_zone=info.availability_zone,
            agent_group=info.agent_group,
            last_heartbeat_ms=row["last_heartbeat"],
            started_at_ms=row["started_at"],
            metadata=metadata,
        )

    async def heartbeat(self, agent_id: str, incarnation: UUID) -> int:
        row = await self._database.fetchrow(_HEARTBEAT, agent_id, incarnation)
        assert row is not None
        if row["now_ms"] is not None:
            return int(row["now_ms"])
        if row["registered"] is not None:
            raise AgentSuperseded(f"a newer incarnation of agent {agent_id} has registered")
        raise AgentNotFound(f"agent {agent_id} is not registered", hint="register it again")

    async def deregister_agent(self, agent_id: str, incarnation: UUID) -> bool:
        return bool(await self._database.fetchval("SELECT sh_deregister_agent($1, $2)", agent_id, incarnation))

    async def list_agents(self, *, alive_within_ms: int | None = None, agent_group: str | None = None) -> list[Agent]:
        if alive_within_ms is not None:
            checks.check_duration(alive_within_ms, "a liveness timeout")
        return [_to_agent(row) for row in await self._database.fetch(_LIST, alive_within_ms, agent_group)]


def _to_agent(row: Row) -> Agent:
    incarnation = row["incarnation"]
    return Agent(
        agent_id=row["agent_id"],
        incarnation=None if incarnation is None else plain_uuid(incarnation),
        node_id=row["node_id"],
        address=row["address"],
        availability_zone=row["availability_zone"],
        agent_group=row["agent_group"],
        last_heartbeat_ms=row["last_heartbeat"],
        started_at_ms=row["started_at"],
        metadata=json.loads(row["metadata"]),
    )
