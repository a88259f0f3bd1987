"""ListGroups (16), versions 0–5: groups that this broker coordinates, by state (from 4 on) and by type (from 5 on)."""

from __future__ import annotations

from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(16, (0, 5))
async def list_groups(call: Call, request: Message) -> Fields:
    try:
        groups = await call.broker.groups.inspection.list_groups(
            states=request.states_filter, types=request.types_filter, caller=call.client.caller
        )
    except StreamHouseError as error:
        return {"error_code": error.kafka_code, "groups": []}
    return {
        "error_code": 0,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state.value,
                "group_type": group.type.value,
            }
            for group in groups
        ],
    }
