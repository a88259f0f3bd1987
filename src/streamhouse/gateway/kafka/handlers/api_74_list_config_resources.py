"""ListConfigResources (74), versions 0–1: what DescribeConfigs can be asked about: topics and brokers.

Version 0 means client metrics, of which there are none. Groups have no configs of their own, so none is listed.
"""

from __future__ import annotations

from typing import Final

from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.handlers.config_resources import ResourceType
from streamhouse.gateway.kafka.wire.message import Message

_KNOWN: Final = frozenset(each.value for each in ResourceType)


@cold_api(74, (0, 1))
async def list_config_resources(call: Call, request: Message) -> Fields:
    if call.version == 0:
        return {"config_resources": []}
    wanted = set(request.resource_types) or _KNOWN
    if not wanted <= _KNOWN:
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": []}
    view, found = call.broker.view, list[Fields]()
    if ResourceType.TOPIC in wanted:
        topics = await call.broker.topics.all(caller=call.client.caller)
        found += [{"resource_name": topic.name, "resource_type": ResourceType.TOPIC} for topic in topics]
    if ResourceType.BROKER in wanted:
        nodes = view.nodes()
        found += [{"resource_name": str(node.node_id), "resource_type": ResourceType.BROKER} for node in nodes]
    return {"config_resources": found}
