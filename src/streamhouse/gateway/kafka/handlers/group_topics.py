"""Topics as the group APIs name them: by name in older versions, by id in newer ones."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from streamhouse.broker.topics import Topic
from streamhouse.gateway.kafka.api import Call, Fields
from streamhouse.gateway.kafka.codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTopic:
    name: str
    topic_id: UUID
    topic: Topic | None
    by_id: bool

    @property
    def fields(self) -> Fields:
        """The topic as the client named it."""
        return {"topic_id": self.topic_id} if self.by_id else {"name": self.name}

    @property
    def unknown_code(self) -> int:
        return ErrorCode.UNKNOWN_TOPIC_ID if self.by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def by_name(call: Call, name: str) -> NamedTopic:
    topic = await call.broker.topics.find(name, caller=call.client.caller)
    return NamedTopic(name=name, topic_id=UUID(int=0), topic=topic, by_id=False)


async def by_id(call: Call, topic_id: UUID) -> NamedTopic:
    topic = await call.broker.topics.find(topic_id, caller=call.client.caller)
    return NamedTopic(name="", topic_id=topic_id, topic=topic, by_id=True)
