"""Flush requests: the leader flushes what was asked for and says so; a failed flush leaves the request open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from streamhouse.core.errors import NotLeader
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.maintenance.flush_requests import FlushRequests
from streamhouse.metadata.contract import FlushRequest, NewTopic
from streamhouse.metadata.sqlite.store import SqliteMetadata
from virtual_time import LoopClock, run_virtually

KEYS = [PartitionKey(TopicId(UUID(int=1)), number) for number in range(4)]
FIRST, SECOND = UUID(int=101), UUID(int=102)


class Log:
    """A leased log as far as the loop sees it."""

    def __init__(self) -> None:
        self.led: set[PartitionKey] = set()
        self.broken: set[PartitionKey] = set()
        self.flushed: list[PartitionKey] = []
        self.held_is_in_the_way = False
        self.swept_s: list[float] = []

    def led_keys(self) -> set[PartitionKey]:
        return self.led

    async def flush(self, keys: Sequence[PartitionKey]) -> None:
        await asyncio.sleep(0.01)
        for key in keys:
            if key in self.broken:
                raise NotLeader(str(key), current_leader=None)
            self.flushed.append(key)

    async def sweep_held(self) -> int:
        self.swept_s.append(asyncio.get_running_loop().time())
        self.held_is_in_the_way = False
        return 0


class Metadata(SqliteMetadata):
    """Counts the looks at the requests."""

    looks = 0

    async def list_flush_requests(self, keys: Sequence[PartitionKey] | None = None) -> list[FlushRequest]:
        self.looks += 1
        return await super().list_flush_requests(keys)


Story = Callable[[Metadata, Log], Awaitable[None]]


def play(story: Story) -> None:
    async def run() -> None:
        log = Log()
        metadata = Metadata(":memory:", clock=LoopClock(), randomness=SeededRandomness(1), threads=False)
        async with metadata:
            await metadata.create_topic(NewTopic(topic_id=KEYS[0].topic_id, name="t", partition_count=4, configs={}))
            requests = FlushRequests(metadata=metadata, log=log)  # type: ignore[arg-type]
            requests.start()
            try:
                await story(metadata, log)
            finally:
                await requests.close()

    run_virtually(run())


def test_what_is_led_here_is_flushed_at_once_and_answered() -> None:
    async def story(metadata: Metadata, log: Log) -> None:
        log.led = {KEYS[0], KEYS[1]}
        await asyncio.sleep(0.5)
        await metadata.request_flush(FIRST, KEYS[:2], ttl_ms=60_000)
        await asyncio.sleep(0.1)  # less than the time after which it would look anyway
        assert sorted(log.flushed) == KEYS[:2]
        assert await metadata.pending_flush(FIRST) == []

    play(story)


def test_what_another_agent_leads_is_left_to_it() -> None:
    async def story(metadata: Metadata, log: Log) -> None:
        log.led = {KEYS[0]}
        await metadata.request_flush(FIRST, KEYS[:2], ttl_ms=60_000)
        await asyncio.sleep(5)
        assert log.flushed == [KEYS[0]]
        assert await metadata.pending_flush(FIRST) == [KEYS[1]]
        log.led = {KEYS[1]}  # it leads it now, and no notification says so
        await asyncio.sleep(1.5)
        assert await metadata.pending_flush(FIRST) == []

    play(story)


def test_a_flush_that_fails_leaves_its_own_request_open_until_it_works() -> None:
    async def story(metadata: Metadata, log: Log) -> None:
        log.led, log.broken = set(KEYS), {KEYS[2]}
        await metadata.request_flush(FIRST, KEYS, ttl_ms=60_000)
        await asyncio.sleep(1.5)
        assert await metadata.pending_flush(FIRST) == [KEYS[2]]
        log.broken = set()
        await asyncio.sleep(1.5)
        assert await metadata.pending_flush(FIRST) == []

    play(story)


def test_two_requests_for_a_partition_are_one_flush() -> None:
    async def story(metadata: Metadata, log: Log) -> None:
        await asyncio.sleep(0.5)
        await metadata.request_flush(FIRST, KEYS[:1], ttl_ms=60_000)
        await metadata.request_flush(SECOND, KEYS[:1], ttl_ms=60_000)
        log.led = {KEYS[0]}
        await asyncio.sleep(2)
        assert log.flushed == [KEYS[0]]
        assert await metadata.pending_flush(FIRST) == await metadata.pending_flush(SECOND) == []

    play(story)


def test_an_agent_that_leads_nothing_does_not_ask_for_requests() -> None:
    async def story(metadata: Metadata, log: Log) -> None:
        await metadata.request_flush(FIRST, KEYS, ttl_ms=60_000)
        await asyncio.sleep(10)
        assert metadata.looks == 0

    play(story)


def test_held_frames_are_swept_each_minute_and_at_once_when_they_are_in_the_way() -> None:
    async def story(metadata: Metadata, log: Log) -> None:
        await asyncio.sleep(130)
        assert len(log.swept_s) == 2
        log.held_is_in_the_way = True
        await asyncio.sleep(2.5)
        assert len(log.swept_s) == 3

    play(story)
