"""DescribeLogDirs (35), versions 1–4: one directory per broker, that of its write-ahead log.

Lists the partitions led here. Different from Apache Kafka: sizes are 0 and disk space is unknown (-1), because records
live in the object store and adding up a log would read all of its index.
"""

from __future__ import annotations

from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(35, (1, 4))
async def describe_log_dirs(call: Call, request: Message) -> Fields:
    view = call.broker.view
    asked = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
    topics: list[Fields] = []
    for topic in view.topics():
        if asked is not None and topic.name not in asked:
            continue
        wanted = range(topic.partition_count) if asked is None else sorted(asked[topic.name])
        here = [
            index
            for index in wanted
            if (leader := view.leader(PartitionKey(topic.topic_id, index))) is not None
            and leader.node.node_id == view.node_id
        ]
        if here:
            partitions = [{"partition_index": index, "partition_size": 0, "offset_lag": 0} for index in here]
            topics.append({"name": topic.name, "partitions": partitions})
    return {"results": [{"log_dir": str(call.broker.settings.wal.dir), "topics": topics}]}
