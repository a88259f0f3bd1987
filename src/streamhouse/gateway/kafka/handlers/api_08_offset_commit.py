"""OffsetCommit (8), versions 2–10: commit the offsets of a group, by topic name; from version 10 on by topic id.

A commit is in the metadata store when it is answered. The retention times of versions 2–4 are ignored, as in Kafka
since 2.1: offsets are kept as long as their group, and a group until it has been empty for a week.
"""

from __future__ import annotations

from typing import Any, Final

from streamhouse.broker.groups.offsets import CommitRequest, OffsetCommit, Outcomes
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.group_topics import NamedTopic, by_id, by_name
from streamhouse.gateway.kafka.wire.message import Message

_EPOCHS_FROM: Final = 9
_IDS_FROM: Final = 10


@cold_api(8, (2, 10))
async def offset_commit(call: Call, request: Message) -> Fields:
    ids = call.version >= _IDS_FROM
    topics: list[tuple[NamedTopic, list[Any]]] = []
    for asked in request.topics:
        named = await by_id(call, asked.topic_id) if ids else await by_name(call, asked.name)
        topics.append((named, asked.partitions))
    commits = [
        OffsetCommit(
            key=PartitionKey(named.topic.topic_id, partition.partition_index),
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
        )
        for named, partitions in topics
        if named.topic is not None
        for partition in partitions
        if partition.partition_index
        >= 0  # the store checks the upper end: this agent may not know yet that the topic has grown
    ]
    outcomes = await _commit(call, request, commits)
    return {
        "topics": [
            {
                **named.fields,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": _code(named, each, outcomes)}
                    for each in partitions
                ],
            }
            for named, partitions in topics
        ]
    }


async def _commit(call: Call, request: Message, commits: list[OffsetCommit]) -> Outcomes | StreamHouseError:
    try:
        return await call.broker.groups.offsets.commit(
            CommitRequest(
                group_id=request.group_id,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id_or_member_epoch,
                offsets=commits,
                knows_epochs=call.version >= _EPOCHS_FROM,
            ),
            caller=call.client.caller,
        )
    except StreamHouseError as error:
        return error


def _code(named: NamedTopic, partition: Message, outcomes: Outcomes | StreamHouseError) -> int:
    if named.topic is None:
        return named.unknown_code
    if isinstance(outcomes, StreamHouseError):
        return outcomes.kafka_code
    key = PartitionKey(named.topic.topic_id, partition.partition_index)
    if key not in outcomes:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    error = outcomes[key]
    return 0 if error is None else error.kafka_code
