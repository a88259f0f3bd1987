"""OffsetFetch (9), versions 1–10: the committed offsets of groups; many groups from version 8 on, topic ids from 10 on.

-1 means that the group has committed nothing. If an agent cannot know that, the answer is 14. Every agent answers a
fetch that names no member: offsets are read from the metadata store. Only the coordinator answers a fetch that names a
member of the consumer protocol; other agents answer 16. ``require_stable`` has no effect until there are transactions.
A group that is named twice is answered once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.broker.groups.offsets import CommittedOffset
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.group_topics import NamedTopic, by_id, by_name
from streamhouse.gateway.kafka.wire.message import Message

_TOP_LEVEL_FROM: Final = 2
_MANY_FROM: Final = 8
_IDS_FROM: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedGroup:
    group_id: str
    member_id: str | None
    member_epoch: int
    topics: Sequence[Message] | None


@cold_api(9, (1, 10))
async def offset_fetch(call: Call, request: Message) -> Fields:
    if call.version < _MANY_FROM:
        asked = _AskedGroup(group_id=request.group_id, member_id=None, member_epoch=-1, topics=request.topics)
        return await _group(call, asked)
    return {
        "groups": [
            {
                "group_id": group.group_id,
                **await _group(
                    call,
                    _AskedGroup(
                        group_id=group.group_id,
                        member_id=group.member_id,
                        member_epoch=group.member_epoch,
                        topics=group.topics,
                    ),
                ),
            }
            for group in {(group.group_id, group.topics is None): group for group in request.groups}.values()
        ]
    }


async def _group(call: Call, asked: _AskedGroup) -> Fields:
    named = None if asked.topics is None else [await _named(call, topic) for topic in asked.topics]
    try:
        offsets = await call.broker.groups.offsets.fetch(
            asked.group_id,
            keys=None if named is None else _keys(named),
            member_id=asked.member_id,
            member_epoch=asked.member_epoch,
            caller=call.client.caller,
        )
    except StreamHouseError as error:
        return _failed(call, named or [], error.kafka_code)
    if named is None:
        named = await _all_topics(call, offsets)
    topics = [
        {**topic.fields, "partitions": [_partition(topic, index, offsets) for index in indexes]}
        for topic, indexes in named
    ]
    return {"error_code": 0, "topics": topics}


async def _named(call: Call, topic: Message) -> tuple[NamedTopic, list[int]]:
    ids = call.version >= _IDS_FROM
    named = await by_id(call, topic.topic_id) if ids else await by_name(call, topic.name)
    return named, topic.partition_indexes


def _keys(named: Sequence[tuple[NamedTopic, list[int]]]) -> list[PartitionKey]:
    """Includes partitions that this agent does not know yet: a topic that has grown may have offsets there."""
    return [
        PartitionKey(topic.topic.topic_id, index)
        for topic, indexes in named
        if topic.topic is not None
        for index in indexes
        if index >= 0
    ]


async def _all_topics(
    call: Call, offsets: Mapping[PartitionKey, CommittedOffset]
) -> list[tuple[NamedTopic, list[int]]]:
    by_topic: dict[TopicId, list[int]] = {}
    for key in offsets:
        by_topic.setdefault(key.topic_id, []).append(key.partition)
    found: list[tuple[NamedTopic, list[int]]] = []
    for topic_id, indexes in by_topic.items():
        topic = await call.broker.topics.find(topic_id, caller=call.client.caller)
        if topic is not None:  # else it was deleted a moment ago
            named = NamedTopic(name=topic.name, topic_id=topic_id, topic=topic, by_id=call.version >= _IDS_FROM)
            found.append((named, indexes))
    return found


def _partition(topic: NamedTopic, index: int, offsets: Mapping[PartitionKey, CommittedOffset]) -> Fields:
    if topic.topic is None:
        # By name an unknown topic has no offsets, as in Kafka; by id it is an error.
        return {**_no_offset(index), "error_code": topic.unknown_code if topic.by_id else 0}
    committed = offsets.get(PartitionKey(topic.topic.topic_id, index))
    if committed is None:
        return _no_offset(index)
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": 0,
    }


def _no_offset(index: int) -> Fields:
    return {
        "partition_index": index,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": 0,
    }


def _failed(call: Call, named: Sequence[tuple[NamedTopic, list[int]]], code: int) -> Fields:
    """Before version 2 the error stands beside each partition."""
    if call.version >= _TOP_LEVEL_FROM:
        return {"error_code": code, "topics": []}
    return {
        "topics": [
            {**topic.fields, "partitions": [{**_no_offset(index), "error_code": code} for index in indexes]}
            for topic, indexes in named
        ]
    }
