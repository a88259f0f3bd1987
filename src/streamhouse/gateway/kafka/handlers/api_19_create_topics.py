"""CreateTopics (19), versions 2–7.

A created topic is in the metadata store, so that every broker finds it, and led, unless that takes longer than the
client's time-out. Configs are checked; those without an effect here are kept and described all the same.

Different from Apache Kafka: the replication factor is accepted (-1 or from 1 on) and reported as 1; partitions placed
by hand are refused with 39, unless each is placed on the one broker that will lead it anyway; names that differ only in
'.' and '_' do not collide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from streamhouse.broker.topics import REPLICATION_FACTOR, Topic, WantedTopic
from streamhouse.core.errors import InvalidReplicaAssignment, InvalidTopicConfig
from streamhouse.core.topic_config import describe
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import FINE, attempt, refusal, repeated
from streamhouse.gateway.kafka.wire.message import Message

_AT_A_TIME: Final = 16  # topics created side by side: their waits overlap, the store is not flooded


@cold_api(19, (2, 7))
async def create_topics(call: Call, request: Message) -> Fields:
    twice = repeated(topic.name for topic in request.topics)
    room = asyncio.Semaphore(_AT_A_TIME)

    async def one(topic: Message) -> Fields:
        async with room:
            made = await attempt(f"creating topic {topic.name}", _create(call, request, topic))
        return {"name": topic.name, **({"configs": [], **made} if "error_code" in made else {**FINE, **made})}

    results = await asyncio.gather(*(one(topic) for topic in request.topics if topic.name not in twice))
    for name in twice:
        results.append({"name": name, "configs": [], **_TWICE})
    return {"topics": results}


_TWICE: Final = refusal(ErrorCode.INVALID_REQUEST, "the topic is named twice in one request")


async def _create(call: Call, request: Message, topic: Message) -> Fields:
    admin, wanted = call.broker.topics, _wanted(topic)
    if request.validate_only:
        new = await admin.check(wanted, caller=call.client.caller)
        return {"num_partitions": new.partition_count, **_rest(dict(new.configs))}
    created: Topic = await admin.create(wanted, caller=call.client.caller, timeout_s=max(request.timeout, 0) / 1000)
    return {
        "num_partitions": created.partition_count,
        "topic_id": created.topic_id,
        **_rest(dict(created.configs)),
    }


def _wanted(topic: Message) -> WantedTopic:
    unset = [config.name for config in topic.configs if config.value is None]
    if unset:
        raise InvalidTopicConfig(f"topic config {unset[0][:100]!r} is set to nothing", hint="leave it out instead")
    return WantedTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        brokers=_placed(topic.assignments) if topic.assignments else None,
        configs={config.name: config.value for config in topic.configs},
    )


def _placed(assignments: Sequence[Message]) -> dict[int, list[int]]:
    placed = {each.partition_index: each.broker_ids for each in assignments}
    if len(placed) < len(assignments):
        raise InvalidReplicaAssignment("a partition is named twice in one placement")
    return placed


def _rest(configs: dict[str, str]) -> Fields:
    return {
        "replication_factor": REPLICATION_FACTOR,
        "configs": [
            {
                "name": row.name,
                "value": row.value,
                "read_only": row.read_only,
                "config_source": row.source,
                "is_sensitive": row.sensitive,
            }
            for row in describe(configs)
        ],
    }
