"""LeaveGroup (13), versions 0–5: a member leaves; from version 3 on many members, also by their instance ids.

Operators use it to remove members of either protocol.
"""

from __future__ import annotations

from typing import Final

from streamhouse.broker.groups.contract import LeaveOutcome, MemberRef
from streamhouse.core.errors import StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.wire.message import Message

_MANY_FROM: Final = 3


@cold_api(13, (0, 5))
async def leave_group(call: Call, request: Message) -> Fields:
    if call.version < _MANY_FROM:
        members = [MemberRef(member_id=request.member_id)]
    else:
        members = [
            MemberRef(member_id=member.member_id, instance_id=member.group_instance_id) for member in request.members
        ]
    try:
        outcomes = await call.broker.groups.members.leave(request.group_id, members, caller=call.client.caller)
    except StreamHouseError as error:
        return {"error_code": error.kafka_code, "members": []}
    if call.version < _MANY_FROM:
        return {"error_code": _code(outcomes[0])}
    return {
        "error_code": 0,
        "members": [
            {
                "member_id": outcome.member.member_id,
                "group_instance_id": outcome.member.instance_id,
                "error_code": _code(outcome),
            }
            for outcome in outcomes
        ],
    }


def _code(outcome: LeaveOutcome) -> int:
    return 0 if outcome.error is None else outcome.error.kafka_code
