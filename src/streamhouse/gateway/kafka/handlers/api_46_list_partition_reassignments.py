"""ListPartitionReassignments (46), version 0: always empty. Leaderships move between agents, replicas do not exist."""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(46, (0, 0))
async def list_partition_reassignments(call: Call, request: Message) -> Fields:
    return {"error_message": None, "topics": []}
