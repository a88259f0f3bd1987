"""A classic group from outside: shown to clients, written down, taken over. Pure."""

from __future__ import annotations

import struct

from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.contract import ClassicGroupView, ClassicMemberView, Effects, GroupState
from streamhouse.broker.groups.roster import Member
from streamhouse.broker.groups.snapshot import ClassicMemberSnapshot, ClassicSnapshot


def describe(group: ClassicGroup) -> ClassicGroupView:
    """Metadata and assignments are shown of a stable group only: elsewhere they are about to change."""
    stable = group.state is GroupState.STABLE
    members = tuple(
        ClassicMemberView(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            metadata=member.metadata(group.protocol_name) if stable else b"",
            assignment=member.assignment if stable else b"",
        )
        for member in group.roster
    )
    return ClassicGroupView(
        group_id=group.group_id,
        state=group.state,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name if stable else "",
        members=members,
    )


def snapshot(group: ClassicGroup) -> ClassicSnapshot:
    members = tuple(
        ClassicMemberSnapshot(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=member.protocols,
            assignment=member.assignment,
        )
        for member in group.roster
    )
    return ClassicSnapshot(
        state=group.state,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.roster.leader,
        members=members,
        silent=group.silence.marks(),
    )


def restore(group: ClassicGroup, saved: ClassicSnapshot, now_ms: int) -> Effects:
    """Go on where another coordinator was."""
    group.state = saved.state
    group.protocol_type, group.protocol_name = saved.protocol_type, saved.protocol_name
    for member in saved.members:
        group.roster.add(
            Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=member.protocols,
                assignment=member.assignment,
            )
        )
    group.roster.leader = saved.leader
    return group.resume(dict(saved.silent), now_ms)


def subscribes(group: ClassicGroup, topic: str) -> bool:
    """Whether a member reads this topic; yes, if its metadata cannot be read. Only for type "consumer"."""
    return any(_reads(member.metadata(group.protocol_name), topic) for member in group.roster)


def _reads(metadata: bytes, topic: str) -> bool:
    """The start of every version of a consumer's subscription: version, then an array of topic names."""
    try:
        _, count = struct.unpack_from(">hi", metadata)
        position = 6
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            position += 2 + length
            if length < 0 or position > len(metadata):
                return True
            if metadata[position - length : position] == topic.encode():
                return True
    except struct.error:
        return True
    return False
