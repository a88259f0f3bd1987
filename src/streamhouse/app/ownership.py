"""What follows when this agent gains or loses a lease: a partition, or a coordinator slot, is opened or closed.

The cluster view is told too: of a lease that begins once the partition is open, of one that ends before it is closed.
"""

from __future__ import annotations

from typing import Protocol

from streamhouse.cluster.contract import Loss
from streamhouse.cluster.lease_table import LeaseGuard
from streamhouse.cluster.member import FleetMember
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased.log import LeasedLog
from streamhouse.maintenance.topic_watch import TopicWatch
from streamhouse.metadata.contract import Lease, LeaseKey, SlotKey


class Routes(Protocol):
    """Learns which partitions and slots this agent serves. The owner of the leases calls it."""

    def gained(self, lease: Lease) -> None: ...
    def leaving(self, key: LeaseKey) -> None: ...
    def ended(self, key: LeaseKey) -> None: ...


class SlotServer(Protocol):
    """Serves the consumer groups of the coordinator slots that this agent holds."""

    async def gained(self, lease: Lease, *, guard: LeaseGuard) -> None: ...
    async def losing(self, slot: SlotKey) -> None: ...
    def lost(self, slot: SlotKey) -> None: ...


class LogOwner:
    """Connects the cluster with what its leases protect. Neither knows the other."""

    def __init__(self) -> None:
        self._log: LeasedLog | None = None
        self._member: FleetMember | None = None
        self._topics: TopicWatch | None = None
        self._routes: Routes | None = None
        self._slots: SlotServer | None = None

    def attach(
        self,
        *,
        log: LeasedLog,
        member: FleetMember,
        topics: TopicWatch,
        routes: Routes | None = None,
        slots: SlotServer | None = None,
    ) -> None:
        """Without ``slots``, this agent holds coordinator slots and does nothing with them."""
        self._log, self._member, self._topics = log, member, topics
        self._routes, self._slots = routes, slots

    async def gained(self, lease: Lease) -> None:
        log, member = self._parts()
        guard = member.lease_table.guard(lease.key)
        if isinstance(lease.key, PartitionKey):
            assert self._topics is not None
            topic = await self._topics.get(lease.key.topic_id)
            await log.open_partition(lease, topic, guard=guard)
        elif self._slots is not None:
            await self._slots.gained(lease, guard=guard)
        if self._routes is not None and guard.valid():
            self._routes.gained(lease)

    async def losing(self, key: LeaseKey) -> int:
        log, _ = self._parts()
        if self._routes is not None:
            self._routes.leaving(key)
        if isinstance(key, PartitionKey):
            next_offset = await log.close_partition(key)
            log.drop_partition(key, "its leadership was handed over")
            return next_offset
        if self._slots is not None:
            await self._slots.losing(key)
        return 0

    def lost(self, key: LeaseKey, reason: Loss) -> None:
        log, _ = self._parts()
        self._end_route(key)
        if isinstance(key, PartitionKey):
            log.drop_partition(key, f"its lease is {reason.value}")
        elif self._slots is not None:
            self._slots.lost(key)

    def dropped(self, key: LeaseKey, reason: str) -> None:
        """The log, or the coordinator, gave it up by itself; the lease must not outlive that."""
        _, member = self._parts()
        self._end_route(key)
        member.give_up(key, reason)

    def _end_route(self, key: LeaseKey) -> None:
        if self._routes is not None:
            self._routes.ended(key)

    def _parts(self) -> tuple[LeasedLog, FleetMember]:
        assert self._log is not None, "attach comes before the member starts"
        assert self._member is not None
        return self._log, self._member
