"""The maintenance that an agent runs by itself: what becomes of a log that nobody looks after (S3.2, S2.8, S2.45)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pytest

from streamhouse.app.log_parts import upkeep_options
from streamhouse.app.platform import StreamHouse
from streamhouse.core.errors import MetadataUnavailable, OffsetOutOfRange
from streamhouse.core.limits import MIB
from streamhouse.core.settings import resolve
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.upkeep import Upkeep, brake
from streamhouse.metadata.contract import ScanRange
from streamhouse.objectstore.keys import SHARED_BLOB_PREFIX, TOPICS_PREFIX, SharedBlobKey

LIMIT = 2 * MIB
OFTEN = {
    "maintenance_retention_interval": "1s",
    "maintenance_compaction_interval": "1s",
    "maintenance_garbage_max_bytes": "1MiB",
}


def upkeep_of(api: StreamHouse) -> Upkeep:
    assert api.agent.upkeep is not None
    return api.agent.upkeep


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


async def stored_bytes(api: StreamHouse) -> int:
    return sum([info.size_bytes async for info in api.stores.objects.list(TOPICS_PREFIX)]) + sum(
        [info.size_bytes async for info in api.stores.objects.list(SHARED_BLOB_PREFIX)]
    )


async def write(api: StreamHouse, topic: str, size_bytes: int) -> int:
    """Records of a kilobyte that no codec shrinks; returns how many."""
    count = size_bytes // 1000
    for _ in range(count // 100):
        await asyncio.gather(*(api.produce(topic, os.urandom(1000), partition=0) for _ in range(100)))
    return count // 100 * 100


async def log_start(api: StreamHouse, topic: str) -> int:
    key = (await api.topic(topic)).partition_keys()[0]
    (state,) = await api.stores.metadata.get_partitions([key])
    return state.log_start_offset


async def test_s3_2_a_size_limit_bounds_the_objects_on_a_single_node(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), **OFTEN) as api:
        await api.create_topic("orders", 1, configs={"retention.bytes": str(LIMIT)})
        written = await write(api, "orders", 8 * LIMIT)

        async def is_small() -> bool:
            return await stored_bytes(api) <= LIMIT + 2 * MIB + MIB

        await until(is_small)
        start = await log_start(api, "orders")
        assert 0 < start < written
        assert upkeep_of(api).stats.retention_records == start
        with pytest.raises(OffsetOutOfRange):
            await api.read("orders", 0, start - 1)
        records = await api.read("orders", 0, start)
        assert records[0].offset == start


async def test_s3_2_records_older_than_retention_ms_go_by_themselves(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), **OFTEN) as api:
        await api.create_topic("orders", 1, configs={"retention.ms": "1000"})
        for _ in range(3):
            await api.produce("orders", b"old", timestamp_ms=1_000)
        await api.agent.log.flush()

        async def is_empty() -> bool:
            return await log_start(api, "orders") == 3

        await until(is_empty)
        produced = await api.produce("orders", b"new")
        assert produced.offset == 3
        assert [record.value for record in await api.read("orders", 0, 3)] == [b"new"]


async def test_s3_2_a_compacted_topic_is_left_alone_by_retention(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), **OFTEN) as api:
        await api.create_topic("state", 1, configs={"cleanup.policy": "compact", "retention.ms": "1"})
        await api.produce("state", b"kept", key=b"k", timestamp_ms=1_000)
        await api.agent.log.flush()

        async def has_passed() -> bool:
            return upkeep_of(api).stats.retention_passes >= 2

        await until(has_passed)
        assert await log_start(api, "state") == 0


async def test_upkeep_can_be_turned_off(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), maintenance_enabled=False) as api:
        assert api.agent.upkeep is None


async def test_s2_45_one_agent_holds_the_claim_and_vacuums_and_another_leaves_it_to_it(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), maintenance_enabled=False) as api:
        claim = await api.stores.metadata.acquire_claim("vacuum", owner="another agent", ttl_ms=60_000)
        assert claim.owner == "another agent"
        key = str(SharedBlobKey(created_ms=1, object_id=UUID(int=1)))
        await api.stores.objects.put(key, b"left by a writer that died")
        upkeep = Upkeep(
            metadata=api.stores.metadata,
            objects=api.stores.objects,
            leading=api.agent.log,
            offload=InlineOffload(),
            clock=api.clock,
            randomness=api.randomness,
            owner="this agent",
            options=upkeep_options(api.settings),
            report=lambda where, error: None,
        )
        assert not await upkeep.vacuum_once()
        assert upkeep.stats.vacuum_passes == 0
        await api.stores.metadata.release_claim("vacuum", owner="another agent")
        await upkeep.vacuum_once()
        assert upkeep.stats.vacuum_objects == 1
        assert [info.key async for info in api.stores.objects.list(SHARED_BLOB_PREFIX)] == []
        await upkeep.close()
        assert await api.stores.metadata.list_claims("vacuum") == []


def test_only_a_single_node_deletes_before_the_grace_is_over() -> None:
    alone = resolve(flags={}).require().settings
    fleet = resolve(flags={"metadata.url": "postgresql://db/x", "store.url": "s3://bucket"}).require().settings
    assert upkeep_options(alone).dereferenced_keep_bytes == 16 * MIB
    assert upkeep_options(fleet).dereferenced_keep_bytes is None


async def test_p_4_a_compacted_topic_keeps_the_newest_record_of_each_key_by_itself(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), **OFTEN) as api:
        await api.create_topic("state", 1, configs={"cleanup.policy": "compact"})
        for number in range(20):
            await api.produce("state", b"%d" % number, key=b"k%d" % (number % 2))
            await api.agent.log.flush()

        async def is_compacted() -> bool:
            return upkeep_of(api).key_compactor.stats.superseded >= 17

        await until(is_compacted)
        key = (await api.topic("state")).partition_keys()[0]
        (page,) = await api.stores.metadata.scan_entries([ScanRange(key=key, from_offset=0)], limit=100)
        assert sum(entry.record_count for entry in page.entries) <= 3, "the newest entry stands for itself"
        assert page.partition.high_watermark == 20
    async with StreamHouse.open(data_dir=str(tmp_path), **OFTEN) as api:  # nothing is in memory any more
        records = await api.read("state", 0, 0)
        assert [(record.offset, record.key, record.value) for record in records][-2:] == [
            (18, b"k0", b"18"),
            (19, b"k1", b"19"),
        ]
        assert len(records) <= 3


async def test_a_retention_pass_that_fails_is_counted_and_tried_again(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), **OFTEN) as api:
        await api.create_topic("orders", 1)
        upkeep, metadata = upkeep_of(api), api.stores.metadata
        list_topics = metadata.list_topics

        async def no_answer() -> NoReturn:
            raise MetadataUnavailable("the test says so")

        metadata.list_topics = no_answer  # type: ignore[method-assign]

        async def has_failed() -> bool:
            return upkeep.stats.failed_passes >= 2

        await until(has_failed)
        metadata.list_topics = list_topics  # type: ignore[method-assign]
        before = upkeep.stats.retention_passes

        async def has_passed() -> bool:
            return upkeep.stats.retention_passes > before

        await until(has_passed)


async def test_s3_2_writes_wait_for_a_retention_that_is_behind_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass is held up; what is written fits into memory, and a write waits all the same, until the pass has ended."""
    monkeypatch.setattr(brake, "_LONGEST_MS", 600_000)
    async with StreamHouse.open(data_dir=str(tmp_path), **OFTEN) as api:
        await api.create_topic("orders", 1, configs={"retention.bytes": str(LIMIT)})
        upkeep, may_end = upkeep_of(api), asyncio.Event()
        run = upkeep._retention.run

        async def slow(**wanted: Any) -> Any:
            await may_end.wait()
            return await run(**wanted)

        upkeep._retention.run = slow  # type: ignore[method-assign]
        results = [asyncio.create_task(api.produce("orders", os.urandom(200_000), partition=0)) for _ in range(110)]

        async def is_held() -> bool:
            return upkeep.stats.write_holds > 0

        await until(is_held)
        late = asyncio.create_task(api.produce("orders", b"late", partition=0))

        async def waits() -> bool:
            assert not late.done()
            return api.agent.log.writes_wait

        await until(waits)
        may_end.set()
        offsets = [(await result).offset for result in (*results, late)]
        assert sorted(offsets) == list(range(111))
