"""DescribeGroups (15), versions 0–6: state, members and assignments of classic groups.

For a group that does not exist, or is a consumer group, the answer is 69 from version 6 on, and before it a group in
state "Dead". A group that is named twice is described once: the metadata of its members may take megabytes.
"""

from __future__ import annotations

from typing import Final

from streamhouse.broker.groups.contract import ClassicGroupView, GroupState
from streamhouse.core.errors import GroupNotFound, StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.operations import GROUP_OPERATIONS
from streamhouse.gateway.kafka.wire.message import Message

_NOT_FOUND_FROM: Final = 6


@cold_api(15, (0, 6))
async def describe_groups(call: Call, request: Message) -> Fields:
    groups = [await _describe(call, group_id) for group_id in dict.fromkeys(request.groups)]
    if request.include_authorized_operations:
        groups = [{**group, "authorized_operations": GROUP_OPERATIONS} for group in groups]
    return {"groups": groups}


async def _describe(call: Call, group_id: str) -> Fields:
    nothing = {"group_id": group_id, "protocol_type": "", "protocol_data": "", "members": []}
    try:
        return _described(await call.broker.groups.inspection.describe_classic(group_id, caller=call.client.caller))
    except GroupNotFound as error:
        dead = {**nothing, "group_state": GroupState.DEAD.value}
        if call.version < _NOT_FOUND_FROM:
            return {**dead, "error_code": 0}
        return {**dead, "error_code": error.kafka_code, "error_message": str(error)}
    except StreamHouseError as error:
        return {**nothing, "group_state": "", "error_code": error.kafka_code, "error_message": str(error)}


def _described(group: ClassicGroupView) -> Fields:
    return {
        "error_code": 0,
        "group_id": group.group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
    }
