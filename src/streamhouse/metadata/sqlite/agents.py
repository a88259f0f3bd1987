"""Registration of agents, and which incarnations of an agent id are over."""

from __future__ import annotations

import json
from typing import Final
from uuid import UUID

from streamhouse.core.errors import AgentSuperseded
from streamhouse.metadata import checks
from streamhouse.metadata.contract import AgentInfo, RegisteredAgent
from streamhouse.metadata.rows.agents import address_of, read_agent
from streamhouse.metadata.rows.layer import optional_uuid
from streamhouse.metadata.sqlite.dialect import SqliteRowTx, run_now
from streamhouse.metadata.sqlite.transactions import Tx

_REMEMBERED: Final = 8

# The incarnation decides whether this is the same run again, which keeps its start, or another that takes over.
_UPSERT: Final = """
    INSERT INTO agents (agent_id, address, listeners, availability_zone, agent_group, last_heartbeat, started_at,
        metadata, incarnation)
    VALUES (:agent_id, :address, :listeners, :zone, :group, :now, :now, :metadata, :incarnation)
    ON CONFLICT (agent_id) DO UPDATE SET
        address = excluded.address, listeners = excluded.listeners, availability_zone = excluded.availability_zone,
        agent_group = excluded.agent_group, last_heartbeat = excluded.last_heartbeat, metadata = excluded.metadata,
        started_at = CASE WHEN incarnation IS excluded.incarnation THEN started_at ELSE excluded.started_at END,
        incarnation = excluded.incarnation"""


def register_agent(tx: Tx, info: AgentInfo) -> RegisteredAgent:
    checks.check_agent(info)
    refuse_superseded(tx, info.agent_id, info.incarnation)
    before = tx.row("SELECT incarnation FROM agents WHERE agent_id = ?", (info.agent_id,))
    tx.run(
        _UPSERT,
        {
            "agent_id": info.agent_id,
            "address": address_of(info.listeners),
            "listeners": json.dumps(dict(info.listeners)),
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
    return run_now(read_agent(SqliteRowTx(tx), info.agent_id))


def deregister_agent(tx: Tx, agent_id: str, incarnation: UUID) -> bool:
    checks.check_agent_id(agent_id)
    if not tx.run("DELETE FROM agents WHERE agent_id = ? AND incarnation = ?", (agent_id, incarnation.bytes)):
        return False
    _supersede(tx, agent_id, incarnation)
    return True


def refuse_superseded(tx: Tx, agent_id: str, incarnation: UUID) -> None:
    """An incarnation that was replaced or deregistered is refused, even after its successor has gone."""
    if incarnation.hex in _superseded(tx, agent_id):
        raise AgentSuperseded(f"this incarnation of agent {agent_id} was replaced by a newer one, or deregistered")


def _supersede(tx: Tx, agent_id: str, incarnation: UUID) -> None:
    superseded = [*_superseded(tx, agent_id), incarnation.hex][-_REMEMBERED:]
    tx.run("UPDATE node_ids SET superseded = ? WHERE agent_id = ?", (json.dumps(superseded), agent_id))


def _superseded(tx: Tx, agent_id: str) -> list[str]:
    text = tx.value("SELECT superseded FROM node_ids WHERE agent_id = ?", (agent_id,))
    return [] if text is None else list(json.loads(text))
