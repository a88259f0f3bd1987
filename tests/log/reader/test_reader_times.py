"""Lookups by time: the first record at or after T, and the newest, wherever they are."""

from __future__ import annotations

import asyncio

import pytest
from reading import START_MS, Library, at_once, batch, batches
from test_reader_waiting import Leader

from streamhouse.core.errors import CorruptBatch, DamagedObject
from streamhouse.log.offload import InlineOffload, ThreadOffload
from streamhouse.wire.batch import TimestampType, patch, stamp_log_append_time
from streamhouse.wire.codecs import Codec


def at(ms: int) -> int:
    return START_MS + ms


@pytest.mark.parametrize("kind", ["segment", "blob"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_first_record_not_its_batch(kind: str, codec: Codec) -> None:
    @at_once
    async def test() -> None:
        async with Library() as library:
            shelf = await library.shelf()
            made = [
                batch("a", "b", "c", at=0, times=[10, 40, 20], codec=codec),
                batch("d", "e", at=3, times=[5, 30], codec=codec),
                batch("f", "g", at=5, times=[50, 60], codec=codec),
            ]
            await (shelf.add_segment(made, target_block_bytes=1) if kind == "segment" else shelf.add_blob(made))
            reader = library.reader()
            for ms, expected in [(0, 0), (10, 0), (11, 1), (40, 1), (41, 5), (50, 5), (51, 6), (60, 6)]:
                found = await reader.offset_for_timestamp(shelf.key, at(ms))
                assert found is not None
                assert found.offset == expected, ms
                assert found.timestamp_ms >= at(ms)
            assert await reader.offset_for_timestamp(shelf.key, at(61)) is None
            assert await reader.offset_for_timestamp(shelf.key, -1) == (0, at(10))
            assert await reader.max_timestamp_offset(shelf.key) == (6, at(60))

    test()


@at_once
async def test_the_search_goes_from_entry_to_entry() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for number in range(20):
            await shelf.add(2, kind="blob" if number % 2 else "segment")  # times equal offsets
        reader = library.reader()
        for ms in range(80):
            assert await reader.offset_for_timestamp(shelf.key, at(ms)) == (ms, at(ms))
        assert await reader.offset_for_timestamp(shelf.key, at(80)) is None
        assert await reader.max_timestamp_offset(shelf.key) == (79, at(79))


@at_once
async def test_an_empty_log_has_no_times() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        reader = library.reader()
        assert await reader.offset_for_timestamp(shelf.key, 0) is None
        assert await reader.max_timestamp_offset(shelf.key) is None


@at_once
async def test_a_log_append_time_is_that_of_the_whole_batch() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        stamped = bytearray(batch("a", "b", at=0, times=[900, 950]))
        stamp_log_append_time(stamped, 0, timestamp_ms=at(100))
        later = bytearray(batch("c", "d", at=2, times=[1, 2], timestamp_type=TimestampType.CREATE_TIME))
        stamp_log_append_time(later, 0, timestamp_ms=at(200))
        await shelf.add_segment([bytes(stamped), bytes(later)])
        reader = library.reader()
        assert await reader.offset_for_timestamp(shelf.key, at(50)) == (0, at(100))
        assert await reader.offset_for_timestamp(shelf.key, at(101)) == (2, at(200))
        assert await reader.offset_for_timestamp(shelf.key, at(201)) is None
        assert await reader.max_timestamp_offset(shelf.key) == (2, at(200))


@at_once
async def test_records_below_the_log_start_do_not_count() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add_segment([batch("a", "b", "c", at=0, times=[10, 90, 20]), batch("d", at=3, times=[30])])
        await shelf.add_blob([batch("e", "f", at=4, times=[5, 50])])
        await library.metadata.advance_log_start(shelf.key, 2)
        reader = library.reader()
        assert await reader.offset_for_timestamp(shelf.key, at(10)) == (2, at(20))
        assert await reader.offset_for_timestamp(shelf.key, at(31)) == (5, at(50))
        assert await reader.offset_for_timestamp(shelf.key, at(60)) is None
        assert await reader.max_timestamp_offset(shelf.key) == (5, at(50))


@at_once
async def test_a_batch_that_declares_more_than_it_holds_is_passed_by() -> None:
    """The declared maximum is the producer's word; the log holds what its records say."""
    async with Library() as library:
        shelf = await library.shelf()
        lying = bytearray(batch("a", "b", at=0, times=[10, 20]))
        stamp_log_append_time(lying, 0, timestamp_ms=at(500))
        lying[21:23] = b"\0\0"  # CreateTime again, so that each record has its own time
        import struct

        from crc32c import crc32c

        struct.pack_into(">I", lying, 17, crc32c(memoryview(lying)[21:]))
        await shelf.add_segment([bytes(lying)])
        await shelf.add_blob([batch("c", at=2, times=[15])])
        await shelf.add_blob([batch("d", at=3, times=[300])])
        await shelf.add_blob([batch("e", at=4, times=[250])])
        reader = library.reader()
        assert await reader.offset_for_timestamp(shelf.key, at(15)) == (1, at(20))
        assert await reader.offset_for_timestamp(shelf.key, at(21)) == (3, at(300))
        assert await reader.offset_for_timestamp(shelf.key, at(301)) is None
        assert await reader.max_timestamp_offset(shelf.key) == (3, at(300))


@at_once
async def test_what_is_only_in_the_leaders_buffer_is_found() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(2)  # offsets and times 0 to 3
        leader = Leader(shelf.key, None)
        leader.high_watermark = 4
        leader.show(batch("x", "y", at=4, times=[2, 70]), batch("z", at=6, times=[70]))
        reader = library.reader(leading=leader)
        assert await reader.offset_for_timestamp(shelf.key, at(3)) == (3, at(3))
        assert await reader.offset_for_timestamp(shelf.key, at(4)) == (5, at(70))
        assert await reader.offset_for_timestamp(shelf.key, at(71)) is None
        assert await reader.max_timestamp_offset(shelf.key) == (5, at(70))
        ends = await reader.end_offsets(shelf.key)
        assert (ends.high_watermark, ends.last_stable_offset) == (7, 7)


@at_once
async def test_a_commit_between_buffer_and_metadata_hides_nothing() -> None:
    """The batch leaves the buffer while the metadata is asked: one of the two must know it."""
    async with Library() as library:
        shelf = await library.shelf()
        leader = Leader(shelf.key, None)
        made = [batch("x", at=0, times=[10], leader_epoch=shelf.epoch)]
        leader.show(*made)

        class Racing:
            def __getattr__(self, name: str) -> object:
                return getattr(library.metadata, name)

            async def find_entry_by_timestamp(self, key: object, timestamp_ms: int) -> object:
                found = await library.metadata.find_entry_by_timestamp(shelf.key, timestamp_ms)
                await shelf.add_blob(made)
                leader.buffer.clear()
                leader.high_watermark = 1
                return found

        reader = library.reader(metadata=Racing(), leading=leader)  # type: ignore[arg-type]
        assert await reader.offset_for_timestamp(shelf.key, at(0)) == (0, at(10))


@at_once
async def test_r7_a_search_survives_compaction_and_never_skips_a_missing_object() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        entries = [await shelf.add(2, kind="blob"), await shelf.add(2, kind="blob")]

        async def replace_it(key: str) -> None:
            library.store.before_get = None
            await shelf.compact(entries, batches(4, epoch=shelf.epoch))
            await library.store.delete([each.object_key for each in entries])

        library.store.before_get = replace_it
        reader = library.reader()
        assert await reader.offset_for_timestamp(shelf.key, at(5)) == (5, at(5))
        (left,) = await shelf.entries()
        await library.store.delete([left.object_key])
        for ask in (
            library.reader().offset_for_timestamp(shelf.key, at(5)),
            library.reader().max_timestamp_offset(shelf.key),
        ):
            with pytest.raises(DamagedObject):
                await ask


@at_once
async def test_records_that_cannot_be_decoded_are_an_error_that_names_the_object() -> None:
    """Batches are opaque on their way in: only a search by time looks at records."""
    async with Library() as library:
        shelf = await library.shelf()
        import struct

        from crc32c import crc32c

        broken = bytearray(batch("a", "b", at=0, times=[1, 2]))
        broken[61] = 0x7F
        struct.pack_into(">I", broken, 17, crc32c(memoryview(broken)[21:]))
        patch(broken, 0, base_offset=0, leader_epoch=shelf.epoch)
        entry = await shelf.add_segment([bytes(broken)])
        with pytest.raises(CorruptBatch, match=entry.object_key):
            await library.reader().offset_for_timestamp(shelf.key, at(0))


async def test_work_is_done_beside_the_loop_or_on_it() -> None:
    threads = ThreadOffload(2)
    try:
        for offload in (InlineOffload(), threads):
            assert await offload.run(sorted, [3, 1, 2], reverse=True) == [3, 2, 1]
            with pytest.raises(ZeroDivisionError):
                await offload.run(lambda: 1 // 0)
        running = asyncio.create_task(threads.run(sum, range(10)))
        assert await running == 45
    finally:
        await threads.close()
