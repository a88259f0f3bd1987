"""AlterPartitionReassignments (45), versions 0–1: refused. Agents share the partitions by themselves and move them when
an agent comes or goes; there are no replicas to place. To cancel finds nothing in progress (85).
"""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import refusal
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(45, (0, 1))
async def alter_partition_reassignments(call: Call, request: Message) -> Fields:
    responses: list[Fields] = []
    for asked in request.topics:
        topic = await call.broker.view.find_topic(asked.name)
        count = 0 if topic is None else topic.partition_count
        partitions = [{"partition_index": each.partition_index, **_outcome(each, count)} for each in asked.partitions]
        responses.append({"name": asked.name, "partitions": partitions})
    return {
        "allow_replication_factor_change": request.allow_replication_factor_change,
        "error_message": None,
        "responses": responses,
    }


def _outcome(asked: Message, partition_count: int) -> Fields:
    if not 0 <= asked.partition_index < partition_count:
        return refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
    if asked.replicas is None:
        return refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "partitions are never being reassigned here")
    return refusal(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "partitions cannot be placed by hand: agents share them, and move them when an agent comes or goes",
    )
