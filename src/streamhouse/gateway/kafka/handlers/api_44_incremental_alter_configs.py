"""IncrementalAlterConfigs (44), versions 0–1: set, delete, append to or subtract from single configs of a topic.

Brokers and groups are refused: their settings are given when a process starts.
"""

from __future__ import annotations

from streamhouse.broker.configs import Change, ConfigChange
from streamhouse.core.errors import InvalidRequest
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.config_resources import ResourceType, alter_each, unsupported
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(44, (0, 1))
async def incremental_alter_configs(call: Call, request: Message) -> Fields:
    async def alter(resource: Message) -> None:
        configs, name = call.broker.configs, resource.resource_name
        match resource.resource_type:
            case ResourceType.TOPIC:
                changes = [_change(config) for config in resource.configs]
                await configs.alter_topic(name, changes, validate_only=request.validate_only)
            case ResourceType.BROKER:
                configs.refuse_broker_change(name)
            case ResourceType.GROUP:
                configs.refuse_group_change()
            case _:
                raise unsupported(resource.resource_type)

    return await alter_each(request, alter)


def _change(config: Message) -> ConfigChange:
    try:
        change = Change(config.config_operation)
    except ValueError:
        raise InvalidRequest(f"{config.config_operation} is no way to change a config") from None
    return ConfigChange(name=config.name, change=change, value=config.value)
