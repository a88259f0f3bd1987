"""Objects: one download for all who want it, caches with bounds, damage that is found, and objects that are gone."""

from __future__ import annotations

import asyncio
import dataclasses
import re

import pytest
from reading import Library, StillClock, at_once, batches, offsets_in, records_in, settle

from streamhouse.core.errors import (
    CorruptBatch,
    CorruptSegment,
    DamagedObject,
    OffsetOutOfRange,
    StoreUnavailable,
)
from streamhouse.core.limits import KIB, MIB
from streamhouse.core.randomness import SeededRandomness
from streamhouse.formats.segment_v1 import BlockCodec, BlockInfo
from streamhouse.formats.segment_v1_reader import read_segment
from streamhouse.log.reader import objects
from streamhouse.log.reader.blocks import segment_block
from streamhouse.objectstore.faults import FaultyStore, ScriptedFaults, StoreFault
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.objects import Operation

# Downloads.


@at_once
async def test_s2_27_concurrent_readers_share_one_download() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(5)
        await shelf.add(5, kind="blob")
        reader = library.reader()
        library.store.gate.clear()
        reads = [asyncio.create_task(reader.read(shelf.key, offset, max_bytes=1)) for offset in (0, 0, 4, 10, 10, 15)]
        await settle()
        library.store.gate.set()
        results = await asyncio.gather(*reads)
        assert [each.next_offset for each in results] == [2, 2, 6, 12, 12, 16]
        assert len(library.store.gets) == 2  # one for each object


@at_once
async def test_one_readers_cancellation_does_not_end_the_download_of_the_others() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(5, kind="blob")
        reader = library.reader()
        library.store.gate.clear()
        first = asyncio.create_task(reader.read(shelf.key, 0, max_bytes=1))
        await settle()
        second = asyncio.create_task(reader.read(shelf.key, 0, max_bytes=1))
        await settle()
        first.cancel()
        await settle()
        library.store.gate.set()
        assert offsets_in(await second) == [0, 1]
        assert first.cancelled()
        assert len(library.store.gets) == 1


@at_once
async def test_a_download_whose_readers_all_left_ends_by_itself_and_is_kept() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(5, kind="blob")
        reader = library.reader()
        library.store.gate.clear()
        only = asyncio.create_task(reader.read(shelf.key, 0, max_bytes=1))
        await settle()
        only.cancel()
        await settle()
        library.store.gate.set()
        await settle()
        assert offsets_in(await reader.read(shelf.key, 0, max_bytes=1)) == [0, 1]
        assert len(library.store.gets) == 1


@at_once
async def test_closing_ends_downloads_with_an_error_and_not_with_a_cancellation() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(5, kind="blob")
        reader = library.reader()
        library.store.gate.clear()
        read = asyncio.create_task(reader.read(shelf.key, 0, max_bytes=1))
        await settle()
        await reader.close()
        with pytest.raises(StoreUnavailable, match="closing"):
            await read
        with pytest.raises(StoreUnavailable, match="closing"):
            await reader.read(shelf.key, 0, max_bytes=1)
        with pytest.raises(StoreUnavailable, match="closing"):
            await reader.end_offsets(shelf.key)


@at_once
async def test_a_small_segment_is_one_get_and_a_large_one_is_read_in_ranges() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(20, target_block_bytes=300)
        reader = library.reader()
        assert await shelf.read_all(reader, max_bytes=200) == shelf.expected()
        assert len(library.store.gets) == 1

        large = await library.shelf("large")
        entry = await large.add(60, size=20 * KIB, target_block_bytes=200 * KIB)
        assert entry.byte_length > 2 * MIB
        library.store.gets.clear()
        assert offsets_in(await reader.read(large.key, 50, max_bytes=1)) == [50, 51]
        (tail, block) = library.store.gets
        assert tail[2] == 64 * KIB
        assert block[2] < 250 * KIB
        library.store.gets.clear()
        assert offsets_in(await reader.read(large.key, 48, max_bytes=1)) == [48, 49]
        assert offsets_in(await reader.read(large.key, 0, max_bytes=1)) == [0, 1]
        assert len(library.store.gets) == 1  # the index is kept, and block 50 with its neighbours


@at_once
async def test_the_block_cache_keeps_its_budget_and_still_serves_everything() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for kind in ("blob", "segment"):
            for _ in range(10):
                await shelf.add(10, kind=kind, size=300)  # type: ignore[arg-type]
        for budget in (0, 10_000, 60_000):
            reader = library.reader(block_cache_bytes=budget)
            assert await shelf.read_all(reader, max_bytes=700) == shelf.expected()
            assert reader._objects.cached_bytes <= budget


@at_once
async def test_the_index_cache_keeps_its_budget() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for _ in range(10):
            await shelf.add(10)
        reader = library.reader(index_cache_bytes=20_000)
        assert await shelf.read_all(reader) == shelf.expected()
        assert 0 < reader._objects.indexed_bytes <= 20_000


@at_once
async def test_what_is_under_way_from_the_store_is_bounded() -> None:
    async with Library() as library:
        shelves = await library.shelves("many", 20)
        for shelf in shelves:
            await shelf.add(4, kind="blob", size=300)
        reader = library.reader(max_downloads=3)
        most = 0

        async def count(key: str) -> None:
            nonlocal most
            most = max(most, reader._objects._gate.calls_under_way)
            await asyncio.sleep(0.01)

        library.store.before_get = count
        results = await asyncio.gather(*(reader.read(shelf.key, 0, max_bytes=1 << 20) for shelf in shelves))
        assert all(offsets_in(each) == list(range(8)) for each in results)
        assert most == 3
        assert reader._objects._gate.bytes_under_way == 0


# Damage.


@at_once
async def test_damage_on_the_way_is_fetched_again() -> None:
    faults = ScriptedFaults([StoreFault.CORRUPTED, None] * 3, only=[Operation.RANGE_GET])
    store = FaultyStore(MemoryStore(clock=StillClock()), plan=faults, randomness=SeededRandomness(3))
    async with Library(store=store) as library:
        shelf = await library.shelf()
        for kind in ("blob", "segment", "blob"):
            await shelf.add(5, kind=kind)  # type: ignore[arg-type]
        reader = library.reader()
        assert await shelf.read_all(reader) == shelf.expected()
        assert reader.stats.corrupt_downloads == 3


@pytest.mark.parametrize("kind", ["segment", "blob"])
@pytest.mark.parametrize("large", [False, True])
def test_every_damaged_byte_is_found_and_named(kind: str, large: bool) -> None:
    """Whatever byte of what is read is damaged at rest: an error that names object, range and partition."""

    @at_once
    async def test() -> None:
        async with Library() as library:
            shelf = await library.shelf()
            size = 40 * KIB if large and kind == "segment" else 30
            entry = await shelf.add(30, kind=kind, size=size)  # type: ignore[arg-type]
            base = entry.byte_offset
            for at in range(base, base + entry.byte_length, max(1, entry.byte_length // 97)):

                def flip(key: str, offset: int, data: memoryview, at: int = at) -> memoryview:
                    changed = bytearray(data)
                    if offset <= at < offset + len(data):
                        changed[at - offset] ^= 0x10
                    return memoryview(changed)

                library.store.damage = flip
                if kind == "segment" and large and at < 8:
                    # The head of a large segment is no part of what is read: footer, index and blocks are.
                    assert await shelf.read_all(library.reader(), max_bytes=1) == shelf.expected()
                    continue
                with pytest.raises(DamagedObject) as caught:
                    await shelf.read_all(library.reader(), max_bytes=1)
                message = caught.value.message
                assert entry.object_key in message
                assert "orders/0" in message
                span = re.search(r"bytes (\d+) to (\d+) of", message)
                assert span is not None
                assert int(span[1]) <= at <= int(span[2])

    test()


@at_once
async def test_an_object_that_is_shorter_than_its_entry_says_is_damaged() -> None:
    async with Library() as library:
        for kind in ("segment", "blob"):
            shelf = await library.shelf(kind)
            entry = await shelf.add(5, kind=kind)  # type: ignore[arg-type]
            data = bytes(await library.store.get(entry.object_key))
            await library.store.delete([entry.object_key])
            await library.store.put(entry.object_key, data[:-20])
            with pytest.raises(DamagedObject, match=re.escape(entry.object_key)):
                await library.reader().read(shelf.key, 0, max_bytes=1)


@at_once
async def test_an_object_that_is_another_partitions_is_refused() -> None:
    async with Library() as library:
        mine, other = await library.shelves("many", 2)
        entry = await mine.add(5)
        foreign = bytes(await library.store.get((await other.add(5)).object_key))
        await library.store.delete([entry.object_key])
        await library.store.put(entry.object_key, foreign)
        with pytest.raises(DamagedObject, match="not the one its metadata speaks of"):
            await library.reader().read(mine.key, 0, max_bytes=1)


@at_once
async def test_a_damaged_block_does_not_hide_the_healthy_ones() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        entry = await shelf.add(9, target_block_bytes=250)
        data = bytearray(await library.store.get(entry.object_key))
        blocks = read_segment(data).index.blocks
        data[blocks[1].file_offset + 30] ^= 1
        await library.store.delete([entry.object_key])
        await library.store.put(entry.object_key, data)
        reader = library.reader()
        bad = range(blocks[1].base_offset, blocks[1].end_offset + 1)
        for offset in range(18):
            if offset in bad:
                with pytest.raises(DamagedObject) as caught:
                    await reader.read(shelf.key, offset, max_bytes=1)
                assert (caught.value.base_offset, caught.value.end_offset + 1) == (bad.start, bad.stop)
            else:
                assert offset in offsets_in(await reader.read(shelf.key, offset, max_bytes=1))


@at_once
async def test_batches_that_do_not_fill_their_block_are_damage_too() -> None:
    """A block with a right CRC whose batches are not those of the index: a faulty writer, found all the same."""
    made = batches(3)
    data = memoryview(b"".join(made))
    right = BlockInfo(
        file_offset=8,
        stored_length=len(data),
        raw_length=len(data),
        codec=BlockCodec.RAW,
        base_offset=0,
        end_offset=5,
        record_count=6,
        max_timestamp_ms=0,
        crc32c=0,
    )
    assert len(segment_block(data, right, sparse=False).nexts) == 3
    for wrong in (
        dataclasses.replace(right, base_offset=1),
        dataclasses.replace(right, end_offset=6),
        dataclasses.replace(right, record_count=7),
    ):
        with pytest.raises(CorruptSegment):
            segment_block(data, wrong, sparse=False)
    gap = memoryview(made[0] + made[2])
    with pytest.raises(CorruptSegment, match="where 2 is next"):
        segment_block(gap, dataclasses.replace(right, record_count=4), sparse=False)
    with pytest.raises(CorruptBatch):
        segment_block(data[:-1], right, sparse=False)


# Objects that are gone.


@at_once
async def test_r7_a_compacted_range_is_resolved_again() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        entries = [await shelf.add(2), await shelf.add(2, kind="blob"), await shelf.add(2)]
        reader = library.reader()
        assert offsets_in(await reader.read(shelf.key, 0, max_bytes=1)) == [0, 1]  # the entries are cached now
        await shelf.compact(entries[:2], batches(4, epoch=shelf.epoch), compression="lz4")
        await library.store.delete([each.object_key for each in entries[:2]])
        fresh = library.reader()
        for offset in range(2, 8):
            assert offset in offsets_in(await reader.read(shelf.key, offset, max_bytes=1))
            assert offset in offsets_in(await fresh.read(shelf.key, offset, max_bytes=1))
        assert reader.stats.resolved_again == 1
        assert fresh.stats.resolved_again == 0


@at_once
async def test_r7_compaction_between_the_lookup_and_the_download() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        entries = [await shelf.add(2, kind="blob"), await shelf.add(2, kind="blob")]
        await shelf.add(1)

        async def replace_it(key: str) -> None:
            library.store.before_get = None
            await shelf.compact(entries, batches(4, epoch=shelf.epoch))
            await library.store.delete([each.object_key for each in entries])

        library.store.before_get = replace_it
        assert await shelf.read_all(library.reader()) == shelf.expected()


@at_once
async def test_r7_a_range_that_is_replaced_again_and_again_is_followed() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(2, kind="blob")
        await shelf.add(1)
        left = 6

        async def replace_it(key: str) -> None:
            nonlocal left
            entry = (await shelf.entries())[0]
            if left and entry.object_key == key:
                left -= 1
                await shelf.compact([entry], batches(2, epoch=shelf.epoch))
                await library.store.delete([key])

        library.store.before_get = replace_it
        reader = library.reader()
        assert offsets_in(await reader.read(shelf.key, 0, max_bytes=1)) == [0, 1]
        assert reader.stats.resolved_again == 6


@at_once
async def test_r7_a_missing_object_is_an_error_and_never_fewer_records() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for kind in ("segment", "blob", "segment"):
            await shelf.add(2, kind=kind)  # type: ignore[arg-type]
        for gone in (await shelf.entries())[:2]:
            await library.store.delete([gone.object_key])
            reader = library.reader()
            with pytest.raises(DamagedObject, match="the metadata still refers to it") as caught:
                await reader.read(shelf.key, gone.base_offset, max_bytes=1 << 20)
            assert gone.object_key in caught.value.message
            assert "orders/0" in caught.value.message
            assert reader.stats.resolved_again == 1


@at_once
async def test_r7_what_was_trimmed_away_under_a_reader_is_out_of_range() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        first = await shelf.add(2, kind="blob")
        await shelf.add(2)

        async def trim(key: str) -> None:
            library.store.before_get = None
            await library.metadata.advance_log_start(shelf.key, 4)
            await library.store.delete([first.object_key])

        library.store.before_get = trim
        with pytest.raises(OffsetOutOfRange):
            await library.reader().read(shelf.key, 0, max_bytes=1 << 20)


@at_once
async def test_what_was_read_before_an_error_is_served_and_the_error_comes_next() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for kind in ("segment", "blob"):
            await shelf.add(2, kind=kind)  # type: ignore[arg-type]
        await library.store.delete([(await shelf.entries())[1].object_key])
        reader = library.reader()
        for wait_ms in (0, 3_600_000):
            result = await reader.read(shelf.key, 0, max_bytes=1 << 20, min_bytes=1 << 20, max_wait_ms=wait_ms)
            assert (offsets_in(result), result.next_offset) == ([0, 1, 2, 3], 4)
        with pytest.raises(DamagedObject):
            await reader.read(shelf.key, 4, max_bytes=1 << 20)


@at_once
async def test_a_very_large_slice_is_fetched_in_pieces() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_PIECE_BYTES", 100)
        async with Library() as library:
            shelf = await library.shelf()
            entry = await shelf.add(5, kind="blob")
            assert await shelf.read_all(library.reader()) == shelf.expected()
            assert len(library.store.gets) == -(-entry.byte_length // 100)
            assert sum(length for _, _, length in library.store.gets) == entry.byte_length


@at_once
async def test_a_store_that_is_away_gives_an_error_that_may_be_retried() -> None:
    faults = ScriptedFaults([StoreFault.UNAVAILABLE], only=[Operation.RANGE_GET])
    async with Library(
        store=FaultyStore(MemoryStore(clock=StillClock()), plan=faults, randomness=SeededRandomness(3))
    ) as library:
        shelf = await library.shelf()
        await shelf.add(2)
        reader = library.reader()
        with pytest.raises(StoreUnavailable) as caught:
            await reader.read(shelf.key, 0, max_bytes=1)
        assert caught.value.retriable
        assert records_in(await reader.read(shelf.key, 0, max_bytes=1)) == [(0, "0"), (1, "1")]
