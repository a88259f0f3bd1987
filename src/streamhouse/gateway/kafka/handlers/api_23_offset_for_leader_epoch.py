"""OffsetForLeaderEpoch 23, versions 2–4: where the records of an epoch end, by which clients find out what was cut off.

Behaviour: the start of the next higher epoch; the log's end for the current one; the log's start for one older than the
history; -1 only for one above the current. A wrong -1 makes a Java client skip records, a wrong 0 read all again. A
partition that this agent is about to lead, or hands over, is waited for, up to five seconds.

Deviations: where the WAL is the durability, epochs of the same WAL continue one log: nothing is ever cut off between
them, so the end of each is the log's end.
"""

from __future__ import annotations

from typing import Any

from streamhouse.broker.leading import LeaderWait
from streamhouse.broker.reads import NO_EPOCH, NO_OFFSET, EpochEnd
from streamhouse.broker.writes import partition_key
from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(23, (2, 4))
async def offset_for_leader_epoch(call: Call, request: Message) -> Fields:
    wait = LeaderWait(call.broker.writes)
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [await _end_of(call, wait, topic.topic, each) for each in topic.partitions],
            }
            for topic in request.topics
        ]
    }


async def _end_of(call: Call, wait: LeaderWait, name: str, asked: Message) -> dict[str, Any]:
    code, epoch, end_offset = int(ErrorCode.NONE), NO_EPOCH, NO_OFFSET
    try:
        topic = await call.broker.view.find_topic(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            key = partition_key(topic.topic_id, asked.partition)

            async def look_up() -> EpochEnd:
                call.broker.reads.leader_epoch(key, asked.current_leader_epoch)
                return await call.broker.reads.epoch_end(key, asked.leader_epoch)

            end = await wait.ask(key, look_up)
            epoch, end_offset = end.epoch, end.end_offset
    except StreamHouseError as error:
        code = error.kafka_code
    return {"error_code": code, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end_offset}
