"""The requests of members: join, sync, heartbeat, leave. Finds the group and gives the event to its state machine.

A group is of one kind at a time. While it is empty, the first member that joins decides which. While it has members, it
is converted when members of both protocols are in it (conversion.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from streamhouse.broker.caller import Caller
from streamhouse.broker.groups import conversion
from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.consumer_protocol import PROTOCOL_TYPE
from streamhouse.broker.groups.consumer_roster import check_heartbeat
from streamhouse.broker.groups.contract import (
    Answer,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Effects,
    GroupState,
    JoinRequest,
    JoinResult,
    LeaveOutcome,
    MemberRef,
    SyncRequest,
    SyncResult,
    Ticket,
)
from streamhouse.broker.groups.hosted import subscription_of
from streamhouse.broker.groups.loaded import LoadedGroup
from streamhouse.broker.groups.registry import Registry
from streamhouse.core.errors import (
    GroupNotFound,
    InvalidGroupId,
    MetadataError,
    StreamHouseError,
    UnknownMember,
)
from streamhouse.core.randomness import Randomness

_MAX_CLIENT_ID_CHARS: Final = 255  # of the client id at the start of a member id
_TOPICS_AGAIN_MS: Final = 1_000
"""The store is asked for an unknown topic at most this often, so that made-up names do not load it."""


class Membership:
    def __init__(self, registry: Registry, randomness: Randomness) -> None:
        self._registry = registry
        self._randomness = randomness
        self._asked_ms = -_TOPICS_AGAIN_MS

    # Classic.

    async def join(self, request: JoinRequest, *, caller: Caller) -> JoinResult:
        """Returns when the generation begins. That may take as long as the slowest member."""
        registry = self._registry
        await self._ready(request.group_id)
        if request.member_id and registry.find(request.group_id) is None:
            raise UnknownMember(f"group {request.group_id} has no members")
        if _hosts(registry.find(request.group_id)):
            await self._know_topics(subscription_of(request).topics)
        name = request.instance_id or request.client_id[:_MAX_CLIENT_ID_CHARS]
        new_member_id = f"{name}-{self._randomness.uuid()}"
        group = registry.find_or_make(request.group_id)

        def event(ticket: Ticket) -> Effects:
            machine, now_ms = group.machine, registry.now_ms()
            if isinstance(machine, ConsumerGroup) and machine.state is not GroupState.EMPTY:
                return machine.join(request, registry.facts, ticket, new_member_id, now_ms)
            if isinstance(machine, ConsumerGroup):
                machine = ClassicGroup(machine.group_id, options=registry.options, generation=machine.group_epoch)
                group.machine = machine
            return machine.join(request, ticket, new_member_id, now_ms)

        result: JoinResult = await registry.ask(group, event)
        return result

    async def sync(self, request: SyncRequest, *, caller: Caller) -> SyncResult:
        """Returns when the leader has assigned; in a consumer group at once."""
        await self._ready(request.group_id)
        group, registry = self._known(request.group_id), self._registry

        def event(ticket: Ticket) -> Effects:
            if isinstance(group.machine, ConsumerGroup):
                return group.machine.sync(request, registry.facts, ticket, registry.now_ms())
            return group.machine.sync(request, ticket, registry.now_ms())

        result: SyncResult = await registry.ask(group, event)
        return result

    async def heartbeat(
        self, group_id: str, *, member_id: str, instance_id: str | None, generation: int, caller: Caller
    ) -> None:
        await self._ready(group_id)
        group, registry = self._known(group_id), self._registry

        def event(ticket: Ticket) -> Effects:
            machine = group.machine
            beat = machine.classic_heartbeat if isinstance(machine, ConsumerGroup) else machine.heartbeat
            return beat(member_id, instance_id, generation, ticket, registry.now_ms())

        await registry.ask(group, event)

    async def leave(self, group_id: str, members: Sequence[MemberRef], *, caller: Caller) -> Sequence[LeaveOutcome]:
        """Also used by operators, to remove members of either protocol."""
        await self._ready(group_id)
        registry = self._registry
        group = registry.find(group_id)
        if group is None:
            unknown = UnknownMember(f"group {group_id} has no members")
            return [LeaveOutcome(member=ref, error=unknown) for ref in members]
        found = group

        def event(ticket: Ticket) -> Effects:
            if isinstance(found.machine, ConsumerGroup):
                return found.machine.leave(members, registry.facts, ticket)
            return found.machine.leave(members, ticket, registry.now_ms())

        outcomes: Sequence[LeaveOutcome] = await registry.ask(found, event)
        return outcomes

    async def _ready(self, group_id: str) -> None:
        if not group_id:
            raise InvalidGroupId("a group id must not be empty")
        await self._registry.ready(group_id)

    def _known(self, group_id: str) -> LoadedGroup:
        group = self._registry.find(group_id)
        if group is None:
            raise UnknownMember(f"group {group_id} has no members")
        return group

    # Consumer (KIP-848).

    async def consumer_heartbeat(
        self, request: ConsumerHeartbeat, *, caller: Caller, may_be_named: bool = False
    ) -> ConsumerHeartbeatResult:
        """``may_be_named``: a member that joins without an id gets one (version 0 of the request)."""
        if may_be_named and request.member_epoch == 0 and not request.member_id:
            request = replace(request, member_id=str(self._randomness.uuid()))
        check_heartbeat(request)
        registry = self._registry
        await registry.ready(request.group_id)
        if registry.find(request.group_id) is None and request.member_epoch != 0:
            raise GroupNotFound(f"there is no group {request.group_id}")
        if request.topic_names is not None or request.topic_pattern:
            await self._know_topics(request.topic_names or (), matches=bool(request.topic_pattern))
        group = registry.find_or_make(request.group_id)
        result: ConsumerHeartbeatResult = await registry.ask(group, lambda ticket: self._beat(group, request, ticket))
        return result

    def _beat(self, group: LoadedGroup, request: ConsumerHeartbeat, ticket: Ticket) -> Effects:
        registry, machine = self._registry, group.machine
        if isinstance(machine, ConsumerGroup):
            return machine.heartbeat(request, registry.facts, ticket, registry.now_ms())
        if request.member_epoch != 0:
            return [Answer(ticket, _not_of_consumer_group(machine))]
        group.machine, effects = conversion.joined_by_consumer(
            machine, request, registry.facts, ticket, options=registry.options, now_ms=registry.now_ms()
        )
        return effects

    async def _know_topics(self, names: Sequence[str], *, matches: bool = False) -> None:
        """Make sure that a topic counts that another agent has just created. ``matches``: there is a pattern."""
        registry = self._registry
        if not matches and all(name in registry.facts for name in names):
            return
        registry.learn_topics()
        if all(name in registry.facts for name in names):
            return
        now_ms = registry.now_ms()
        if now_ms - self._asked_ms < _TOPICS_AGAIN_MS:
            return
        self._asked_ms = now_ms
        with suppress(MetadataError):  # the topics loop reads them when the store is back
            await registry.view.all_topics()
            registry.learn_topics()


def _hosts(group: LoadedGroup | None) -> bool:
    """Whether a member of the classic protocol that joins now joins a consumer group."""
    return (
        group is not None and isinstance(group.machine, ConsumerGroup) and group.machine.state is not GroupState.EMPTY
    )


def _not_of_consumer_group(machine: ClassicGroup) -> StreamHouseError:
    """The answer to a heartbeat of a member that the group does not have.

    If the last member of the consumer protocol was silent for a session, the group is a classic group again. That
    member must be told to join again (25): clients take 69, which Kafka answers, for a fatal error.
    """
    if machine.protocol_type == PROTOCOL_TYPE and machine.state is not GroupState.EMPTY:
        return UnknownMember(f"group {machine.group_id} has no member of the consumer protocol")
    return GroupNotFound(f"group {machine.group_id} is not a consumer group")
