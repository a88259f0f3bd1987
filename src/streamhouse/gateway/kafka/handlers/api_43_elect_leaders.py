"""ElectLeaders (43), versions 0–2: never needed. The agents' ring names a partition's leader, and there is no other
replica to prefer. Each partition that exists answers ELECTION_NOT_NEEDED (84), as Kafka does for a leader that is the
preferred one.
"""

from __future__ import annotations

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import refusal
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(43, (0, 2))
async def elect_leaders(call: Call, request: Message) -> Fields:
    results: list[Fields] = []
    for asked in request.topic_partitions or []:
        topic = await call.broker.topics.find(asked.topic, caller=call.client.caller)
        count = 0 if topic is None else topic.partition_count
        partitions = [{"partition_id": index, **_outcome(index, count)} for index in asked.partitions]
        results.append({"topic": asked.topic, "partition_result": partitions})
    return {"replica_election_results": results}


def _outcome(index: int, partition_count: int) -> Fields:
    if 0 <= index < partition_count:
        return refusal(ErrorCode.ELECTION_NOT_NEEDED, "the agents' ring chooses the leader")
    return refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
