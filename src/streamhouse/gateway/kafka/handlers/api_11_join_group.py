"""JoinGroup (11), versions 0–9: join a group with the classic protocol, or join again.

The answer comes when the generation begins; in a group that also has members of the consumer protocol, at once. From
version 4 on a new dynamic member first gets its id, with MEMBER_ID_REQUIRED (79), and joins again with it. From version
9 on the answer to a static leader that has restarted says that it has nothing to assign.
"""

from __future__ import annotations

from typing import Final

from streamhouse.broker.groups.contract import JoinRequest, JoinResult
from streamhouse.core.errors import MemberIdRequired, StreamHouseError
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.wire.message import Message

_KNOWN_ID_FROM: Final = 4
_NULL_PROTOCOL_FROM: Final = 7
_SKIP_FROM: Final = 9


@cold_api(11, (0, 9))
async def join_group(call: Call, request: Message) -> Fields:
    try:
        return _joined(await call.broker.groups.members.join(_join_request(call, request), caller=call.client.caller))
    except MemberIdRequired as required:
        return _refused(call, required, required.member_id)
    except StreamHouseError as error:
        return _refused(call, error, request.member_id)


def _join_request(call: Call, request: Message) -> JoinRequest:
    rebalance_ms = request.rebalance_timeout
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=call.client.client_id,
        client_host=f"/{call.client.host}",
        session_timeout_ms=request.session_timeout,
        rebalance_timeout_ms=rebalance_ms if rebalance_ms >= 0 else request.session_timeout,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        known_id_required=call.version >= _KNOWN_ID_FROM,
        can_skip_assignment=call.version >= _SKIP_FROM,
    )


def _joined(result: JoinResult) -> Fields:
    return {
        "error_code": 0,
        "generation_id": result.generation,
        "protocol_type": result.protocol_type,
        "protocol_name": result.protocol_name,
        "leader": result.leader,
        "skip_assignment": result.skip_assignment,
        "member_id": result.member_id,
        "members": [
            {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": member.metadata}
            for member in result.members
        ],
    }


def _refused(call: Call, error: StreamHouseError, member_id: str) -> Fields:
    return {
        "error_code": error.kafka_code,
        "generation_id": -1,
        "protocol_name": None if call.version >= _NULL_PROTOCOL_FROM else "",
        "leader": "",
        "member_id": member_id,
        "members": [],
    }
