"""DeleteRecords 21, versions 0–2: raise the log start of partitions led here.

Behaviour: offset -1 means the high watermark. An offset beyond it gets OFFSET_OUT_OF_RANGE (1). An offset below the log
start changes nothing, and the answer is the log start. A topic that is only compacted gets POLICY_VIOLATION (44). No
objects are deleted yet. A partition that this agent is about to lead, or hands over, is waited for: up to five seconds,
or the request's time-out.

Deviations: none known. There are no followers to wait for.
"""

from __future__ import annotations

from typing import Any

from streamhouse.broker.leading import LeaderWait
from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(21, (0, 2))
async def delete_records(call: Call, request: Message) -> Fields:
    wait = call.broker.leading.begin(caller=call.client.caller, timeout_ms=request.timeout)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [await _delete(call, wait, topic.name, each) for each in topic.partitions],
            }
            for topic in request.topics
        ]
    }


async def _delete(call: Call, wait: LeaderWait, name: str, asked: Message) -> dict[str, Any]:
    code, low_watermark = int(ErrorCode.NONE), -1
    try:
        low_watermark = await wait.ask(
            name,
            asked.partition_index,
            lambda key: call.broker.writes.delete_before(key, asked.offset, caller=wait.caller),
        )
    except StreamHouseError as error:
        code = error.kafka_code
    return {"partition_index": asked.partition_index, "low_watermark": low_watermark, "error_code": code}
