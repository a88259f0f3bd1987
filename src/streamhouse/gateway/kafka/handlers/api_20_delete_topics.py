"""DeleteTopics (20), versions 1–6: by name, from version 6 on also by id.

The topic is gone from every broker at once. Vacuum deletes its objects after the grace period.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from streamhouse.core.errors import InvalidRequest
from streamhouse.core.ids import TopicId
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import FINE, attempt, refusal, repeated
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.primitives import ZERO_UUID

_IDS_FROM = 6


@dataclass(frozen=True, slots=True)
class _Asked:
    name: str | None
    topic_id: UUID


@cold_api(20, (1, 6))
async def delete_topics(call: Call, request: Message) -> Fields:
    if call.version < _IDS_FROM:
        asked = [_Asked(name, ZERO_UUID) for name in request.topic_names]
    else:
        asked = [_Asked(topic.name, topic.topic_id) for topic in request.topics]
    twice = repeated(asked)
    responses = [{**_names(each), **refusal(ErrorCode.INVALID_REQUEST, "it is named twice")} for each in twice]
    for each in asked:
        if each not in twice:
            outcome = await attempt(f"deleting topic {each.name or each.topic_id}", _delete(call, each))
            responses.append({**_names(each), **outcome})
    return {"responses": responses}


async def _delete(call: Call, asked: _Asked) -> Fields:
    admin, caller = call.broker.topics, call.client.caller
    if asked.name is not None:
        if asked.topic_id != ZERO_UUID:
            raise InvalidRequest("a topic is named by its name and its id", hint="give one of the two")
        topic = await admin.fresh(asked.name, caller=caller)
    else:
        topic = await admin.fresh_by_id(TopicId(asked.topic_id), caller=caller)
    await admin.delete(topic, caller=caller)
    return {"name": topic.name, "topic_id": topic.topic_id, **FINE}


def _names(asked: _Asked) -> Fields:
    return {"name": asked.name, "topic_id": asked.topic_id}
