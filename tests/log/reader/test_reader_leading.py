"""The reader beside a real leader: a leased log on a real WAL, in both kinds of durability."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from reading import START_MS, Library, at_once, batch, batches, offsets_in, records_in, settle

from streamhouse.core.errors import NotLeader
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.leased.options import LeasedOptions
from streamhouse.log.leased.plan import FlushRules
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.log.wal.opening import open_wal
from streamhouse.log.wal.options import WalOptions
from streamhouse.log.wal.task_pump import TaskPump
from streamhouse.metadata.contract import Durability, HeldLease, Holder, Topic
from virtual_time import LoopClock


class Held:
    def valid(self) -> bool:
        return True


class Agent:
    """One process: a leader and a reader that share a tail cache."""

    def __init__(self, library: Library, log: LeasedLog, tail: TailCache, holder: Holder, reader: LogReader) -> None:
        self.library = library
        self.log = log
        self.tail = tail
        self.holder = holder
        self.reader = reader

    @classmethod
    async def start(
        cls,
        library: Library,
        directory: Path,
        *,
        durability: Durability,
        tail_bytes: int = 1 << 20,
        flush_interval_ms: int = 100,
    ) -> Agent:
        randomness = SeededRandomness(len(directory.name))
        wal, _ = await open_wal(
            directory,
            clock=LoopClock(),
            randomness=randomness,
            options=WalOptions(file_bytes=1 << 16, max_bytes=1 << 20),
            pump=TaskPump(),
        )
        tail = TailCache(tail_bytes)
        rules = FlushRules(segment_max_bytes=4096, segment_max_age_ms=60_000, flush_interval_ms=flush_interval_ms)
        log = LeasedLog(
            metadata=library.metadata,
            store=library.store,
            wal=wal,
            tail=tail,
            clock=LoopClock(),
            randomness=randomness,
            options=LeasedOptions(durability=durability, rules=rules, max_buffer_bytes=1 << 20),
        )
        log.start()
        library.push_async_callback(wal.close)
        library.push_async_callback(log.close)
        reader = library.reader(tail=tail, leading=log, durability=durability)
        holder = Holder(agent_id=directory.name, incarnation=randomness.uuid(), wal_id=wal.wal_id)
        return cls(library, log, tail, holder, reader)

    async def lead(self, topic: Topic) -> PartitionKey:
        (key,) = topic.partition_keys()
        lease = await self.library.metadata.acquire_partition_lease(key, self.holder, ttl_ms=30_000)
        await self.log.open_partition(lease, topic, guard=Held())
        return key


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
def test_a_reader_at_the_tail_follows_the_leader(tmp_path: Path, durability: Durability, tail_bytes: int) -> None:
    @at_once
    async def test() -> None:
        async with Library() as library:
            topic = await library.topic()
            agent = await Agent.start(library, tmp_path / "a", durability=durability, tail_bytes=tail_bytes)
            key = await agent.lead(topic)
            got: list[tuple[int, str]] = []

            async def follow() -> None:
                offset = 0
                while len(got) < 40:
                    result = await agent.reader.read(key, offset, max_bytes=300, max_wait_ms=500)
                    got.extend(records_in(result))
                    assert result.next_offset <= result.high_watermark
                    offset = result.next_offset

            following = asyncio.create_task(follow())
            for number, made in enumerate(batches(20)):
                agent.log.append(key, made, acks=1 if number % 2 else -1)
                await asyncio.sleep(0.03)
            await asyncio.wait_for(following, 60)
            assert got == [(offset, str(offset)) for offset in range(40)]
            if durability is Durability.WAL:
                assert asyncio.get_running_loop().time() < 1, "nobody waited for a flush"
            if tail_bytes:
                assert library.store.gets == []
                # First contact, the start of listening, the take-over, and a recheck every half second.
                assert library.partition_lookups <= 4 + asyncio.get_running_loop().time() / 0.5

    test()


def test_durability_wal_shows_what_is_synced_and_object_only_what_is_committed(tmp_path: Path) -> None:
    for durability in Durability:

        @at_once
        async def test(durability: Durability = durability) -> None:
            async with Library() as library:
                topic = await library.topic()
                agent = await Agent.start(library, tmp_path / durability, durability=durability, tail_bytes=0)
                key = await agent.lead(topic)
                agent.log.append(key, batch("a", "b", times=[5, 6]), acks=1)
                await settle()
                result = await agent.reader.read(key, 0, max_bytes=1000)
                ends = await agent.reader.end_offsets(key)
                found = await agent.reader.offset_for_timestamp(key, START_MS + 6)
                if durability is Durability.WAL:
                    assert (offsets_in(result), result.high_watermark, ends.high_watermark) == ([0, 1], 2, 2)
                    assert found == (1, START_MS + 6)
                else:
                    assert (offsets_in(result), result.high_watermark, ends.high_watermark) == ([], 0, 0)
                    assert found is None
                await agent.log.flush()
                assert offsets_in(await agent.reader.read(key, 0, max_bytes=1000)) == [0, 1]
                assert await agent.reader.max_timestamp_offset(key) == (1, START_MS + 6)

        test()


def test_a_waiting_reader_makes_the_leader_flush(tmp_path: Path) -> None:
    @at_once
    async def test() -> None:
        async with Library() as library:
            topic = await library.topic()
            agent = await Agent.start(library, tmp_path / "a", durability=Durability.OBJECT)
            key = await agent.lead(topic)
            for first_reader in (True, False):
                offset = 0 if first_reader else 1
                waiting = asyncio.create_task(agent.reader.read(key, offset, max_bytes=1000, max_wait_ms=50_000))
                await asyncio.sleep(5)
                before = asyncio.get_running_loop().time()
                agent.log.append(key, batch("x"), acks=1)  # nobody waits for its commit but the reader
                assert offsets_in(await waiting) == [offset]
                assert asyncio.get_running_loop().time() - before <= 0.1

    test()


def test_reads_cross_from_objects_to_the_buffer_without_a_seam(tmp_path: Path) -> None:
    @at_once
    async def test() -> None:
        async with Library() as library:
            topic = await library.topic()
            agent = await Agent.start(library, tmp_path / "a", durability=Durability.WAL, tail_bytes=1500)
            key = await agent.lead(topic)
            for number, made in enumerate(batches(60)):
                agent.log.append(key, made, acks=-1)
                if number % 20 == 10:
                    await agent.log.flush()
            await settle()
            partition = agent.log.partition(key)
            assert partition is not None
            assert 0 < partition.high_watermark < partition.visible_end
            for offset in range(0, 120, 7):
                result = await agent.reader.read(key, offset, max_bytes=1 << 20)
                assert offsets_in(result) == list(range(offset - offset % 2, 120))
            stats = agent.reader.stats
            assert min(stats.tail_bytes, stats.buffer_bytes, stats.object_bytes) > 0

    test()


def test_another_agents_reader_sees_what_is_committed_and_goes_on_after_a_take_over(tmp_path: Path) -> None:
    @at_once
    async def test() -> None:
        async with Library() as library:
            topic = await library.topic()
            one = await Agent.start(library, tmp_path / "one", durability=Durability.OBJECT)
            two = await Agent.start(library, tmp_path / "other", durability=Durability.OBJECT)
            key = await one.lead(topic)
            waiting = asyncio.create_task(two.reader.read(key, 0, max_bytes=1000, max_wait_ms=50_000))
            here = asyncio.create_task(one.reader.read(key, 0, max_bytes=1000, max_wait_ms=50_000))
            await asyncio.sleep(3)
            before = asyncio.get_running_loop().time()
            one.log.append(key, batch("a"), acks=-1)
            assert records_in(await waiting) == records_in(await here) == [(0, "a")]
            assert asyncio.get_running_loop().time() - before <= 0.1

            there = asyncio.create_task(one.reader.read(key, 1, max_bytes=1000, max_wait_ms=50_000))
            await settle()
            (lease,) = await library.metadata.list_leases()
            await library.metadata.release_leases(one.holder, [HeldLease(key=key, epoch=lease.epoch)])
            await two.lead(topic)
            two.log.append(key, batch("b"), acks=-1)
            assert records_in(await there) == [(1, "b")], "though its agent has not heard yet that it leads no more"
            one.log.drop_partition(key, "fenced")
            with pytest.raises(NotLeader):
                one.log.append(key, batch("c"), acks=-1)
            assert records_in(await one.reader.read(key, 0, max_bytes=1000)) == [(0, "a"), (1, "b")]

    test()
