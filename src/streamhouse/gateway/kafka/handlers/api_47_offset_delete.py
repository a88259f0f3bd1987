"""OffsetDelete (47), version 0: delete committed offsets of a group. 86: a member still reads the topic."""

from __future__ import annotations

from streamhouse.broker.groups.offsets import Outcomes
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.group_topics import NamedTopic, by_name
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(47, (0, 0))
async def offset_delete(call: Call, request: Message) -> Fields:
    named = [(await by_name(call, topic.name), topic.partitions) for topic in request.topics]
    keys = {
        PartitionKey(topic.topic.topic_id, partition.partition_index): topic.name
        for topic, partitions in named
        if topic.topic is not None
        for partition in partitions
        if 0 <= partition.partition_index < topic.topic.partition_count
    }
    try:
        outcomes = await call.broker.groups.offsets.delete(request.group_id, keys, caller=call.client.caller)
    except StreamHouseError as error:
        return {"error_code": error.kafka_code, "topics": []}
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": partition.partition_index,
                    "error_code": _code(topic, partition.partition_index, outcomes),
                }
                for partition in partitions
            ],
        }
        for topic, partitions in named
    ]
    return {"error_code": 0, "topics": topics}


def _code(topic: NamedTopic, index: int, outcomes: Outcomes) -> int:
    key = None if topic.topic is None else PartitionKey(topic.topic.topic_id, index)
    if key is None or key not in outcomes:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    error = outcomes[key]
    return 0 if error is None else error.kafka_code
