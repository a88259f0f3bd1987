"""The group coordinator of one agent, put together: slots in, and what clients may ask for.

    members      join, sync, heartbeat, leave                      membership.py
    offsets      commit, fetch, delete                             offsets.py
    inspection   describe, list, delete                            inspection.py
    places       which agent coordinates a group                   places.py

Decides nothing itself: the machines do (classic.py, consumer.py).
"""

from __future__ import annotations

from collections.abc import Callable

from streamhouse.broker.groups.housekeeping import Housekeeping
from streamhouse.broker.groups.inspection import Inspection
from streamhouse.broker.groups.membership import Membership
from streamhouse.broker.groups.offsets import Offsets
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.registry import GroupsView, Registry
from streamhouse.cluster.lease_table import LeaseGuard
from streamhouse.core.clock import Clock
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import Lease, MetadataStore, SlotKey, slot_of


class GroupCoordinator:
    """Slots may be gained before ``start``, which begins what runs by itself."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        view: GroupsView,
        clock: Clock,
        randomness: Randomness,
        options: GroupOptions | None = None,
        on_dropped: Callable[[SlotKey, str], None] = lambda slot, reason: None,
        opening: Callable[[SlotKey], bool] = lambda slot: False,
        taking_over: Callable[[SlotKey], bool] = lambda slot: False,
    ) -> None:
        """``on_dropped``: told when the store says that a slot is another's; the lease must not outlive that.

        ``opening``, ``taking_over``: whether this agent is about to serve a slot; see Places.
        """
        self.registry = Registry(
            metadata=metadata,
            view=view,
            clock=clock,
            options=options or GroupOptions(),
            on_dropped=on_dropped,
            opening=opening,
            taking_over=taking_over,
        )
        self.places = self.registry.places
        self.members = Membership(self.registry, randomness)
        self.offsets = Offsets(self.registry)
        self.inspection = Inspection(self.registry)
        self.housekeeping = Housekeeping(self.registry)

    @staticmethod
    def slot_of(group_id: str) -> SlotKey:
        """The slot of a group; the agent that holds it coordinates the group."""
        return slot_of(group_id)

    def start(self) -> None:
        self.housekeeping.start()

    async def close(self) -> None:
        """Those who still wait are sent on."""
        await self.housekeeping.close()
        await self.registry.close()

    # Leases.

    async def gained(self, lease: Lease, *, guard: LeaseGuard) -> None:
        """The slot's groups are served when it returns."""
        await self.registry.gained(lease, guard)

    async def losing(self, slot: SlotKey) -> None:
        """What its members were told is in the store when it returns."""
        await self.registry.losing(slot)

    def lost(self, slot: SlotKey) -> None:
        self.registry.lost(slot)
