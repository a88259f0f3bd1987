"""Coordinators on a real metadata store: two agents, one slot to hand about, a clock in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar
from uuid import UUID

from slot_view import Guard, SlotView
from streamhouse.broker.caller import Caller
from streamhouse.broker.groups.contract import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from streamhouse.broker.groups.coordinator import GroupCoordinator
from streamhouse.broker.groups.offsets import CommitRequest, Outcomes
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.slots.slots import Slots
from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import (
    HeldLease,
    Holder,
    Lease,
    MetadataStore,
    NewTopic,
    OffsetCommit,
    SlotKey,
    Topic,
    slot_of,
)

T = TypeVar("T")
CALLER = Caller(protocol="test")
GROUP = "readers"
SLOT = slot_of(GROUP)
WAIT_S = 10.0


class View(SlotView):
    """The topics, as a cluster view would have them, and what a test says of slots."""

    def __init__(self, store: MetadataStore) -> None:
        super().__init__()
        self._store = store
        self._known: list[Topic] = []

    def topics(self) -> list[Topic]:
        return self._known

    async def all_topics(self) -> list[Topic]:
        self._known = await self._store.list_topics()
        return self._known


class Agent:
    """One process with a coordinator."""

    def __init__(
        self,
        name: str,
        store: MetadataStore,
        clock: ManualClock,
        options: GroupOptions,
        seed: int,
        slot_options: dict[str, int],
    ) -> None:
        self.randomness = SeededRandomness(seed)
        self.store = store
        self.clock = clock
        self.holder = Holder(agent_id=name, incarnation=self.randomness.uuid(), wal_id=self.randomness.uuid())
        self.dropped: list[SlotKey] = []
        self.guard = Guard()
        self.view = View(store)
        self.opening: set[SlotKey] = set()
        self.taking_over: set[SlotKey] = set()
        self.slots = Slots(
            view=self.view,
            on_dropped=lambda slot, reason: self.dropped.append(slot),
            opening=lambda slot: slot in self.opening,
            taking_over=lambda slot: slot in self.taking_over,
            **slot_options,
        )
        self.groups = GroupCoordinator(
            metadata=store,
            view=self.view,
            clock=clock,
            randomness=self.randomness,
            options=options,
            slots=self.slots,
        )

    async def lease(self, slot: SlotKey = SLOT) -> Lease:
        return await self.store.acquire_partition_lease(slot, self.holder, ttl_ms=30_000)

    async def lead(self, slot: SlotKey = SLOT) -> Lease:
        lease = await self.lease(slot)
        self.guard = Guard()
        await self.slots.gained(lease, guard=self.guard)
        return lease

    async def release(self, lease: Lease) -> None:
        await self.store.release_leases(self.holder, [HeldLease(key=lease.key, epoch=lease.epoch)])

    # Classic members.

    async def join(self, member_id: str = "", *, group: str = GROUP, **changes: Any) -> JoinResult:
        fields: dict[str, Any] = {
            "group_id": group,
            "member_id": member_id,
            "instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": (("range", b"\0\0\0\0\0\1\0\6orders\0\0\0\0"),),
            "known_id_required": False,
        }
        return await soon(self.groups.members.join(JoinRequest(**{**fields, **changes}), caller=CALLER))

    async def sync(
        self, member_id: str, generation: int, *assignments: tuple[str, bytes], group: str = GROUP
    ) -> SyncResult:
        request = SyncRequest(group_id=group, generation=generation, member_id=member_id, assignments=assignments)
        return await soon(self.groups.members.sync(request, caller=CALLER))

    async def heartbeat(self, member_id: str, generation: int, *, group: str = GROUP) -> int:
        return await code(
            self.groups.members.heartbeat(
                group, member_id=member_id, instance_id=None, generation=generation, caller=CALLER
            )
        )

    async def stable_member(self, *, group: str = GROUP) -> JoinResult:
        joined = await self.join(group=group)
        await self.sync(joined.member_id, joined.generation, (joined.member_id, b"all"), group=group)
        return joined

    # KIP-848 members.

    async def consumer(self, member_id: str, epoch: int, **changes: Any) -> ConsumerHeartbeatResult:
        fields: dict[str, Any] = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch}
        if epoch == 0:
            fields |= {"rebalance_timeout_ms": 60_000, "topic_names": ("orders",), "owned": frozenset()}
        return await soon(
            self.groups.members.consumer_heartbeat(ConsumerHeartbeat(**{**fields, **changes}), caller=CALLER)
        )

    # Offsets.

    async def commit(
        self, offset: int, key: PartitionKey, *, member_id: str = "", generation: int = -1, group: str = GROUP
    ) -> int:
        outcomes = await self.commit_all(
            [OffsetCommit(key=key, offset=offset)], member_id=member_id, generation=generation, group=group
        )
        error = outcomes[key]
        return 0 if error is None else error.kafka_code

    async def commit_all(
        self, offsets: list[OffsetCommit], *, member_id: str = "", generation: int = -1, group: str = GROUP
    ) -> Outcomes:
        request = CommitRequest(
            group_id=group, member_id=member_id, instance_id=None, generation=generation, offsets=offsets
        )
        return await soon(self.groups.offsets.commit(request, caller=CALLER))

    async def fetch(self, key: PartitionKey, *, group: str = GROUP) -> int:
        found = await soon(self.groups.offsets.fetch(group, keys=[key], caller=CALLER))
        return found[key].offset if key in found else -1


async def soon(call: Awaitable[T]) -> T:
    """Nothing here may take long, and a test that waits for ever says so."""
    async with asyncio.timeout(WAIT_S):
        return await call


async def code(call: Awaitable[object]) -> int:
    try:
        await soon(call)
    except StreamHouseError as error:
        return error.kafka_code
    return 0


class Stage:
    def __init__(
        self, stores: list[MetadataStore], options: GroupOptions, slot_options: dict[str, int] | None = None
    ) -> None:
        self.clock = ManualClock()
        self.first, self.second = (
            Agent(name, store, self.clock, options, seed, slot_options or {})
            for seed, (name, store) in enumerate(zip(("first", "second"), stores, strict=True))
        )
        self._ids = SeededRandomness(99)

    def uuid(self) -> UUID:
        return self._ids.uuid()

    async def topic(self, name: str = "orders", partitions: int = 4) -> Topic:
        topic = NewTopic(topic_id=TopicId(self.uuid()), name=name, partition_count=partitions, configs={})
        return await self.first.store.create_topic(topic)

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        for agent in (self.first, self.second):
            agent.groups.registry.run_due()

    async def take_over(self, lease: Lease) -> Lease:
        """The first agent is cut off; the second gets the slot."""
        await self.first.release(lease)
        return await self.second.lead()

    async def close(self) -> None:
        for agent in (self.first, self.second):
            await agent.groups.close()
