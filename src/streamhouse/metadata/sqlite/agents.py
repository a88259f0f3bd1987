"""Agents: one row each, and which incarnations of an agent id are over."""

from __future__ import annotations

import json
from typing import Final
from uuid import UUID

from streamhouse.core.errors import AgentNotFound, AgentSuperseded
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Agent, AgentInfo
from streamhouse.metadata.sqlite.rows import optional_uuid
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Row, Tx

_REMEMBERED: Final = 8

_SELECT: Final = """
    SELECT agents.agent_id, incarnation, node_id, address, availability_zone, agent_group, last_heartbeat, started_at,
        metadata
    FROM agents JOIN node_ids ON node_ids.agent_id = agents.agent_id"""

# The incarnation decides whether this is the same run again, which keeps its start, or another that takes over.
_UPSERT: Final = """
    INSERT INTO agents (agent_id, address, availability_zone, agent_group, last_heartbeat, started_at, metadata,
        incarnation)
    VALUES (:agent_id, :address, :zone, :group, :now, :now, :metadata, :incarnation)
    ON CONFLICT (agent_id) DO UPDATE SET
        address = excluded.address, availability_zone = excluded.availability_zone,
        agent_group = excluded.agent_group, last_heartbeat = excluded.last_heartbeat, metadata = excluded.metadata,
        started_at = CASE WHEN incarnation IS excluded.incarnation THEN started_at ELSE excluded.started_at END,
        incarnation = excluded.incarnation"""


def register_agent(tx: Tx, info: AgentInfo) -> Agent:
    refuse_superseded(tx, info.agent_id, info.incarnation)
    before = tx.row("SELECT incarnation FROM agents WHERE agent_id = ?", (info.agent_id,))
    tx.run(
        _UPSERT,
        {
            "agent_id": info.agent_id,
            "address": info.address,
            "zone": info.availability_zone,
            "group": info.agent_group,
            "now": tx.now_ms,
            "metadata": json.dumps(dict(info.metadata)),
            "incarnation": info.incarnation.bytes,
        },
    )
    replaced = optional_uuid(before[0]) if before is not None else None
    if replaced is not None and replaced != info.incarnation:
        _supersede(tx, info.agent_id, replaced)
    (row,) = tx.rows(f"{_SELECT} WHERE agents.agent_id = ?", (info.agent_id,))
    return _agent_of(row)


def heartbeat(tx: Tx, agent_id: str, incarnation: UUID) -> int:
    row = tx.row("SELECT incarnation FROM agents WHERE agent_id = ?", (agent_id,))
    if row is None or row[0] is None:
        raise AgentNotFound(f"agent {agent_id} is not registered", hint="register it again")
    if row[0] != incarnation.bytes:
        raise AgentSuperseded(f"a newer incarnation of agent {agent_id} is registered")
    tx.run("UPDATE agents SET last_heartbeat = ? WHERE agent_id = ?", (tx.now_ms, agent_id))
    return tx.now_ms


def deregister_agent(tx: Tx, agent_id: str, incarnation: UUID) -> bool:
    if not tx.run("DELETE FROM agents WHERE agent_id = ? AND incarnation = ?", (agent_id, incarnation.bytes)):
        return False
    _supersede(tx, agent_id, incarnation)
    return True


def list_agents(tx: Tx, *, alive_within_ms: int | None, agent_group: str | None) -> list[Agent]:
    rows = tx.rows(
        f"{_SELECT} WHERE (:since IS NULL OR last_heartbeat >= :since) AND (:group IS NULL OR agent_group = :group) "
        "ORDER BY agents.agent_id",
        {"since": None if alive_within_ms is None else tx.now_ms - alive_within_ms, "group": agent_group},
    )
    return [_agent_of(row) for row in rows]


def refuse_superseded(tx: Tx, agent_id: str, incarnation: UUID) -> None:
    """An incarnation that was replaced or has signed off never comes back, even after its successor has gone."""
    if incarnation.hex in _superseded(tx, agent_id):
        raise AgentSuperseded(f"this incarnation of agent {agent_id} was replaced by a newer one, or deregistered")


def _supersede(tx: Tx, agent_id: str, incarnation: UUID) -> None:
    superseded = [*_superseded(tx, agent_id), incarnation.hex][-_REMEMBERED:]
    tx.run("UPDATE node_ids SET superseded = ? WHERE agent_id = ?", (json.dumps(superseded), agent_id))


def _superseded(tx: Tx, agent_id: str) -> list[str]:
    text = tx.value("SELECT superseded FROM node_ids WHERE agent_id = ?", (agent_id,))
    return [] if text is None else list(json.loads(text))


def _agent_of(row: Row) -> Agent:
    agent_id, incarnation, node_id, address, zone, group, last_heartbeat, started_at, metadata = row
    return Agent(
        agent_id=agent_id,
        incarnation=optional_uuid(incarnation),
        node_id=node_id,
        address=address,
        availability_zone=zone,
        agent_group=group,
        last_heartbeat_ms=last_heartbeat,
        started_at_ms=started_at,
        metadata=json.loads(metadata),
    )


class AgentCalls(Shell):
    async def register_agent(self, info: AgentInfo) -> Agent:
        checks.check_agent(info)
        return await self._write(register_agent, info)

    async def heartbeat(self, agent_id: str, incarnation: UUID) -> int:
        checks.check_agent_id(agent_id)
        return await self._write(heartbeat, agent_id, incarnation)

    async def deregister_agent(self, agent_id: str, incarnation: UUID) -> bool:
        checks.check_agent_id(agent_id)
        return await self._write(deregister_agent, agent_id, incarnation)

    async def list_agents(self, *, alive_within_ms: int | None = None, agent_group: str | None = None) -> list[Agent]:
        checks.check_duration(alive_within_ms or 0, "an age")
        return await self._read(list_agents, alive_within_ms=alive_within_ms, agent_group=agent_group)
