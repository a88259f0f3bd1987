"""OffsetForLeaderEpoch 23, versions 2–4: where the records of an epoch end, by which clients find out what was cut off.

Behaviour: the start of the next higher epoch; the log's end for the current one; the log's start for one older than the
history; -1 only for one above the current. A wrong -1 makes a Java client skip records, a wrong 0 read all again. A
partition that this agent is about to lead, or hands over, is waited for, up to five seconds.

Deviations: where the WAL is the durability, epochs of the same WAL continue one log: nothing is ever cut off between
them, so the end of each is the log's end.
"""

from __future__ import annotations

from typing import Any

from streamhouse.broker.reads import NO_EPOCH, NO_OFFSET, EpochEnd
from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(23, (2, 4))
async def offset_for_leader_epoch(call: Call, request: Message) -> Fields:
    asked = [(topic.topic, each) for topic in request.topics for each in topic.partitions]
    found = await call.broker.offsets.epoch_ends(
        [(name, each.partition, each.current_leader_epoch, each.leader_epoch) for name, each in asked],
        caller=call.client.caller,
    )
    answers = iter([_answer(each.partition, end) for (_, each), end in zip(asked, found, strict=True)])
    return {
        "topics": [
            {"topic": topic.topic, "partitions": [next(answers) for _ in topic.partitions]} for topic in request.topics
        ]
    }


def _answer(partition: int, end: EpochEnd | StreamHouseError) -> dict[str, Any]:
    if isinstance(end, StreamHouseError):
        code, epoch, end_offset = end.kafka_code, NO_EPOCH, NO_OFFSET
    else:
        code, epoch, end_offset = int(ErrorCode.NONE), end.epoch, end.end_offset
    return {"error_code": code, "partition": partition, "leader_epoch": epoch, "end_offset": end_offset}
