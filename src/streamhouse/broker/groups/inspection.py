"""What admin tools ask: describe, list and delete the groups that this agent coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from streamhouse.broker.caller import Caller
from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.consumer_protocol import PROTOCOL_TYPE
from streamhouse.broker.groups.contract import (
    ClassicGroupView,
    ConsumerGroupView,
    GroupListing,
    GroupState,
    GroupType,
)
from streamhouse.broker.groups.loaded import LoadedGroup
from streamhouse.broker.groups.registry import Registry
from streamhouse.broker.slots.slots import HeldSlot
from streamhouse.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    GroupNotEmpty,
    GroupNotFound,
    MetadataError,
)


class Inspection:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def describe_classic(self, group_id: str, *, caller: Caller) -> ClassicGroupView:
        """Raises GroupNotFound, also for a consumer group."""
        await self._registry.ready(group_id)
        slot = self._registry.slot_for(group_id)
        group = self._registry.in_slot(slot).loaded.get(group_id)
        if group is None:
            await self._registry.slots.fenced(slot, self._registry.metadata.get_group(group_id))
            return _without_members(group_id)
        if not isinstance(group.machine, ClassicGroup):
            raise GroupNotFound(f"group {group_id} is not a classic group")
        if _only_ids_given_out(group):
            raise GroupNotFound(f"there is no group {group_id}")
        return group.machine.describe()

    async def describe_consumer(self, group_id: str, *, caller: Caller) -> ConsumerGroupView:
        """Raises GroupNotFound, also for a classic group: the admin client then sends DescribeGroups."""
        await self._registry.ready(group_id)
        group = self._registry.find(group_id)
        if group is None or not isinstance(group.machine, ConsumerGroup):
            raise GroupNotFound(f"group {group_id} is not a consumer group")
        return group.machine.describe()

    async def list_groups(
        self, *, caller: Caller, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupListing]:
        """The groups of this coordinator. An empty filter keeps all; states and types may be in upper or lower case."""
        if any(slot.loading for slot in self._registry.slots.all()):
            raise CoordinatorLoading("this agent is reading groups from the metadata store")
        await self._load_unseen()
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        found = [
            _listing(group)
            for group in self._registry.all_groups()
            if group.slot.may_answer() and not _only_ids_given_out(group)
        ]
        return [
            listing
            for listing in found
            if (not wanted_states or listing.state.lower() in wanted_states)
            and (not wanted_types or listing.type in wanted_types)
        ]

    async def _load_unseen(self) -> None:
        """Load groups that commits without membership have made in the store since their slot was loaded."""
        for slot in self._registry.slots.all():
            groups = self._registry.in_slot(slot)
            if not groups.unseen:
                continue
            names, groups.unseen = groups.unseen, set()
            try:
                async with asyncio.timeout(self._registry.slots.store_timeout_ms / 1000):
                    rows = await self._registry.metadata.list_groups(slot.key)
            except (MetadataError, TimeoutError) as error:
                groups.unseen |= names
                raise CoordinatorNotAvailable(f"groups cannot be listed now: {error}") from error
            for row in rows:
                if not slot.gone and row.group_id not in groups.loaded:
                    self._registry.load_group(slot, row)

    async def delete(self, group_id: str, *, caller: Caller) -> None:
        """Delete a group and its offsets. Raises GroupNotFound, GroupNotEmpty."""
        await self._registry.ready(group_id)
        slot = self._registry.slot_for(group_id)
        await self._registry.slots.fenced(slot, self._delete(slot, group_id))

    async def _delete(self, slot: HeldSlot, group_id: str) -> None:
        group = self._registry.in_slot(slot).loaded.get(group_id)
        if group is None:
            deleted = await self._registry.metadata.delete_group(group_id, slot.fence)
        else:
            async with group.offsets_lock:
                if group.machine.state is not GroupState.EMPTY:
                    raise GroupNotEmpty(f"group {group_id} has members")
                while group.saving is not None:  # the write that says that the group is empty
                    await asyncio.wait({group.saving})
                deleted = await self._registry.metadata.delete_group(group_id, slot.fence)
                if group.is_blank:
                    self._registry.forget(group)
        if not deleted:
            raise GroupNotFound(f"there is no group {group_id}")


def _only_ids_given_out(group: LoadedGroup) -> bool:
    """The group is in memory only because member ids were given out: it does not exist yet."""
    return not group.stored and group.machine.state is GroupState.EMPTY


def _without_members(group_id: str) -> ClassicGroupView:
    return ClassicGroupView(group_id=group_id, state=GroupState.EMPTY, protocol_type="", protocol_name="", members=())


def _listing(group: LoadedGroup) -> GroupListing:
    machine = group.machine
    protocol_type = machine.protocol_type if isinstance(machine, ClassicGroup) else PROTOCOL_TYPE
    return GroupListing(
        group_id=group.group_id, protocol_type=protocol_type, state=machine.state, type=GroupType(group.type)
    )
