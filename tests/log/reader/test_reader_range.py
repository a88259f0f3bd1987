"""Offsets outside of the log: never said without a fresh look (R16), and the races with retention and take-overs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from reading import Library, at_once, offsets_in, settle

from streamhouse.core.errors import MetadataError, MetadataUnavailable, NotLeader, OffsetOutOfRange
from streamhouse.core.ids import PartitionKey
from streamhouse.log.reader.protocols import BufferedBatch, LedPartition
from streamhouse.metadata.contract import Durability, MetadataStore, PartitionState


class Cutoff:
    """The metadata behind a wall that can be closed."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionState]:
        if self.error is not None:
            raise self.error
        return await self._inner.get_partitions(keys)


class LeadsNothing:
    def partition(self, key: PartitionKey) -> LedPartition | None:
        return None

    async def wait_visible(self, key: PartitionKey, beyond_offset: int) -> None:
        raise NotLeader(str(key), current_leader=None)


@at_once
async def test_r16_above_the_end_and_below_the_start_are_out_of_range() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(5)
        await shelf.add(5)
        await library.metadata.advance_log_start(shelf.key, 12)
        reader = library.reader()
        for offset in (-1, 0, 11, 21, 2**62):
            with pytest.raises(OffsetOutOfRange) as caught:
                await reader.read(shelf.key, offset, max_bytes=100)
            error = caught.value
            assert (error.offset, error.log_start_offset, error.end_offset) == (offset, 12, 20)
            assert error.kafka_code == 1
        assert offsets_in(await reader.read(shelf.key, 12, max_bytes=1)) == [12, 13]
        assert (await reader.read(shelf.key, 20, max_bytes=1)).log_start_offset == 12


@at_once
async def test_r16_a_stale_watermark_is_read_again_before_the_error() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(1)
        reader = library.reader()
        assert (await reader.read(shelf.key, 2, max_bytes=100)).high_watermark == 2
        await shelf.add(3)  # by another agent, as far as this reader knows
        assert offsets_in(await reader.read(shelf.key, 4, max_bytes=1)) == [4, 5]
        assert (await reader.read(shelf.key, 8, max_bytes=1)).batches == []


@at_once
async def test_r16_when_the_fresh_look_fails_the_error_may_be_retried() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(2)
        wall = Cutoff(library.metadata)
        reader = library.reader(metadata=wall)  # type: ignore[arg-type]
        await reader.read(shelf.key, 0, max_bytes=100)
        for error in (MetadataUnavailable("no answer"), MetadataError("not open")):
            wall.error = error
            for offset in (-1, 99):
                with pytest.raises(MetadataUnavailable) as caught:
                    await reader.read(shelf.key, offset, max_bytes=100)
                assert caught.value.retriable
            with pytest.raises(MetadataUnavailable):
                await reader.end_offsets(shelf.key)
            # What is known without doubt is still served.
            assert offsets_in(await reader.read(shelf.key, 2, max_bytes=100)) == [2, 3]
        wall.error = None
        with pytest.raises(OffsetOutOfRange):
            await reader.read(shelf.key, 99, max_bytes=100)


@at_once
async def test_each_fresh_look_begins_after_it_was_asked_for() -> None:
    """A look that was under way when the question came knows nothing of what happened before the question."""
    async with Library() as library:
        shelf = await library.shelf()

        class Slow(Cutoff):
            asked = 0

            async def get_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionState]:
                self.asked += 1
                states = await self._inner.get_partitions(keys)
                await asyncio.sleep(10)
                return states

        slow = Slow(library.metadata)
        reader = library.reader(metadata=slow)  # type: ignore[arg-type]
        early = asyncio.create_task(reader.end_offsets(shelf.key))
        await asyncio.sleep(1)
        await shelf.add(3)
        late = asyncio.create_task(reader.end_offsets(shelf.key))
        assert (await early).high_watermark == 0
        assert (await late).high_watermark == 6
        assert slow.asked == 2


@at_once
async def test_end_offsets_are_always_fresh() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        reader = library.reader()
        assert (await reader.end_offsets(shelf.key)).high_watermark == 0
        await shelf.add(4)
        await library.metadata.advance_log_start(shelf.key, 3)
        ends = await reader.end_offsets(shelf.key)
        assert (ends.log_start_offset, ends.last_stable_offset, ends.high_watermark) == (3, 8, 8)


@at_once
async def test_a_trimmed_log_is_noticed_while_its_entries_are_cached() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for _ in range(4):
            await shelf.add(2)
        reader = library.reader(state_max_age_ms=0)
        assert offsets_in(await reader.read(shelf.key, 0, max_bytes=1)) == [0, 1]
        await library.metadata.advance_log_start(shelf.key, 9)
        await asyncio.sleep(1)
        await reader.read(shelf.key, 2, max_bytes=1)  # may still be served; has the partition looked at again
        await settle()
        with pytest.raises(OffsetOutOfRange):
            await reader.read(shelf.key, 4, max_bytes=1)
        assert offsets_in(await reader.read(shelf.key, 9, max_bytes=1)) == [8, 9]


@at_once
async def test_the_log_start_may_lie_inside_of_a_batch() -> None:
    """Kafka hands out the whole batch; the client drops what lies before the offset it asked for."""
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(3, records=4)
        await library.metadata.advance_log_start(shelf.key, 6)
        reader = library.reader()
        result = await reader.read(shelf.key, 6, max_bytes=1)
        assert offsets_in(result) == [4, 5, 6, 7]
        assert result.log_start_offset == 6


@at_once
async def test_where_the_wal_is_the_durability_only_the_leader_knows_the_end() -> None:
    """R2: after a restart the log is longer than its watermark until it is replayed: that must reset nobody."""
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(2)
        leading = LeadsNothing()
        reader = library.reader(leading=leading, durability=Durability.WAL)
        assert offsets_in(await reader.read(shelf.key, 0, max_bytes=1 << 20)) == [0, 1, 2, 3]
        with pytest.raises(NotLeader):
            await reader.read(shelf.key, 9, max_bytes=100)
        with pytest.raises(NotLeader):
            await reader.end_offsets(shelf.key)
        with pytest.raises(NotLeader):
            await reader.offset_for_timestamp(shelf.key, 2**50)
        with pytest.raises(NotLeader):
            await reader.max_timestamp_offset(shelf.key)
        with pytest.raises(OffsetOutOfRange):
            await reader.read(shelf.key, -1, max_bytes=100)
        # Leaderless topics have no leader to ask, and nothing beyond their watermark.
        (free,) = (await library.topic("free", leaderless=True)).partition_keys()
        assert (await reader.end_offsets(free)).high_watermark == 0


class FencedLeader:
    """Believes it leads up to offset 2, and has not heard of what others committed since."""

    epoch = 0
    visible_end = 2
    high_watermark = 2

    def buffered_from(self, offset: int) -> Iterable[BufferedBatch]:
        return ()

    def partition(self, key: PartitionKey) -> LedPartition | None:
        return self

    async def wait_visible(self, key: PartitionKey, beyond_offset: int) -> None:
        await asyncio.Event().wait()


@at_once
async def test_s2_18_a_leader_that_was_fenced_unawares_does_not_hide_what_others_wrote() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(1)
        reader = library.reader(leading=FencedLeader())
        assert (await reader.read(shelf.key, 2, max_bytes=100)).batches == []
        waiting = asyncio.create_task(reader.read(shelf.key, 2, max_bytes=100, max_wait_ms=60_000))
        await settle()
        await shelf.add(1)
        before = asyncio.get_running_loop().time()
        assert offsets_in(await waiting) == [2, 3]
        assert asyncio.get_running_loop().time() - before <= 0.5, "by the recheck, at the latest"
        assert offsets_in(await reader.read(shelf.key, 2, max_bytes=100)) == [2, 3]
        assert (await reader.end_offsets(shelf.key)).high_watermark == 4


@at_once
async def test_s2_18_reads_without_waiting_find_out_about_it_too() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(1)
        reader = library.reader(leading=FencedLeader())
        assert (await reader.read(shelf.key, 2, max_bytes=100)).batches == []
        await shelf.add(1)
        await asyncio.sleep(1)
        await reader.read(shelf.key, 2, max_bytes=100)  # may still believe the leader; has it looked up
        await settle()
        assert offsets_in(await reader.read(shelf.key, 2, max_bytes=100)) == [2, 3]


@at_once
async def test_a_leader_that_shows_what_nobody_has_ends_in_an_error_and_not_in_a_loop() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(1)
        leader = FencedLeader()
        leader.visible_end = 9
        reader = library.reader(leading=leader)
        assert offsets_in(await reader.read(shelf.key, 0, max_bytes=1)) == [0, 1]
        with pytest.raises(MetadataUnavailable, match="neither buffered nor committed"):
            await reader.read(shelf.key, 5, max_bytes=100)
