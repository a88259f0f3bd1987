"""AlterPartitionReassignments (45), versions 0–1: accepted for a partition that is where the request wants it.

A partition has one leader and no other replica. Agents share the partitions by themselves and move them when an agent
comes or goes. So a reassignment to the leader alone answers 0, because nothing has to be done. Any other is 39. To
cancel finds nothing in progress (85).
"""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.refusals import FINE, attempt
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(45, (0, 1))
async def alter_partition_reassignments(call: Call, request: Message) -> Fields:
    responses: list[Fields] = []
    for topic in request.topics:
        partitions = [
            {"partition_index": each.partition_index, **await _outcome(call, topic.name, each)}
            for each in topic.partitions
        ]
        responses.append({"name": topic.name, "partitions": partitions})
    return {
        "allow_replication_factor_change": request.allow_replication_factor_change,
        "error_message": None,
        "responses": responses,
    }


async def _outcome(call: Call, name: str, asked: Message) -> Fields:
    topics, index, caller = call.broker.topics, asked.partition_index, call.client.caller
    if asked.replicas is None:
        check = topics.check_cancellation(name, index, caller=caller)
    else:
        check = topics.check_reassignment(name, index, asked.replicas, caller=caller)
    return await attempt(f"reassigning {name}/{index}", check) or FINE
