"""The cluster: what leading many partitions costs, and how long a hand-over keeps a partition without a leader.

Real SQLite in a directory, an owner that does nothing: what is left is the cost of the cluster itself.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from report import heading, measure, row
from streamhouse.cluster.assigner import Assigner, plan
from streamhouse.cluster.contract import Loss, Timings
from streamhouse.cluster.lease_table import LeaseTable, Stage
from streamhouse.cluster.member import FleetMember
from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import AgentInfo, Lease, LeaseKey, NewTopic, Topic, WriteMode
from streamhouse.metadata.sqlite.store import SqliteMetadata

TIMINGS = Timings(
    heartbeat_interval_ms=20_000,
    liveness_timeout_ms=60_000,
    lease_ttl_ms=30_000,
    renew_interval_ms=10_000,
    assign_interval_ms=30_000,
    transfer_timeout_ms=10_000,
    margin_ms=3_000,
)


class Nothing:
    """Opens and closes at once, and writes down when."""

    def __init__(self) -> None:
        self.opened_s: dict[LeaseKey, float] = {}
        self.closed_s: dict[LeaseKey, float] = {}

    async def gained(self, lease: Lease) -> None:
        self.opened_s[lease.key] = time.perf_counter()

    async def losing(self, key: LeaseKey) -> int:
        self.closed_s[key] = time.perf_counter()
        return 0

    def lost(self, key: LeaseKey, reason: Loss) -> None:
        pass


class Agent:
    def __init__(self, agent_id: str, store: SqliteMetadata, seed: int) -> None:
        ids = SeededRandomness(seed)
        self.owner = Nothing()
        self.member = FleetMember(
            metadata=store,
            clock=SystemClock(),
            randomness=ids,
            info=AgentInfo(agent_id=agent_id, incarnation=ids.uuid(), listeners={"kafka": f"{agent_id}:9092"}),
            wal_id=ids.uuid(),
            timings=TIMINGS,
            owner=self.owner,
        )

    async def serves(self, count: int) -> None:
        await until(lambda: sum(held.stage is Stage.SERVING for held in self.member.lease_table) == count)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def main_async(directory: Path) -> None:
    for partitions in (1_000, 10_000):
        await measure_agent(directory / f"{partitions}.db", partitions)
    await measure_hand_over(directory / "handover.db", 1_000)


async def measure_agent(path: Path, partitions: int) -> None:
    async with SqliteMetadata(path, clock=SystemClock(), randomness=SeededRandomness(1)) as store:
        await make_topic(store, partitions)
        agent = Agent("a", store, seed=2)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        await agent.member.start()
        await agent.serves(partitions + 50)
        row(
            f"{partitions:,} partitions: start-up, acquired and opened",
            f"{(time.perf_counter() - wall_s) * 1e3:,.0f} ms",
            ratio=f"{(time.process_time() - cpu_s) * 1e6 / partitions:,.0f} µs CPU a partition, store included",
        )
        for name, call, interval_ms in (
            ("one renewal of all", agent.member._holdings.renew, TIMINGS.renew_interval_ms),
            ("one tick with nothing to do", agent.member._reconciler.tick, TIMINGS.assign_interval_ms),
        ):
            samples = []
            for _ in range(5):
                cpu_s = time.process_time()
                await call()
                samples.append(time.process_time() - cpu_s)
            cpu_s = statistics.median(samples)
            row(
                f"{partitions:,} partitions: {name}",
                f"{cpu_s * 1e3:,.0f} ms CPU",
                ratio=f"{cpu_s * 1e5 / interval_ms:.2f}% of a core at the default interval, store included",
            )
        await agent.member.stop(graceful=False)


async def measure_hand_over(path: Path, partitions: int) -> None:
    async with SqliteMetadata(path, clock=SystemClock(), randomness=SeededRandomness(1)) as store:
        await make_topic(store, partitions)
        a, b = Agent("a", store, seed=2), Agent("b", store, seed=3)
        await a.member.start()
        await b.member.start()
        await until(lambda: len(a.member.lease_table) + len(b.member.lease_table) == partitions + 50)
        mine = [leadership.key for leadership in a.member.lease_table]
        b.owner.opened_s.clear()
        began_s = time.perf_counter()
        await a.member.stop()
        await b.serves(partitions + 50)
        took_s = time.perf_counter() - began_s
        gaps_ms = sorted((b.owner.opened_s[key] - a.owner.closed_s[key]) * 1e3 for key in mine)
        row(f"graceful stop: {len(mine):,} leases handed over", f"{took_s:,.2f} s")
        row(
            "graceful stop: a partition without a leader, median",
            f"{statistics.median(gaps_ms):,.0f} ms",
            target="well under 1 s",
            ratio=f"p99 {gaps_ms[len(gaps_ms) * 99 // 100]:,.0f} ms",
        )
        await b.member.stop(graceful=False)


async def make_topic(store: SqliteMetadata, partitions: int) -> Topic:
    return await store.create_topic(
        NewTopic(topic_id=TopicId(UUID(int=1)), name="orders", partition_count=partitions, configs={})
    )


def measure_pure() -> None:
    for partitions in (1_000, 10_000):
        topic = Topic(
            topic_id=TopicId(UUID(int=1)),
            name="orders",
            partition_count=partitions,
            configs={},
            write_mode=WriteMode.LEASED,
            created_at_ms=0,
            version=1,
        )
        members = {("default", f"agent-{number}") for number in range(10)}
        wish = Assigner().wish(members, [topic])
        leases = {
            key: Lease(
                key=key,
                topic="orders",
                agent_id=leader or "",
                incarnation=UUID(int=2),
                epoch=1,
                acquired_at_ms=0,
                expires_at_ms=0,
                expired=False,
                high_watermark=0,
            )
            for key, leader in wish.leader_of.items()
        }
        held = set(wish.led_by("agent-1"))

        def decide(wish=wish, leases=leases, held=held) -> object:  # type: ignore[no-untyped-def]
            return plan(wish, leases, agent_id="agent-1", incarnation=UUID(int=9), held=held, busy=set())

        took = measure(decide)
        row(f"plan: {partitions:,} partitions, 10 agents", f"{took.cpu_s * 1e3:,.1f} ms")
    table = LeaseTable(clock=SystemClock(), ttl_ms=30_000, margin_ms=3_000)
    lease = next(iter(leases.values()))
    table.hold(lease, sent_ms=SystemClock().boot_ms())
    guard = table.guard(lease.key)

    def ask() -> None:
        for _ in range(10_000):
            guard.valid()

    row("guard.valid(), asked on every append", f"{measure(ask).cpu_s * 1e5:,.0f} ns")


def main() -> None:
    heading("Cluster: leases, ticks, hand-overs")
    measure_pure()
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as directory:
        asyncio.run(main_async(Path(directory)))


if __name__ == "__main__":
    main()
