"""What members ask of their coordinator: join, sync, heartbeat, leave. Finds the group and tells its machine.

A group is of one kind at a time. While it is empty, the first member that comes decides which; a member of the other
kind is refused as long as there are members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.consumer_checks import check_heartbeat
from streamhouse.broker.groups.contract import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    GroupState,
    JoinRequest,
    JoinResult,
    LeaveOutcome,
    MemberRef,
    SyncRequest,
    SyncResult,
)
from streamhouse.broker.groups.loaded import LoadedGroup
from streamhouse.broker.groups.registry import Registry
from streamhouse.core.errors import (
    GroupNotFound,
    InconsistentProtocol,
    InvalidGroupId,
    MetadataError,
    StreamHouseError,
    UnknownMember,
)
from streamhouse.core.randomness import Randomness

_MAX_CLIENT_ID_CHARS: Final = 255
"""Of a client id within a member id: long enough to be recognised."""
_LOOK_AGAIN_MS: Final = 1_000
"""An unknown topic is looked up in the store at most this often, whoever asks."""


class Membership:
    def __init__(self, registry: Registry, randomness: Randomness) -> None:
        self._registry = registry
        self._randomness = randomness
        self._looked_ms = -_LOOK_AGAIN_MS

    # Classic.

    async def join(self, request: JoinRequest) -> JoinResult:
        """Returns when the generation begins, which may take as long as the slowest member."""
        if not request.group_id:
            raise InvalidGroupId("a group id must not be empty")
        await self._registry.ready(request.group_id)
        if request.member_id and self._registry.find(request.group_id) is None:
            raise UnknownMember(f"group {request.group_id} has no members")
        group = self._registry.find_or_make(request.group_id)
        machine = self._as_classic(group)
        name = request.instance_id or request.client_id[:_MAX_CLIENT_ID_CHARS]
        new_member_id = f"{name}-{self._randomness.uuid()}"
        now_ms = self._registry.now_ms()
        result: JoinResult = await self._registry.ask(
            group, lambda ticket: machine.join(request, ticket, new_member_id, now_ms)
        )
        return result

    async def sync(self, request: SyncRequest) -> SyncResult:
        """Returns when the leader has assigned."""
        await self._registry.ready(request.group_id)
        group, machine = self._classic(request.group_id)
        now_ms = self._registry.now_ms()
        result: SyncResult = await self._registry.ask(group, lambda ticket: machine.sync(request, ticket, now_ms))
        return result

    async def heartbeat(self, group_id: str, *, member_id: str, instance_id: str | None, generation: int) -> None:
        await self._registry.ready(group_id)
        group, machine = self._classic(group_id)
        now_ms = self._registry.now_ms()
        await self._registry.ask(
            group, lambda ticket: machine.heartbeat(member_id, instance_id, generation, ticket, now_ms)
        )

    async def leave(self, group_id: str, members: Sequence[MemberRef]) -> Sequence[LeaveOutcome]:
        """Also how an operator removes members, of either kind of group."""
        if not group_id:
            raise InvalidGroupId("a group id must not be empty")
        await self._registry.ready(group_id)
        group = self._registry.find(group_id)
        if group is None:
            unknown = UnknownMember(f"group {group_id} has no members")
            return [LeaveOutcome(member=ref, error=unknown) for ref in members]
        machine, now_ms = group.machine, self._registry.now_ms()
        if isinstance(machine, ConsumerGroup):
            return [self._remove(group, machine, ref) for ref in members]
        outcomes: Sequence[LeaveOutcome] = await self._registry.ask(
            group, lambda ticket: machine.leave(members, ticket, now_ms)
        )
        return outcomes

    def _remove(self, group: LoadedGroup, machine: ConsumerGroup, ref: MemberRef) -> LeaveOutcome:
        try:
            self._registry.apply(group, machine.remove(ref.member_id, ref.instance_id, self._registry.facts))
        except StreamHouseError as error:
            return LeaveOutcome(member=ref, error=error)
        return LeaveOutcome(member=ref, error=None)

    def _classic(self, group_id: str) -> tuple[LoadedGroup, ClassicGroup]:
        if not group_id:
            raise InvalidGroupId("a group id must not be empty")
        group = self._registry.find(group_id)
        if group is None or not isinstance(group.machine, ClassicGroup):
            raise UnknownMember(f"group {group_id} has no such member")
        return group, group.machine

    def _as_classic(self, group: LoadedGroup) -> ClassicGroup:
        machine = group.machine
        if isinstance(machine, ConsumerGroup):
            if machine.state is not GroupState.EMPTY:
                raise InconsistentProtocol(
                    f"group {machine.group_id} has members of the newer protocol (KIP-848)",
                    hint="stop them first, or let this client use group.protocol=consumer too",
                )
            machine = ClassicGroup(machine.group_id, options=self._registry.options, generation=machine.group_epoch)
            group.machine = machine
        return machine

    # Consumer (KIP-848).

    async def consumer_heartbeat(
        self, request: ConsumerHeartbeat, *, may_be_named: bool = False
    ) -> ConsumerHeartbeatResult:
        """``may_be_named``: a member that joins without an id gets one (the protocol's version 0)."""
        if may_be_named and request.member_epoch == 0 and not request.member_id:
            request = replace(request, member_id=str(self._randomness.uuid()))
        check_heartbeat(request)
        await self._registry.ready(request.group_id)
        group = self._registry.find(request.group_id)
        if group is None and request.member_epoch != 0:
            raise GroupNotFound(f"there is no group {request.group_id}")
        if request.topic_names is not None or request.topic_pattern:
            await self._know_topics(request)
        group = self._registry.find_or_make(request.group_id)
        machine = self._as_consumer(group, request)
        registry = self._registry
        result: ConsumerHeartbeatResult = await registry.ask(
            group, lambda ticket: machine.heartbeat(request, registry.facts, ticket, registry.now_ms())
        )
        return result

    def _as_consumer(self, group: LoadedGroup, request: ConsumerHeartbeat) -> ConsumerGroup:
        machine = group.machine
        if isinstance(machine, ClassicGroup):
            if request.member_epoch != 0:
                raise GroupNotFound(f"group {machine.group_id} is not of the newer protocol (KIP-848)")
            if machine.state is not GroupState.EMPTY:
                raise InconsistentProtocol(
                    f"group {machine.group_id} has members of the classic protocol",
                    hint="stop them first, or let this client use group.protocol=classic too",
                )
            machine = ConsumerGroup(machine.group_id, options=self._registry.options, group_epoch=machine.generation)
            group.machine = machine
        return machine

    async def _know_topics(self, request: ConsumerHeartbeat) -> None:
        """A topic that was created elsewhere a moment ago counts; but made-up names must not load the store."""
        registry = self._registry
        if not request.topic_pattern and _all_known(request, registry):
            return
        registry.learn_topics()
        if _all_known(request, registry):
            return
        now_ms = registry.now_ms()
        if now_ms - self._looked_ms < _LOOK_AGAIN_MS:
            return
        self._looked_ms = now_ms
        try:
            await registry.view.all_topics()
        except MetadataError:
            return  # it will be noticed when the store is back
        registry.learn_topics()


def _all_known(request: ConsumerHeartbeat, registry: Registry) -> bool:
    return all(name in registry.facts for name in request.topic_names or ())
