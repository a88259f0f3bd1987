"""SyncGroup (14), versions 0–5: the leader sends the assignments, and each member gets its own.

Answered when the leader has sent them; in a group that also has members of the consumer protocol, at once.
"""

from __future__ import annotations

from streamhouse.broker.groups.contract import SyncRequest
from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.wire.message import Message


@cold_api(14, (0, 5))
async def sync_group(call: Call, request: Message) -> Fields:
    try:
        result = await call.broker.groups.members.sync(
            SyncRequest(
                group_id=request.group_id,
                generation=request.generation_id,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
            ),
            caller=call.client.caller,
        )
    except StreamHouseError as error:
        return {"error_code": error.kafka_code, "assignment": b""}
    return {
        "error_code": 0,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "assignment": result.assignment,
    }
