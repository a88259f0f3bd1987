"""AlterReplicaLogDirs (34), versions 1–2: accepted for the one directory that a broker has (DescribeLogDirs, 35).

Nothing has to be moved then: 0 for a partition that is led here, 9 for one that is led elsewhere, 3 for one that does
not exist. Any other directory is 57, as from a Kafka that does not know it.
"""

from __future__ import annotations

from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(34, (1, 2))
async def alter_replica_log_dirs(call: Call, request: Message) -> Fields:
    ours = str(call.broker.settings.wal.dir)
    codes: dict[str, dict[int, int]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = _code(call, topic.name, index) if directory.path == ours else ErrorCode.LOG_DIR_NOT_FOUND
                codes.setdefault(topic.name, {})[index] = code
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [{"partition_index": index, "error_code": code} for index, code in partitions.items()],
            }
            for name, partitions in codes.items()
        ]
    }


def _code(call: Call, name: str, index: int) -> int:
    view = call.broker.view
    topic = view.topic(name)
    if topic is None or not 0 <= index < topic.partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    leader = view.leader(PartitionKey(topic.topic_id, index))
    is_here = leader is not None and leader.node.node_id == view.node_id
    return ErrorCode.NONE if is_here else ErrorCode.REPLICA_NOT_AVAILABLE
