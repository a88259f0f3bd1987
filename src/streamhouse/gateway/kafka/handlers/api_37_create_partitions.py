"""CreatePartitions (37), versions 0–3: grow topics. The new partitions are led when the answer leaves, as with 19.

Different from Apache Kafka: partitions placed by hand are refused with 39, unless each is placed on the one broker that
will lead it anyway.
"""

from __future__ import annotations

from typing import Final

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import FINE, attempt, refusal, repeated
from streamhouse.gateway.kafka.wire.message import Message

_TWICE: Final = refusal(ErrorCode.INVALID_REQUEST, "the topic is named twice in one request")


@cold_api(37, (0, 3))
async def create_partitions(call: Call, request: Message) -> Fields:
    twice = repeated(topic.name for topic in request.topics)
    results: list[Fields] = [{"name": name, **_TWICE} for name in twice]
    for topic in request.topics:
        if topic.name not in twice:
            outcome = await attempt(f"growing topic {topic.name}", _grow(call, request, topic))
            results.append({"name": topic.name, **outcome})
    return {"results": results}


async def _grow(call: Call, request: Message, topic: Message) -> Fields:
    await call.broker.topics.grow(
        topic.name,
        topic.count,
        caller=call.client.caller,
        brokers=[placed.broker_ids for placed in topic.assignments or ()],
        validate_only=request.validate_only,
        timeout_s=max(request.timeout, 0) / 1000,
    )
    return FINE
