"""DescribeConfigs (32), versions 1–4: of topics, of this broker (by id), of all brokers (""), of groups.

With types, sources, synonyms and documentation. A broker's configs are Kafka's names where there is the same thing, and
every setting as ``streamhouse.<setting>``; all are read-only, and secrets come without their value. "" has none:
nothing can be set for all brokers at once. There are no loggers and no client metrics to configure.
A resource that is named twice is described once, as the later one asks.
"""

from __future__ import annotations

from streamhouse.core.ids import check_topic_name
from streamhouse.core.topic_config import Description
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.config_resources import ResourceType, unsupported
from streamhouse.gateway.kafka.handlers.refusals import FINE, attempt
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(32, (1, 4))
async def describe_configs(call: Call, request: Message) -> Fields:
    distinct = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    return {"results": [await _result(call, request, resource) for resource in distinct.values()]}


async def _result(call: Call, request: Message, resource: Message) -> Fields:
    names = {"resource_type": resource.resource_type, "resource_name": resource.resource_name, "configs": []}
    rows = await attempt(f"describing configs of {resource.resource_name}", _rows(call, resource))
    if not isinstance(rows, list):
        return {**names, **rows}
    wanted = resource.configuration_keys
    chosen = [row for row in rows if not wanted or row.name in wanted]
    return {**names, **FINE, "configs": [_config(request, row) for row in chosen]}


async def _rows(call: Call, resource: Message) -> list[Description]:
    configs, name, caller = call.broker.configs, resource.resource_name, call.client.caller
    match resource.resource_type:
        case ResourceType.TOPIC:
            return await configs.describe_topic(check_topic_name(name), caller=caller)
        case ResourceType.BROKER:
            return configs.describe_broker(name, listener=call.client.listener, caller=caller)
        case ResourceType.GROUP:
            return configs.describe_group(caller=caller)
    raise unsupported(resource.resource_type)


def _config(request: Message, row: Description) -> Fields:
    synonyms = row.synonyms if request.include_synonyms else ()
    return {
        "name": row.name,
        "value": row.value,
        "read_only": row.read_only,
        "config_source": row.source,
        "is_sensitive": row.sensitive,
        "synonyms": [{"name": each.name, "value": each.value, "source": each.source} for each in synonyms],
        "config_type": row.type,
        "documentation": row.documentation if request.include_documentation else None,
    }
