"""ConsumerGroupDescribe (69), versions 0–1: consumer groups (KIP-848). For a classic group the answer is 69, and the
client then sends DescribeGroups.

Version 1 tells the protocol of each member: 0 classic, 1 consumer. A group that is named twice is described once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from streamhouse.broker.groups.contract import ConsumerGroupView, ConsumerMemberView
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.gateway.kafka.api import Call, Fields, cold_api
from streamhouse.gateway.kafka.handlers.api_68_consumer_group_heartbeat import topic_partitions
from streamhouse.gateway.kafka.handlers.operations import GROUP_OPERATIONS
from streamhouse.gateway.kafka.handlers.refusals import FINE, refused
from streamhouse.gateway.kafka.wire.message import Message

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


@cold_api(69, (0, 1))
async def consumer_group_describe(call: Call, request: Message) -> Fields:
    groups = [await _describe(call, group_id) for group_id in dict.fromkeys(request.group_ids)]
    if request.include_authorized_operations:
        groups = [{**group, "authorized_operations": GROUP_OPERATIONS} for group in groups]
    return {"groups": groups}


async def _describe(call: Call, group_id: str) -> Fields:
    try:
        return _described(
            call, await call.broker.groups.inspection.describe_consumer(group_id, caller=call.client.caller)
        )
    except StreamHouseError as error:
        return {
            **refused(error),
            "group_id": group_id,
            "group_state": "",
            "group_epoch": 0,
            "assignment_epoch": 0,
            "assignor_name": "",
            "members": [],
        }


def _described(call: Call, group: ConsumerGroupView) -> Fields:
    return {
        **FINE,
        "group_id": group.group_id,
        "group_state": group.state.value,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(call, member) for member in group.members],
    }


def _member(call: Call, member: ConsumerMemberView) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topic_names),
        "subscribed_topic_regex": member.topic_pattern,
        "assignment": _assignment(call, member.assigned),
        "target_assignment": _assignment(call, member.target),
        "member_type": _CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    }


def _assignment(call: Call, keys: Iterable[PartitionKey]) -> dict[str, Any]:
    """Leaves out deleted topics, because their names are not known any more."""
    named = []
    for fields in topic_partitions(keys):
        topic = call.broker.view.topic_by_id(fields["topic_id"])
        if topic is not None:
            named.append({**fields, "topic_name": topic.name})
    return {"topic_partitions": named}
