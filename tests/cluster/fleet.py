"""A fleet of members in one virtual-time event loop, on one real SQLite store, with a link per agent that can fail.

Time passes only when all tasks sleep, so hours of leases run in milliseconds and no test depends on how fast it runs.
The fleet watches all the while that no two agents hold a valid guard on the same key.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable

from fleet_ground import Link

from streamhouse.cluster.assigner import Assigner
from streamhouse.cluster.contract import HealthState, Loss, Mode, Timings
from streamhouse.cluster.lease_table import Stage
from streamhouse.cluster.member import FleetMember
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import (
    AgentInfo,
    Durability,
    Holder,
    Lease,
    LeaseKey,
    NewTopic,
    SlotKey,
    Topic,
    Transfer,
    WriteMode,
)
from streamhouse.metadata.sqlite.store import SqliteMetadata
from virtual_time import LoopClock, run_virtually

FAST = Timings(
    heartbeat_interval_ms=2_000,
    liveness_timeout_ms=6_000,
    lease_ttl_ms=6_000,
    renew_interval_ms=2_000,
    assign_interval_ms=2_000,
    transfer_timeout_ms=4_000,
    margin_ms=600,
)
DEFAULT = Timings(
    heartbeat_interval_ms=20_000,
    liveness_timeout_ms=60_000,
    lease_ttl_ms=30_000,
    renew_interval_ms=10_000,
    assign_interval_ms=30_000,
    transfer_timeout_ms=10_000,
    margin_ms=3_000,
)
SINGLE = Timings(
    heartbeat_interval_ms=2_000,
    liveness_timeout_ms=6_000,
    lease_ttl_ms=None,
    renew_interval_ms=2_000,
    assign_interval_ms=2_000,
    transfer_timeout_ms=4_000,
    margin_ms=600,
)


class Ledger:
    """The owner: writes down what it is told, and fails the test at once when that breaks the owner's contract."""

    def __init__(self) -> None:
        self.open: dict[LeaseKey, int] = {}
        self.opening: set[LeaseKey] = set()
        self.history: defaultdict[LeaseKey, list[str]] = defaultdict(list)
        self.losses: list[tuple[LeaseKey, Loss]] = []
        self.broken: list[str] = []
        self.gained_s = 0.0
        self.flush_s = 0.0
        self.next_offset = 0
        self.cannot_open: Counter[LeaseKey] = Counter()
        self.cannot_flush: set[LeaseKey] = set()

    async def gained(self, lease: Lease) -> None:
        key = lease.key
        self._expect(key not in self.open and key not in self.opening, f"{key} gained twice")
        self.opening.add(key)
        try:
            await asyncio.sleep(self.gained_s)
            if self.cannot_open[key]:
                self.cannot_open[key] -= 1
                raise OSError("disk problem")
        except BaseException:
            self.opening.discard(key)
            raise
        self._expect(key in self.opening, f"{key} opened after it was lost")
        self.opening.discard(key)
        self.open[key] = lease.epoch
        self.history[key].append(f"gained {lease.epoch}")

    async def losing(self, key: LeaseKey) -> int:
        self._expect(key in self.open, f"{key} losing, not open")
        self.history[key].append("losing")
        await asyncio.sleep(self.flush_s)
        if key in self.cannot_flush:
            raise OSError("disk problem")
        self._expect(self.open.pop(key, None) is not None, f"{key} flushed after it was lost")
        return self.next_offset

    def lost(self, key: LeaseKey, reason: Loss) -> None:
        self._expect(key in self.open or key in self.opening, f"{key} lost ({reason}), not open")
        self.open.pop(key, None)
        self.opening.discard(key)
        self.losses.append((key, reason))
        self.history[key].append(f"lost: {reason}")

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.broken.append(otherwise)


class FleetAgent:
    def __init__(self, fleet: Fleet, agent_id: str, *, group: str, timings: Timings, mode: Mode) -> None:
        self.id = agent_id
        self.group = group
        self.link = Link(fleet.store)
        self.owner = Ledger()
        self.fatal: list[Exception] = []
        self.incarnation = fleet.ids.uuid()
        self.member = FleetMember(
            metadata=self.link,  # type: ignore[arg-type]
            clock=fleet.clock,
            randomness=SeededRandomness(fleet.ids.uuid().int),
            info=AgentInfo(
                agent_id=agent_id,
                incarnation=self.incarnation,
                listeners={"kafka": f"{agent_id}:9092"},
                agent_group=group,
            ),
            wal_id=fleet.wal_id if mode is Mode.SINGLE_NODE else fleet.ids.uuid(),
            timings=timings,
            owner=self.owner,
            mode=mode,
            on_fatal=self.fatal.append,
        )

    @property
    def partitions(self) -> set[PartitionKey]:
        return {key for key in self.owner.open if isinstance(key, PartitionKey)}

    @property
    def running(self) -> bool:
        return self.member.health.state in (HealthState.OK, HealthState.DEGRADED)

    def valid(self, key: LeaseKey) -> bool:
        return self.member.lease_table.guard(key).valid()

    async def kill(self) -> None:
        """End as by kill -9: the store hears nothing of it."""
        self.link.down = True
        await self.member.stop(graceful=False)


class Fleet:
    def __init__(self, store: SqliteMetadata, clock: LoopClock) -> None:
        self.store = store
        self.clock = clock
        self.ids = SeededRandomness(7)
        self.wal_id = self.ids.uuid()
        self.agents: list[FleetAgent] = []
        self.two_leaders: list[str] = []

    def make(
        self, *agent_ids: str, group: str = "default", timings: Timings = FAST, mode: Mode = Mode.FLEET
    ) -> list[FleetAgent]:
        made = [FleetAgent(self, agent_id, group=group, timings=timings, mode=mode) for agent_id in agent_ids]
        self.agents += made
        return made

    async def start(
        self, *agent_ids: str, group: str = "default", timings: Timings = FAST, mode: Mode = Mode.FLEET
    ) -> list[FleetAgent]:
        made = self.make(*agent_ids, group=group, timings=timings, mode=mode)
        for agent in made:
            await agent.member.start()
        return made

    async def topic(
        self, name: str = "orders", partitions: int = 12, *, leaderless: bool = False, group: str | None = None
    ) -> Topic:
        return await self.store.create_topic(
            NewTopic(
                topic_id=TopicId(self.ids.uuid()),
                name=name,
                partition_count=partitions,
                configs={} if group is None else {"agent.group": group},
                write_mode=WriteMode.LEADERLESS if leaderless else WriteMode.LEASED,
            )
        )

    async def until(self, condition: Callable[[], bool], *, within_s: float = 120.0) -> float:
        """How long it took. Fails rather than waiting for ever."""
        began_s = self.now_s()
        while not condition():
            if self.now_s() - began_s > within_s:
                views = [agent.member.describe() for agent in self.agents]
                raise AssertionError(f"not within {within_s} s: {views}")
            await asyncio.sleep(0.02)
        return self.now_s() - began_s

    async def settled(self, *, within_s: float = 120.0) -> float:
        """Every partition and slot is served by exactly the running agent that the ring names."""
        began_s = self.now_s()
        while (why := await self._unsettled()) is not None:
            if self.now_s() - began_s > within_s:
                raise AssertionError(f"not settled within {within_s} s: {why}")
            await asyncio.sleep(0.02)
        return self.now_s() - began_s

    async def _unsettled(self) -> str | None:
        running = [agent for agent in self.agents if agent.running]
        members = {(agent.group, agent.id) for agent in running}
        wanted = Assigner().wish(members, await self.store.list_topics()).leader_of
        for agent in running:
            view = agent.member.describe()
            missing = {key for key, leader in wanted.items() if leader == agent.id} ^ agent.owner.open.keys()
            if missing:
                return f"{agent.id} leads too little or too much: {missing}"
            if view.handing_over or view.taking_over or any(lease.stage != Stage.SERVING for lease in view.leases):
                return f"{agent.id} is busy"
        return None

    def leaders(self, key: LeaseKey) -> list[str]:
        return [agent.id for agent in self.agents if agent.valid(key) and key in agent.owner.open]

    def now_s(self) -> float:
        return self.clock.boot_ms() / 1000

    async def lease(self, key: LeaseKey) -> Lease:
        (lease,) = await self.store.list_leases(keys=[key])
        return lease

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.05)

    def look(self) -> None:
        """Two processes under one agent id do not count: the second takes over at once; the store fences the first."""
        valid: defaultdict[LeaseKey, set[str]] = defaultdict(set)
        for agent in self.agents:
            for leadership in agent.member.lease_table:
                if leadership.valid():
                    valid[leadership.key].add(agent.id)
        self.two_leaders += [f"{key}: {ids}" for key, ids in valid.items() if len(ids) > 1]


class Phantom:
    """An agent that only the test moves: alive in the store, answering transfers as the test says, or not at all."""

    def __init__(self, fleet: Fleet, agent_id: str) -> None:
        self.holder = Holder(agent_id=agent_id, incarnation=fleet.ids.uuid(), wal_id=fleet.ids.uuid())
        self.offered: list[Transfer] = []
        self._store = fleet.store
        self._task: asyncio.Task[None] | None = None

    async def appear(
        self, on_offer: Callable[[Transfer], Awaitable[None]] | None = None, *, group: str = "default"
    ) -> None:
        await self._store.register_agent(
            AgentInfo(
                agent_id=self.holder.agent_id,
                incarnation=self.holder.incarnation,
                listeners={"kafka": "nowhere:1"},
                agent_group=group,
            )
        )
        self._task = asyncio.create_task(self._live(on_offer))

    async def _live(self, on_offer: Callable[[Transfer], Awaitable[None]] | None) -> None:
        seen: set[object] = set()
        while True:
            await self._store.heartbeat(self.holder.agent_id, self.holder.incarnation)
            for transfer in await self._store.list_transfers(agent_id=self.holder.agent_id):
                if transfer.transfer_id not in seen:
                    seen.add(transfer.transfer_id)
                    self.offered.append(transfer)
                    if on_offer is not None:
                        await on_offer(transfer)
            await asyncio.sleep(0.05)

    async def accept(self, transfer: Transfer) -> None:
        await self._store.accept_transfer(transfer.transfer_id, target=self.holder)

    async def reject(self, transfer: Transfer) -> None:
        await self._store.reject_transfer(
            transfer.transfer_id, agent_id=self.holder.agent_id, reason="it does not feel like it"
        )

    async def vanish(self) -> None:
        """Silently: the store thinks it alive until its heartbeat is too old."""
        if self._task is not None:
            self._task.cancel()


def fleet_story(story: Callable[[Fleet], Awaitable[None]], *, durability: Durability = Durability.OBJECT) -> None:
    """Run a story to its end, and check what every story must keep."""

    async def tell() -> None:
        clock = LoopClock()
        store = SqliteMetadata(":memory:", clock=clock, randomness=SeededRandomness(99), threads=False)
        async with store:
            fleet = Fleet(store, clock)
            await store.bind_durability(durability, fleet.wal_id if durability is Durability.WAL else None)
            watcher = asyncio.create_task(fleet.watch())
            try:
                await story(fleet)
                fleet.look()
            finally:
                for agent in fleet.agents:
                    await agent.member.stop(graceful=False)
                watcher.cancel()
            assert fleet.two_leaders == []
            for agent in fleet.agents:
                assert agent.owner.broken == []
                assert agent.owner.open == {}, "a stopped member has told its owner about everything"

    run_virtually(tell())


SLOTS = frozenset(SlotKey(slot) for slot in range(50))
