"""DescribeProducers 61, version 0: the idempotent producers that a partition's leader remembers.

Behaviour: a partition that this agent is about to lead, or hands over, is waited for, up to five seconds.

Deviations: the last timestamp is when the producer's state was last committed, -1 before its first commit. There are no
transactions yet: their fields are -1.
"""

from __future__ import annotations

from typing import Any

from streamhouse.broker.leading import LeaderWait
from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(61, (0, 0))
async def describe_producers(call: Call, request: Message) -> Fields:
    wait = call.broker.leading.begin(caller=call.client.caller)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [await _describe(call, wait, topic.name, index) for index in topic.partition_indexes],
            }
            for topic in request.topics
        ]
    }


async def _describe(call: Call, wait: LeaderWait, name: str, index: int) -> dict[str, Any]:
    try:
        writers = await wait.ask(name, index, lambda key: call.broker.reads.writers(key, caller=wait.caller))
    except StreamHouseError as error:
        return {
            "partition_index": index,
            "error_code": error.kafka_code,
            "error_message": error.message,
            "active_producers": [],
        }
    return {
        "partition_index": index,
        "error_code": ErrorCode.NONE,
        "active_producers": [
            {
                "producer_id": writer.producer_id,
                "producer_epoch": writer.producer_epoch,
                "last_sequence": writer.last_sequence,
                "last_timestamp": writer.last_timestamp_ms,
                "coordinator_epoch": -1,
                "current_txn_start_offset": -1,
            }
            for writer in writers
        ],
    }
