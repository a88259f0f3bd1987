"""AlterConfigs (33), versions 0–2: all configs of a topic at once; what is not named goes back to its default.

Brokers and groups are refused: their settings are given when a process starts.
"""

from __future__ import annotations

from streamhouse.core.errors import InvalidRequest
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.config_resources import alter_each
from streamhouse.gateway.kafka.handlers.refusals import repeated
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(33, (0, 2))
async def alter_configs(call: Call, request: Message) -> Fields:
    async def replace(topic: Message) -> None:
        await call.broker.configs.replace_topic(
            topic.resource_name, _values(topic), caller=call.client.caller, validate_only=request.validate_only
        )

    return await alter_each(call, request, replace)


def _values(resource: Message) -> dict[str, str]:
    twice = repeated(config.name for config in resource.configs)
    unset = [config.name for config in resource.configs if config.value is None]
    if twice or unset:
        raise InvalidRequest(
            f"{[*twice, *unset][0][:100]!r} is named twice or set to nothing", hint="leave it out for the default"
        )
    return {config.name: config.value for config in resource.configs}
