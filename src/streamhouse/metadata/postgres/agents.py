"""Registration of agents: a function of the database, so that no lock is held over a round trip."""

from __future__ import annotations

import json
from typing import Final
from uuid import UUID

from streamhouse.metadata import checks
from streamhouse.metadata.contract import AgentInfo, RegisteredAgent
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.rows.agents import AgentRows, address_of

_REGISTER: Final = "SELECT * FROM sh_register_agent($1, $2, $3, $4, $5, $6::text::jsonb, $7::text::jsonb)"


class PostgresAgents(AgentRows):
    _database: Database

    async def register_agent(self, info: AgentInfo) -> RegisteredAgent:
        checks.check_agent(info)
        metadata, listeners = dict(info.metadata), dict(info.listeners)
        row = await self._database.fetchrow(
            _REGISTER,
            info.agent_id,
            info.incarnation,
            address_of(info.listeners),
            info.availability_zone,
            info.agent_group,
            json.dumps(metadata),
            json.dumps(listeners),
        )
        assert row is not None
        return RegisteredAgent(
            agent_id=info.agent_id,
            incarnation=info.incarnation,
            node_id=row["node_id"],
            listeners=listeners,
            availability_zone=info.availability_zone,
            agent_group=info.agent_group,
            last_heartbeat_ms=row["last_heartbeat"],
            started_at_ms=row["started_at"],
            metadata=metadata,
        )

    async def deregister_agent(self, agent_id: str, incarnation: UUID) -> bool:
        checks.check_agent_id(agent_id)
        return bool(await self._database.fetchval("SELECT sh_deregister_agent($1, $2)", agent_id, incarnation))
