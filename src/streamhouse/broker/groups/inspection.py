"""Looking at groups and deleting them: what admin tools ask. Only groups this agent coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from streamhouse.broker.groups import classic_state
from streamhouse.broker.groups.cell import Cell, Slot
from streamhouse.broker.groups.classic import ClassicGroup
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.contract import (
    ClassicGroupView,
    ConsumerGroupView,
    GroupListing,
    GroupState,
    GroupType,
)
from streamhouse.broker.groups.registry import Registry
from streamhouse.core.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    GroupNotEmpty,
    GroupNotFound,
    MetadataError,
)
from streamhouse.metadata.contract import Group

_CONSUMER_TYPE = "consumer"


class Inspection:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def describe_classic(self, group_id: str) -> ClassicGroupView:
        """Raises GroupNotFound, also for a group of the other kind."""
        await self._registry.ready(group_id)
        slot = self._registry.slot_for(group_id)
        cell = slot.cells.get(group_id)
        if cell is None:
            await self._registry.bounded(slot, self._registry.metadata.get_group(group_id))
            return _simple(group_id)
        if not isinstance(cell.machine, ClassicGroup):
            raise GroupNotFound(f"group {group_id} is not a classic group")
        if _is_nothing(cell):
            raise GroupNotFound(f"there is no group {group_id}")
        return classic_state.describe(cell.machine)

    async def describe_consumer(self, group_id: str) -> ConsumerGroupView:
        """Raises GroupNotFound, also for a classic group: the admin client then asks for that."""
        await self._registry.ready(group_id)
        cell = self._registry.find(group_id)
        if cell is None or not isinstance(cell.machine, ConsumerGroup):
            raise GroupNotFound(f"group {group_id} is not a consumer group")
        return cell.machine.describe()

    async def list_groups(self, *, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        """Of this coordinator; empty filters let everything through. Names of states and types in any case."""
        if any(slot.loading for slot in self._registry.slots.values()):
            raise CoordinatorLoading("groups are being read")
        await self._see_unseen()
        wanted_states = {state.lower() for state in states}
        wanted_types = {kind.lower() for kind in types}
        found = [_listing(cell) for cell in self._registry.cells() if cell.slot.authority() and not _is_nothing(cell)]
        return [
            listing
            for listing in found
            if (not wanted_states or listing.state.lower() in wanted_states)
            and (not wanted_types or listing.type in wanted_types)
        ]

    async def _see_unseen(self) -> None:
        """Groups that simple commits made in the store since their slot was read."""
        for slot in list(self._registry.slots.values()):
            if not slot.unseen:
                continue
            names, slot.unseen = slot.unseen, set()
            try:
                async with asyncio.timeout(self._registry.options.store_timeout_ms / 1000):
                    groups = await self._registry.metadata.list_groups(slot.fence.slot)
            except (MetadataError, TimeoutError) as error:
                slot.unseen |= names
                raise CoordinatorNotAvailable(f"groups cannot be listed now: {error}") from error
            self._take(slot, groups)

    def _take(self, slot: Slot, groups: list[Group]) -> None:
        for group in groups:
            if not slot.gone and group.group_id not in slot.cells:
                self._registry.load(slot, group)

    async def delete(self, group_id: str) -> None:
        """With its offsets. Raises GroupNotFound, GroupNotEmpty."""
        await self._registry.ready(group_id)
        slot = self._registry.slot_for(group_id)
        await self._registry.bounded(slot, self._delete(slot, group_id))

    async def _delete(self, slot: Slot, group_id: str) -> None:
        cell = slot.cells.get(group_id)
        if cell is None:
            deleted = await self._registry.metadata.delete_group(group_id, slot.fence)
        else:
            async with cell.order:
                if cell.machine.state is not GroupState.EMPTY:
                    raise GroupNotEmpty(f"group {group_id} has members")
                while cell.saving is not None:  # it may have just become empty, which the store does not know yet
                    await asyncio.wait({cell.saving})
                deleted = await self._registry.metadata.delete_group(group_id, slot.fence)
                if cell.is_blank:
                    self._registry.forget(cell)
        if not deleted:
            raise GroupNotFound(f"there is no group {group_id}")


def _is_nothing(cell: Cell) -> bool:
    """In memory only because of ids that were given out."""
    return not cell.stored and cell.machine.state is GroupState.EMPTY


def _simple(group_id: str) -> ClassicGroupView:
    return ClassicGroupView(group_id=group_id, state=GroupState.EMPTY, protocol_type="", protocol_name="", members=())


def _listing(cell: Cell) -> GroupListing:
    machine = cell.machine
    protocol_type = machine.protocol_type if isinstance(machine, ClassicGroup) else _CONSUMER_TYPE
    return GroupListing(
        group_id=cell.group_id, protocol_type=protocol_type, state=machine.state, type=GroupType(cell.type)
    )
