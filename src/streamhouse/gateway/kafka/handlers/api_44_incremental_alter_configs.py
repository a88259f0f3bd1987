"""IncrementalAlterConfigs (44), versions 0–1: set, delete, append to or subtract from single configs of a topic.

Brokers and groups are refused: their settings are given when a process starts.
"""

from __future__ import annotations

from streamhouse.broker.configs import ConfigChange, ConfigOperation
from streamhouse.core.errors import InvalidRequest
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.config_resources import alter_each
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(44, (0, 1))
async def incremental_alter_configs(call: Call, request: Message) -> Fields:
    async def alter(topic: Message) -> None:
        changes = [_change(config) for config in topic.configs]
        await call.broker.configs.alter_topic(
            topic.resource_name, changes, caller=call.client.caller, validate_only=request.validate_only
        )

    return await alter_each(call, request, alter)


def _change(config: Message) -> ConfigChange:
    try:
        change = ConfigOperation(config.config_operation)
    except ValueError:
        raise InvalidRequest(f"{config.config_operation} is no way to change a config") from None
    return ConfigChange(name=config.name, change=change, value=config.value)
