"""Turns a group with members from one protocol to the other while its members run (KIP-848). Pure.

A classic group becomes a consumer group when a first member of the consumer protocol joins it. A consumer group becomes
a classic group again when its last member of the consumer protocol is gone and members of the classic protocol are
left. So a rolling restart of its members moves a group to the other protocol, in both directions.

A conversion is a take-over by a group of the other kind: the state of the old group is written as a snapshot of the new
kind, and restored from it. Therefore it survives a change of coordinator like any other state, members keep their ids
and sessions, and committed offsets are not touched. The generation of a classic group and the epoch of a consumer group
are one number, which goes on, so that no number is ever given twice.

    classic → consumer   each member holds what it was last assigned, or what it said in its last JoinGroup that it
                         still owns. Requests that wait for a rebalance are answered with REBALANCE_IN_PROGRESS.
    consumer → classic   each member is assigned its target. Unless every partition has an owner that knows of it,
                         a rebalance starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.consumer_protocol import (
    PROTOCOL_TYPE,
    MalformedMetadata,
    NamedPartition,
    read_assignment,
    read_subscription,
    write_assignment,
)
from streamhouse.broker.groups.contract import (
    Answer,
    ConsumerHeartbeat,
    Effect,
    Effects,
    GroupState,
    Save,
    Ticket,
    Timer,
    TimerKey,
    TimerKind,
)
from streamhouse.broker.groups.hosted import named
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.rebalancing import JOIN, SYNC
from streamhouse.broker.groups.reconciling import Topics
from streamhouse.broker.groups.roster import GroupMember
from streamhouse.broker.groups.snapshot import (
    ClassicMemberSnapshot,
    ClassicSnapshot,
    ClassicTraits,
    ConsumerMemberSnapshot,
    ConsumerSnapshot,
    Reconciliation,
)
from streamhouse.core.errors import GroupNotFound, RebalanceInProgress, StreamHouseError
from streamhouse.core.ids import PartitionKey

_OWN_DATA_NOT_READ: Final = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Assignors whose members do not read the user data of their assignment. librdkafka's sticky assignors do write some:
they repeat what the member said when it joined. Apache Kafka refuses to convert such groups."""


def joined_by_consumer(
    group: ClassicGroup,
    request: ConsumerHeartbeat,
    topics: Topics,
    ticket: Ticket,
    *,
    options: GroupOptions,
    now_ms: int,
) -> tuple[ClassicGroup | ConsumerGroup, Effects]:
    """A member of the consumer protocol joins a classic group. Returns the group as it is then: a consumer group, or
    the unchanged classic group if the member was refused."""
    try:
        made, restored = to_consumer(group, topics, options=options, now_ms=now_ms)
    except GroupNotFound as error:
        return group, [Answer(ticket, error)]
    joined = made.heartbeat(request, topics, ticket, now_ms)
    if any(isinstance(effect, Answer) and isinstance(effect.result, StreamHouseError) for effect in joined):
        return group, joined
    # If the member only replaced a static member, nothing has been assigned yet. ``topics_changed`` does it then.
    return made, [*_end(group), *restored, *joined, *made.topics_changed(topics)]


def to_consumer(
    group: ClassicGroup, topics: Topics, *, options: GroupOptions, now_ms: int
) -> tuple[ConsumerGroup, Effects]:
    """The consumer group that a classic group becomes. Raises GroupNotFound, as Kafka does, if it cannot become one.

    The classic group is not changed.
    """
    made = ConsumerGroup(group.group_id, options=options, group_epoch=group.generation)
    # Members that were never answered hold nothing. They are told to join again, and do so as new members.
    members = [member for member in group.roster if not member.is_new]
    if group.state is not GroupState.EMPTY and group.protocol_type != PROTOCOL_TYPE:
        raise GroupNotFound(
            f"group {group.group_id} has members of the protocol type {group.protocol_type!r}, which cannot be "
            f"converted to the consumer protocol"
        )
    taken: set[PartitionKey] = set()
    saved = []
    for member in members:
        try:
            saved.append(_as_consumer(group, member, topics, taken))
        except MalformedMetadata as error:
            raise GroupNotFound(
                f"group {group.group_id} cannot be converted to the consumer protocol: the subscription or assignment "
                f"of member {member.member_id!r} cannot be read: {error}"
            ) from error
    snapshot = ConsumerSnapshot(
        assignment_epoch=group.generation, partitions=(), members=tuple(saved), silent=group.silence.marks()
    )
    return made, made.restore(snapshot, now_ms)


def _end(group: ClassicGroup) -> Effects:
    """The end of a classic group that has become a consumer group: its requests are answered, its timers cancelled."""
    answers = group.end(RebalanceInProgress(f"group {group.group_id} uses the consumer protocol now"))
    pending = [TimerKey(TimerKind.PENDING, member_id) for member_id in group.pending]
    new = [TimerKey(TimerKind.SESSION, member.member_id) for member in group.roster if member.is_new]
    return [*answers, *(Timer(key, None) for key in (JOIN, SYNC, *pending, *new))]


def _as_consumer(
    group: ClassicGroup, member: GroupMember, topics: Topics, taken: set[PartitionKey]
) -> ConsumerMemberSnapshot:
    chosen = group.protocol_name if group.protocol_name in (name for name, _ in member.protocols) else ""
    subscription = read_subscription(member.metadata(chosen or member.protocols[0][0]))
    read_subscription(member.protocols[0][1])  # SyncGroup is answered in the version of this one
    assignment = read_assignment(member.assignment)
    if assignment.has_user_data and group.protocol_name not in _OWN_DATA_NOT_READ:
        raise MalformedMetadata(
            "its assignor keeps its own data in assignments, which would be lost; use another assignor first"
        )
    # After a JoinGroup and before the assignment, only the subscription tells what the member still reads.
    held = _existing(assignment.partitions or subscription.owned, topics) - taken
    taken |= held
    return ConsumerMemberSnapshot(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topic_names=tuple(sorted(set(subscription.topics))),
        topic_pattern=None,
        assignor=None,
        member_epoch=group.generation,
        previous_epoch=group.generation,
        state=Reconciliation.STABLE,
        assigned=held,
        revoking=frozenset(),
        target=held,
        classic=ClassicTraits(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
    )


def _existing(partitions: Iterable[NamedPartition], topics: Topics) -> frozenset[PartitionKey]:
    return frozenset(
        PartitionKey(topics[topic].topic_id, partition)
        for topic, partition in partitions
        if topic in topics and 0 <= partition < topics[topic].partition_count
    )


def to_classic(
    group: ConsumerGroup, topics: Topics, *, options: GroupOptions, now_ms: int
) -> tuple[ClassicGroup, Effects]:
    """The classic group that a consumer group becomes. All its members use the classic protocol."""
    assert group.roster.only_classic
    made = ClassicGroup(group.group_id, options=options, generation=group.group_epoch)
    members = []
    for member in group.roster:
        assert member.classic is not None
        version = read_subscription(member.classic.protocols[0][1]).version
        members.append(
            ClassicMemberSnapshot(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.classic.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=member.classic.protocols,
                assignment=write_assignment(version, named(member, member.target, topics)),
            )
        )
    snapshot = ClassicSnapshot(
        state=GroupState.STABLE,
        protocol_type=PROTOCOL_TYPE,
        protocol_name="",
        leader=members[0].member_id,
        members=tuple(members),
        silent=group.silence.marks(),
    )
    effects: list[Effect] = [Save(), *made.restore(snapshot, now_ms)]
    made.protocol_name = made.roster.select_protocol()
    for kind in (TimerKind.JOIN, TimerKind.SYNC):
        effects += [Timer(TimerKey(kind, member.member_id), None) for member in group.roster]
    if not group.is_complete:
        effects += made.rebalance(now_ms)
    return made, effects
