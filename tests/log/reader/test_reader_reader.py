"""Reading by offset: what comes back, in which pieces, and what it costs."""

from __future__ import annotations

import pytest
from reading import Library, at_once, batches, commit_leaderless, offsets_in, records_in

from streamhouse.core.errors import OffsetOutOfRange, PartitionNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.log.reader.cursor import ReadRequest, ReadResult
from streamhouse.log.tail import TailCache
from streamhouse.wire.batch import read_header
from streamhouse.wire.records import Record, build_batch

ONE_BATCH = len(batches(1)[0])


@pytest.mark.parametrize("kind", ["segment", "blob"])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_s3_18_every_record_comes_back_in_order(kind: str, compression: str) -> None:
    @at_once
    async def test() -> None:
        async with Library() as library:
            shelf = await library.shelf()
            how = {"compression": compression} if kind == "segment" else {}
            for count in (1, 5, 30):
                await shelf.add(count, kind=kind, size=60, **how)  # type: ignore[arg-type]
            reader = library.reader()
            for max_bytes in (1, 300, 1 << 20):
                assert await shelf.read_all(reader, max_bytes=max_bytes) == shelf.expected()

    test()


@at_once
async def test_batches_carry_their_real_offsets_and_the_epoch_of_their_leader() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(2)
        await shelf.add(2, kind="blob")
        reader = library.reader()
        result = await reader.read(shelf.key, 0, max_bytes=1 << 20)
        headers = [read_header(each) for each in result.batches]
        assert [header.base_offset for header in headers] == [0, 2, 4, 6]
        assert {header.partition_leader_epoch for header in headers} == {shelf.epoch}
        assert all(each.readonly for each in result.batches)
        ends = (result.next_offset, result.high_watermark, result.log_start_offset, result.last_stable_offset)
        assert ends == (8, 8, 0, 8)


@at_once
async def test_the_batch_that_contains_the_offset_comes_first() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for kind in ("segment", "blob"):
            await shelf.add(6, kind=kind, records=3)  # type: ignore[arg-type]
        reader = library.reader()
        for offset in range(shelf.next_offset):
            result = await reader.read(shelf.key, offset, max_bytes=1)
            first = offset - offset % 3
            assert offsets_in(result) == [first, first + 1, first + 2]
            assert result.next_offset == first + 3


@at_once
async def test_the_first_batch_is_whole_and_the_others_must_fit() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for kind in ("segment", "blob"):
            await shelf.add(5, kind=kind)  # type: ignore[arg-type]
        reader = library.reader()
        for max_bytes, expected in [(0, 1), (1, 1), (ONE_BATCH, 1), (2 * ONE_BATCH - 1, 1), (2 * ONE_BATCH, 2)]:
            result = await reader.read(shelf.key, 0, max_bytes=max_bytes)
            assert len(result.batches) == expected, max_bytes
            assert result.size_bytes == expected * ONE_BATCH
        # Across blocks and across entries, too.
        result = await reader.read(shelf.key, 0, max_bytes=7 * ONE_BATCH + 5)
        assert len(result.batches) == 7
        assert (await reader.read(shelf.key, 0, max_bytes=1 << 20)).next_offset == 20


@at_once
async def test_a_read_is_never_larger_than_the_limit_of_the_reader() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(50)
        reader = library.reader(max_read_bytes=4 * ONE_BATCH)
        assert len((await reader.read(shelf.key, 0, max_bytes=1 << 40)).batches) == 4


@at_once
async def test_at_the_end_of_the_log_there_is_nothing() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        reader = library.reader()
        empty = await reader.read(shelf.key, 0, max_bytes=1000)
        assert (empty.batches, empty.next_offset, empty.high_watermark) == ([], 0, 0)
        await shelf.add(2)
        assert offsets_in(await reader.read(shelf.key, 0, max_bytes=1000)) == [0, 1, 2, 3]
        assert (await reader.read(shelf.key, 4, max_bytes=1000)).batches == []
        await shelf.add(1)
        assert offsets_in(await reader.read(shelf.key, 4, max_bytes=1000)) == [4, 5]


@at_once
async def test_s2_32_leaderless_slices_are_placed_by_their_entry() -> None:
    async with Library() as library:
        topic = await library.topic("events", leaderless=True)
        for first in (0, 4):
            await commit_leaderless(library, topic, batches(2, at=first))
        (key,) = topic.partition_keys()
        result = await library.reader().read(key, 0, max_bytes=1 << 20)
        assert records_in(result) == [(offset, str(offset)) for offset in range(8)]
        assert {read_header(each).partition_leader_epoch for each in result.batches} == {0}


@at_once
async def test_a_partition_that_never_was_or_was_deleted_is_not_found() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(2)
        reader = library.reader(state_max_age_ms=0)
        with pytest.raises(PartitionNotFound):
            await reader.read(PartitionKey(TopicId(library.randomness.uuid()), 0), 0, max_bytes=10)
        await reader.read(shelf.key, 0, max_bytes=10)
        await library.metadata.delete_topic(shelf.key.topic_id)
        with pytest.raises(PartitionNotFound):
            await reader.read(shelf.key, 4, max_bytes=10)
        with pytest.raises(PartitionNotFound):  # and not from what is cached, once that is known
            await reader.read(shelf.key, 0, max_bytes=10)
        with pytest.raises(PartitionNotFound):
            await reader.end_offsets(shelf.key)


@at_once
async def test_a_sequential_reader_asks_the_metadata_once_for_many_entries() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        for _ in range(150):
            await shelf.add(1)
        reader = library.reader()
        assert await shelf.read_all(reader, max_bytes=1) == shelf.expected()
        assert library.entry_lookups == 4  # pages of 4, 64, 64 and what is left
        assert library.partition_lookups <= 2


@at_once
async def test_r18_reads_step_over_what_key_compaction_emptied() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        first, second = await shelf.add(4), await shelf.add(4)
        await shelf.add(1)
        await shelf.compact([first, second], [_thinned(0, 1, [1]), _thinned(2, 3, []), _thinned(12, 15, [13])])
        reader = library.reader()
        whole = await reader.read(shelf.key, 0, max_bytes=1 << 20)
        assert records_in(whole) == [(1, "1"), (13, "13"), (16, "16"), (17, "17")]
        assert whole.next_offset == 18
        for offset in (4, 7, 11):  # in the hole: the next batch after it
            assert offsets_in(await reader.read(shelf.key, offset, max_bytes=1)) == [13]
        only_empty = await reader.read(shelf.key, 2, max_bytes=1)
        assert [read_header(each).record_count for each in only_empty.batches] == [0]
        assert only_empty.next_offset == 4


@at_once
async def test_r18_an_entry_whose_end_was_emptied_is_left_behind() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        first = await shelf.add(4)
        await shelf.add(1)
        await shelf.compact([first], [_thinned(2, 3, [3])], sparse=True)
        reader = library.reader()
        assert await shelf.read_all(reader) == [(3, "3"), (8, "8"), (9, "9")]
        assert offsets_in(await reader.read(shelf.key, 5, max_bytes=1)) == [8, 9]


def _thinned(base: int, last: int, kept: list[int]) -> bytes:
    records = [Record(value=str(offset).encode(), timestamp_ms=0, offset=offset) for offset in kept]
    return build_batch(records, base_offset=base, last_offset=last)


# Several partitions in one read.


@at_once
async def test_s2_24_bytes_are_counted_over_all_partitions() -> None:
    async with Library() as library:
        shelves = await library.shelves("many", 4)
        for shelf in shelves[1:]:
            await shelf.add(5)
        reader = library.reader()
        requests = [ReadRequest(key=shelf.key, offset=0, max_bytes=3 * ONE_BATCH) for shelf in shelves]
        for round_number in range(2):  # cold and warm alike
            results = await reader.read_many(requests, max_bytes=7 * ONE_BATCH)
            counts = [len(each.batches) for each in results if isinstance(each, ReadResult)]
            assert sum(counts) == 7, round_number
            assert max(counts) == 3
        assert counts == [0, 3, 3, 1]


@at_once
async def test_only_the_first_batch_of_a_whole_answer_may_be_too_large() -> None:
    async with Library() as library:
        shelves = await library.shelves("many", 2)
        for shelf in shelves:
            await shelf.add(1)
        reader = library.reader()
        requests = [ReadRequest(key=shelf.key, offset=0, max_bytes=10) for shelf in shelves]
        for _ in range(2):
            results = await reader.read_many(requests, max_bytes=1 << 20)
            assert sorted(len(each.batches) for each in results if isinstance(each, ReadResult)) == [0, 1]


@at_once
async def test_partitions_that_come_too_late_are_not_even_fetched() -> None:
    async with Library() as library:
        shelves = await library.shelves("many", 3)
        for shelf in shelves:
            await shelf.add(5)
        reader = library.reader()
        await reader.read(shelves[0].key, 0, max_bytes=1 << 20)
        library.store.gets.clear()
        requests = [ReadRequest(key=shelf.key, offset=0, max_bytes=1 << 20) for shelf in shelves]
        results = await reader.read_many(requests, max_bytes=ONE_BATCH)
        assert [len(each.batches) for each in results if isinstance(each, ReadResult)] == [1, 0, 0]
        assert library.store.gets == []
        assert all(isinstance(each, ReadResult) and each.high_watermark == 10 for each in results)


@at_once
async def test_a_partition_that_fails_does_not_spoil_the_others_and_ends_the_waiting() -> None:
    async with Library() as library:
        good, bad = await library.shelves("many", 2)
        await good.add(2)
        reader = library.reader()
        requests = [
            ReadRequest(key=bad.key, offset=7, max_bytes=1000),
            ReadRequest(key=good.key, offset=0, max_bytes=1000),
        ]
        failed, read = await reader.read_many(requests, max_bytes=1 << 20, min_bytes=1 << 20, max_wait_ms=3_600_000)
        assert isinstance(failed, OffsetOutOfRange)
        assert isinstance(read, ReadResult)
        assert offsets_in(read) == [0, 1, 2, 3]


@at_once
async def test_lookups_of_many_partitions_are_asked_together() -> None:
    async with Library() as library:
        shelves = await library.shelves("many", 100)
        for shelf in shelves:
            await shelf.add(1)
        reader = library.reader()
        requests = [ReadRequest(key=shelf.key, offset=0, max_bytes=1000) for shelf in shelves]
        results = await reader.read_many(requests, max_bytes=1 << 20)
        assert all(isinstance(each, ReadResult) and offsets_in(each) == [0, 1] for each in results)
        assert (library.partition_lookups, library.entry_lookups) == (1, 1)


# From memory alone.


@at_once
async def test_a_read_without_an_await_gives_the_same_or_nothing() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(3)
        tail = TailCache(1 << 20)
        reader = library.reader(tail=tail)
        request = ReadRequest(key=shelf.key, offset=0, max_bytes=1 << 20)
        assert reader.read_now([request], max_bytes=1 << 20) is None, "the partition was never looked at"
        await reader.end_offsets(shelf.key)
        assert reader.read_now([request], max_bytes=1 << 20) is None, "its records are in an object"
        tail.publish(shelf.key, 0, batches(3, epoch=shelf.epoch))
        answer = reader.read_now([request], max_bytes=1 << 20)
        assert answer is not None
        (found,) = answer
        assert found == await reader.read(shelf.key, 0, max_bytes=1 << 20)
        assert offsets_in(found) == list(range(6))
        assert library.store.gets == []


@at_once
async def test_a_read_without_an_await_refuses_to_answer_less_than_was_asked_for() -> None:
    async with Library() as library:
        shelves = await library.shelves("many", 2)
        tail = TailCache(1 << 20)
        reader = library.reader(tail=tail)
        for shelf in shelves:
            await shelf.add(2)
            await reader.end_offsets(shelf.key)
        tail.publish(shelves[0].key, 0, batches(2, epoch=shelves[0].epoch))
        here, away = (ReadRequest(key=shelf.key, offset=0, max_bytes=1 << 20) for shelf in shelves)
        assert reader.read_now([here], max_bytes=1 << 20, min_bytes=2 * ONE_BATCH) is not None
        assert reader.read_now([here], max_bytes=1 << 20, min_bytes=2 * ONE_BATCH + 1) is None
        assert reader.read_now([here, away], max_bytes=1 << 20) is None
        beyond = ReadRequest(key=shelves[0].key, offset=99, max_bytes=1 << 20)
        assert reader.read_now([beyond], max_bytes=1 << 20) is None, "that must not be said without a fresh look (R16)"


@at_once
async def test_the_known_log_start_is_the_last_one_read() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        await shelf.add(4)
        reader = library.reader()
        assert reader.known_log_start(shelf.key) == -1
        await library.metadata.advance_log_start(shelf.key, 3)
        await reader.read(shelf.key, 4, max_bytes=1)
        assert reader.known_log_start(shelf.key) == 3
