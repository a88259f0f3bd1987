"""DeleteGroups (42), versions 0–2: delete empty groups and their offsets.

A group with members gets NON_EMPTY_GROUP (68). A group that does not exist gets GROUP_ID_NOT_FOUND (69).
"""

from __future__ import annotations

from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.codes import ErrorCode
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(42, (0, 2))
async def delete_groups(call: Call, request: Message) -> Fields:
    return {
        "results": [
            {"group_id": group_id, "error_code": await _delete(call, group_id)}
            for group_id in dict.fromkeys(request.groups_names)
        ]
    }


async def _delete(call: Call, group_id: str) -> int:
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    try:
        await call.broker.groups.inspection.delete(group_id, caller=call.client.caller)
    except StreamHouseError as error:
        return error.kafka_code
    return 0
