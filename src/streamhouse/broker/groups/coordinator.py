"""The group coordinator of one agent: its parts, put together.

    members      join, sync, heartbeat, leave                      membership.py
    offsets      commit, fetch, delete                             offsets.py
    inspection   describe, list, delete                            inspection.py
    slots        which agent coordinates a group                   broker/slots

Decides nothing itself: the state machines do (classic.py, consumer.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from streamhouse.broker.caller import Caller
from streamhouse.broker.groups.housekeeping import Housekeeping
from streamhouse.broker.groups.inspection import Inspection
from streamhouse.broker.groups.membership import Membership
from streamhouse.broker.groups.offsets import Offsets
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.registry import Registry, TopicSource
from streamhouse.broker.nodes import Node
from streamhouse.broker.slots.slots import Slots
from streamhouse.core.clock import Clock
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import MetadataStore, slot_of


class GroupCoordinator:
    """Slots may be gained before ``start``, which starts the periodic work."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        view: TopicSource,
        clock: Clock,
        randomness: Randomness,
        slots: Slots,
        options: GroupOptions | None = None,
    ) -> None:
        self.slots = slots
        self.registry = Registry(
            metadata=metadata, view=view, clock=clock, options=options or GroupOptions(), slots=slots
        )
        self.members = Membership(self.registry, randomness)
        self.offsets = Offsets(self.registry)
        self.inspection = Inspection(self.registry)
        self.housekeeping = Housekeeping(self.registry)

    async def find_coordinators(self, group_ids: Iterable[str], *, caller: Caller) -> dict[str, Node | None]:
        """The agent that coordinates each group: it holds the group's slot, or is about to. None: no agent does now."""
        slots = {group_id: slot_of(group_id) for group_id in group_ids}
        nodes = await self.slots.coordinators.find(set(slots.values()))
        return {group_id: nodes[slot] for group_id, slot in slots.items()}

    def start(self) -> None:
        self.housekeeping.start()

    async def close(self) -> None:
        """Requests that still wait are refused with NotCoordinator. Closes the slots, too."""
        await self.housekeeping.close()
        await self.slots.close()
        self.registry.close()
