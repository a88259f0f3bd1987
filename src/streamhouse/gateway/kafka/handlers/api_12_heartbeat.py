"""Heartbeat (12), versions 0–4: a member of the classic protocol is alive. 27 tells it to join again."""

from __future__ import annotations

from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(12, (0, 4))
async def heartbeat(call: Call, request: Message) -> Fields:
    try:
        await call.broker.groups.members.heartbeat(
            request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            caller=call.client.caller,
        )
    except StreamHouseError as error:
        return {"error_code": error.kafka_code}
    return {"error_code": 0}
