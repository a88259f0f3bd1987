"""What the three config APIs (32, 33, 44) share: kinds of resources, which may be changed, how an answer names one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum

from streamhouse.core.errors import InvalidRequest
from streamhouse.gateway.kafka.api import Call, Fields
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.refusals import FINE, attempt, refusal, repeated
from streamhouse.gateway.kafka.wire.message import Message


class ResourceType(IntEnum):
    """The types of config resources, with Kafka's codes."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def unsupported(resource_type: int) -> InvalidRequest:
    known = {each.value: each.name.lower().replace("_", " ") for each in ResourceType}
    name = known.get(resource_type, f"resource type {resource_type}")
    return InvalidRequest(f"there are no configs of kind {name}", hint="topics, brokers and groups have configs")


async def alter_each(call: Call, request: Message, alter_topic: Callable[[Message], Awaitable[None]]) -> Fields:
    """One response for every resource; one that is named twice is not touched.

    Brokers and groups are refused: their settings are given when a process starts.
    """

    async def alter(resource: Message) -> None:
        match resource.resource_type:
            case ResourceType.TOPIC:
                await alter_topic(resource)
            case ResourceType.BROKER:
                call.broker.configs.refuse_broker_change(resource.resource_name, caller=call.client.caller)
            case ResourceType.GROUP:
                call.broker.configs.refuse_group_change(caller=call.client.caller)
            case _:
                raise unsupported(resource.resource_type)

    twice = repeated((resource.resource_type, resource.resource_name) for resource in request.resources)
    responses: list[Fields] = []
    for resource in request.resources:
        names = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        if (resource.resource_type, resource.resource_name) in twice:
            outcome: Fields | None = refusal(ErrorCode.INVALID_REQUEST, "the resource is named twice in one request")
        else:
            outcome = await attempt(f"changing configs of {resource.resource_name}", alter(resource))
        responses.append({**names, **(FINE if outcome is None else outcome)})
    return {"responses": responses}
