"""Read-ahead: who gets it, how far it goes, and that it never changes an answer."""

from __future__ import annotations

import asyncio
import uuid

from reading import Library, Shelf, at_once, batches, offsets_in, settle

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import KIB, MIB
from streamhouse.log.reader.ahead import Streams
from streamhouse.log.reader.objects import _runs
from streamhouse.log.tail import TailCache

KEY = PartitionKey(TopicId(uuid.UUID(int=7)), 0)


async def large_shelf(library: Library, *, blocks: int = 12, kind: str = "segment") -> Shelf:
    """Blocks of 256 KiB, one batch each: in one segment, or each in a blob of its own."""
    shelf = await library.shelf()
    if kind == "segment":
        await shelf.add(blocks, records=2, size=128 * KIB, target_block_bytes=200 * KIB)
    else:
        for _ in range(blocks):
            await shelf.add(1, kind="blob", records=2, size=128 * KIB)
    library.store.gets.clear()
    return shelf


@at_once
async def test_the_second_sequential_read_has_the_next_blocks_fetched() -> None:
    for kind in ("segment", "blob"):
        async with Library() as library:
            shelf = await large_shelf(library, kind=kind)
            reader = library.reader(read_ahead_bytes=8 * MIB)
            await reader.read(shelf.key, 0, max_bytes=1)
            await settle()
            assert reader.stats.ahead_bytes == 0, "one read is no stream"
            await reader.read(shelf.key, 2, max_bytes=1)
            await settle()
            assert reader.stats.ahead_bytes >= MIB
            library.store.gate.clear()  # from here on the store answers nobody
            assert offsets_in(await asyncio.wait_for(reader.read(shelf.key, 4, max_bytes=1), 1)) == [4, 5]
            assert offsets_in(await asyncio.wait_for(reader.read(shelf.key, 6, max_bytes=1), 1)) == [6, 7]
            library.store.gate.set()


@at_once
async def test_a_scan_reads_everything_once_and_in_few_requests() -> None:
    async with Library() as library:
        shelf = await large_shelf(library, blocks=40)
        reader = library.reader(read_ahead_bytes=8 * MIB)
        assert await shelf.read_all(reader, max_bytes=100 * KIB) == shelf.expected()
        ranges = sorted((offset, length) for _, offset, length in library.store.gets)
        assert len(ranges) <= 12, "neighbouring blocks share a request"
        read_bytes = sum(length for _, length in ranges)
        (entry,) = await shelf.entries()
        assert read_bytes <= entry.byte_length + 64 * KIB


@at_once
async def test_what_was_read_makes_room_for_what_is_ahead() -> None:
    async with Library() as library:
        shelves = await library.shelves("orders", 4)
        for shelf in shelves:
            await shelf.add(40, records=2, size=128 * KIB, target_block_bytes=200 * KIB)
        library.store.gets.clear()
        reader = library.reader(read_ahead_bytes=MIB, block_cache_bytes=5 * MIB)
        for offset in range(0, 80, 2):
            for shelf in shelves:
                assert offsets_in(await reader.read(shelf.key, offset, max_bytes=1)) == [offset, offset + 1]
            await settle()
        read_bytes = sum(length for _, _, length in library.store.gets)
        assert read_bytes <= 4 * 40 * 256 * KIB * 1.05, "each block was fetched once, though a fraction fits"


@at_once
async def test_random_reads_get_no_read_ahead() -> None:
    async with Library() as library:
        shelf = await large_shelf(library)
        reader = library.reader(read_ahead_bytes=8 * MIB)
        for offset in (20, 2, 14, 8, 0, 18):
            await reader.read(shelf.key, offset, max_bytes=1)
            await settle()
        assert reader.stats.ahead_bytes == 0


@at_once
async def test_read_ahead_can_be_turned_off() -> None:
    async with Library() as library:
        shelf = await large_shelf(library)
        reader = library.reader(read_ahead_bytes=0)
        assert await shelf.read_all(reader, max_bytes=1) == shelf.expected()
        assert reader.stats.ahead_bytes == 0


@at_once
async def test_what_is_fetched_ahead_is_bounded_for_one_and_for_all() -> None:
    async with Library() as library:
        shelf = await large_shelf(library, blocks=40)
        reader = library.reader(read_ahead_bytes=2 * MIB, max_ahead_bytes=3 * MIB)
        library.store.gate.clear()
        streams = [offset for start in (0, 20, 40, 60) for offset in (start, start + 2)]
        reads = [asyncio.create_task(reader.read(shelf.key, offset, max_bytes=1)) for offset in streams]
        library.store.gate.set()
        await asyncio.gather(*reads)
        assert reader._ahead._bytes_left >= 0
        await settle(200)
        # Nobody reads on: at most a window for each was fetched, a block more for what does not fit exactly.
        assert reader.stats.ahead_bytes <= 4 * (2 * MIB + 256 * KIB)
        assert reader._ahead._bytes_left == 3 * MIB, "everything was given back"


@at_once
async def test_a_cache_that_could_not_hold_it_is_not_flooded() -> None:
    async with Library() as library:
        shelf = await large_shelf(library)
        reader = library.reader(read_ahead_bytes=8 * MIB, block_cache_bytes=600 * KIB)
        assert await shelf.read_all(reader, max_bytes=1) == shelf.expected()
        assert reader._objects.cached_bytes <= 600 * KIB
        (entry,) = await shelf.entries()
        assert reader.stats.downloaded_bytes <= 2 * entry.byte_length


@at_once
async def test_a_failing_read_ahead_is_met_again_by_whoever_reads_there() -> None:
    async with Library() as library:
        shelf = await large_shelf(library, kind="blob")
        reader = library.reader(read_ahead_bytes=8 * MIB)
        sick = (await shelf.entries())[3].object_key
        library.store.damage = lambda key, at, data: memoryview(bytes(len(data))) if key == sick else data
        for offset in (0, 2, 4):
            assert offsets_in(await reader.read(shelf.key, offset, max_bytes=1)) == [offset, offset + 1]
            await settle()
        assert reader.stats.corrupt_downloads > 0
        library.store.damage = None
        assert await shelf.read_all(reader) == shelf.expected()


@at_once
async def test_a_block_damaged_within_a_shared_request_is_fetched_again_by_itself() -> None:
    async with Library() as library:
        shelf = await large_shelf(library, blocks=20)
        reader = library.reader(read_ahead_bytes=8 * MIB)

        def flip(key: str, offset: int, data: memoryview) -> memoryview:
            if len(data) < MIB:
                return data
            changed = bytearray(data)
            changed[400_000] ^= 1
            return memoryview(changed)

        for offset in (0, 2):
            await reader.read(shelf.key, offset, max_bytes=1)
        library.store.damage = flip
        library.store.gate.clear()
        await settle()
        assert reader.stats.ahead_bytes > MIB
        waiting = [asyncio.create_task(reader.read(shelf.key, offset, max_bytes=1)) for offset in (4, 6, 8)]
        await settle()
        library.store.gate.set()
        assert [offsets_in(each) for each in await asyncio.gather(*waiting)] == [[4, 5], [6, 7], [8, 9]]
        assert reader.stats.corrupt_downloads == 1


@at_once
async def test_nothing_is_fetched_that_the_tail_cache_holds() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for _ in range(6):
            await shelf.add(1, kind="blob")
        tail = TailCache(1 << 20)
        tail.publish(shelf.key, 4, batches(4, at=4))
        reader = library.reader(read_ahead_bytes=8 * MIB, tail=tail)
        assert await shelf.read_all(reader, max_bytes=1) == shelf.expected()
        assert len({key for key, _, _ in library.store.gets}) == 2


def test_a_stream_is_recognised_by_where_it_goes_on() -> None:
    streams = Streams(max_streams=3)
    first = streams.step(KEY, 0, 10, 100)
    assert first.window_bytes(8 * MIB) == 0
    assert streams.step(KEY, 10, 20, 100) is first
    assert streams.step(KEY, 20, 30, 100) is first
    assert [first.steps, first.window_bytes(8 * MIB), first.window_bytes(3 * MIB)] == [2, 4 * MIB, 3 * MIB]
    assert streams.step(KEY, 11, 21, 100) is not first
    for offset in range(100, 200, 10):
        streams.step(KEY, offset, offset + 5, 1)
    assert len(streams) == 3
    assert streams.step(KEY, 30, 40, 100) is not first, "forgotten, the longest unused"


@at_once
async def test_neighbouring_blocks_share_a_request_up_to_a_size() -> None:
    async with Library() as library:
        shelf = await large_shelf(library, blocks=40)
        reader = library.reader()
        (entry,) = await shelf.entries()
        stretches = await reader._objects.stretches(shelf.key, entry, 0)
        assert len(stretches) == 40
        runs = _runs(stretches)
        assert [each for run in runs for each in run] == list(stretches)
        assert all(run[-1].bytes.end - run[0].bytes.offset <= 4 * MIB for run in runs)
        assert len(runs) == 3
        assert len(_runs([stretches[0], stretches[2], stretches[3]])) == 2
