"""Finding entries: ceiling lookup, time lookup, forward scan (S2.32, S2.34)."""

from __future__ import annotations

import pytest
from builders import batch, compaction_of, intent, intent_slice, leaderless_slice, leased_slice
from harness import Backend, LedPartition

from streamhouse.core.errors import InvalidRequest, LimitExceeded, PartitionNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_SCAN_ENTRIES
from streamhouse.metadata.contract import CompactionVerdict, EntryKind, IntentKey, ScanRange


async def log_of(backend: Backend, *counts: int, name: str = "orders") -> LedPartition:
    led = await backend.led(name)
    for count in counts:
        await led.append(batch(count))
    return led


async def stamped(backend: Backend, *stamps: int) -> LedPartition:
    """One entry of two records per time stamp given, its largest."""
    led = await backend.led()
    for stamp in stamps:
        await led.append(batch(2, at_ms=stamp - 5, until_ms=stamp))
    return led


async def found_at(backend: Backend, led: LedPartition, timestamp_ms: int) -> int | None:
    lookup = await backend.store.find_entry_by_timestamp(led.key, timestamp_ms)
    return lookup.entry.base_offset if lookup.entry else None


async def compact(
    backend: Backend, led: LedPartition, first: int, last: int, *, max_timestamp_ms: int | None = None, records: int
) -> None:
    """Replace the entries ``first`` … ``last`` (positions) by one, as key compaction does."""
    entries = (await backend.entries(led.key))[first : last + 1]
    plan = compaction_of(
        led.key, entries, backend.object(), backend.ids, records=records, max_timestamp_ms=max_timestamp_ms
    )
    await backend.store.begin_compaction(plan)
    assert await backend.store.apply_compaction(led.key, plan.compaction_id) is CompactionVerdict.APPLIED


# By offset.


async def test_s2_32_a_ceiling_lookup_finds_the_covering_entry_at_every_boundary(backend: Backend) -> None:
    led = await log_of(backend, 1, 5, 2, 10, 1)
    covering = {
        offset: entry.end_offset
        for entry in await backend.entries(led.key)
        for offset in range(entry.base_offset, entry.end_offset + 1)
    }
    assert sorted(covering) == list(range(19))
    for offset, end in covering.items():
        lookup = await backend.store.find_entry(led.key, offset)
        assert lookup.entry is not None
        assert lookup.entry.end_offset == end


async def test_s2_32_at_and_past_the_watermark_there_is_nothing(backend: Backend) -> None:
    led = await log_of(backend, 3)
    for offset in (3, 4, 1000, 2**63 - 1):
        lookup = await backend.store.find_entry(led.key, offset)
        assert lookup.entry is None
        assert lookup.partition.high_watermark == 3


async def test_an_empty_log_has_no_entries_to_find(backend: Backend) -> None:
    led = await backend.led()
    assert (await backend.store.find_entry(led.key, 0)).entry is None
    assert (await backend.store.find_entry_by_timestamp(led.key, 0)).entry is None
    assert (await backend.store.find_max_timestamp_entry(led.key)).entry is None
    assert await backend.entries(led.key) == ()


async def test_below_the_log_start_the_first_entry_is_found(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5)
    await backend.store.advance_log_start(led.key, 7)
    for offset in (-1, 0, 4, 5, 7, 9):
        lookup = await backend.store.find_entry(led.key, offset)
        assert lookup.entry is not None
        assert (lookup.entry.base_offset, lookup.partition.log_start_offset) == (5, 7)


async def test_a_ceiling_lookup_never_leaves_its_partition(backend: Backend) -> None:
    topic = await backend.topic(partitions=3)
    holder = backend.holder()
    await backend.store.acquire_leases(holder, topic.partition_keys(), ttl_ms=1000)
    await backend.store.commit_leased(
        backend.append_id(),
        [leased_slice(topic.partition_keys()[2], backend.object(), batch(50), epoch=1, base=0)],
    )
    for key in topic.partition_keys()[:2]:
        assert (await backend.store.find_entry(key, 0)).entry is None
        assert (await backend.store.find_entry_by_timestamp(key, 0)).entry is None
        assert (await backend.store.find_max_timestamp_entry(key)).entry is None


async def test_r18_a_lookup_inside_an_emptied_range_finds_the_entry_that_covers_it(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5)
    await compact(backend, led, 0, 1, records=2)
    for offset in range(10):
        lookup = await backend.store.find_entry(led.key, offset)
        assert lookup.entry is not None
        assert (lookup.entry.base_offset, lookup.entry.end_offset) == (0, 9)
        assert (lookup.entry.record_count, lookup.entry.kind) == (2, EntryKind.COMPACTED)


# By time.


async def test_by_time_the_first_entry_that_reaches_it_is_found(backend: Backend) -> None:
    led = await stamped(backend, 100, 200, 300)
    expected = {-1: 0, 0: 0, 99: 0, 100: 0, 101: 2, 200: 2, 201: 4, 300: 4, 301: None}
    assert {stamp: await found_at(backend, led, stamp) for stamp in expected} == expected


async def test_by_time_a_rewrite_that_finds_a_newer_record_counts_for_all_that_follows(backend: Backend) -> None:
    led = await backend.led()
    for at_ms in (100, 200):
        await led.append(batch(2, at_ms=at_ms))
    await compact(backend, led, 0, 0, records=2, max_timestamp_ms=300)
    await led.append(batch(2, at_ms=250))
    first, *_ = await backend.entries(led.key)
    for timestamp_ms in (150, 250, 300):
        assert (await backend.store.find_entry_by_timestamp(led.key, timestamp_ms)).entry == first
    assert (await backend.store.find_entry_by_timestamp(led.key, 301)).entry is None
    assert (await backend.store.find_max_timestamp_entry(led.key)).entry == first


async def test_by_time_out_of_order_timestamps_are_searched_in_offset_order(backend: Backend) -> None:
    led = await stamped(backend, 100, 50, 200, 150, 200, 400, 10)
    expected = {1: 0, 60: 0, 100: 0, 101: 4, 150: 4, 200: 4, 201: 10, 400: 10, 401: None}
    assert {stamp: await found_at(backend, led, stamp) for stamp in expected} == expected


async def test_by_time_what_was_trimmed_no_longer_answers(backend: Backend) -> None:
    """The running maximum of what remains still remembers what is gone; the entry's own maximum decides."""
    led = await stamped(backend, 500, 50, 200, 150, 300)
    await backend.store.advance_log_start(led.key, 2)
    expected = {10: 2, 50: 2, 51: 4, 200: 4, 201: 8, 300: 8, 301: None, 500: None}
    assert {stamp: await found_at(backend, led, stamp) for stamp in expected} == expected


async def test_by_time_an_entry_that_reaches_past_the_log_start_still_answers(backend: Backend) -> None:
    led = await stamped(backend, 100, 200)
    await backend.store.advance_log_start(led.key, 1)
    assert await found_at(backend, led, 80) == 0
    await backend.store.advance_log_start(led.key, 2)
    assert await found_at(backend, led, 80) == 2


async def test_by_time_after_key_compaction_took_the_largest_stamp_away(backend: Backend) -> None:
    led = await stamped(backend, 100, 300, 200, 50)
    await compact(backend, led, 0, 1, records=2, max_timestamp_ms=100)
    expected = {90: 0, 100: 0, 101: 4, 150: 4, 200: 4, 201: None, 250: None, 300: None}
    assert {stamp: await found_at(backend, led, stamp) for stamp in expected} == expected


async def test_by_time_after_compaction_of_a_middle_range(backend: Backend) -> None:
    led = await stamped(backend, 300, 100, 200, 250, 400)
    await compact(backend, led, 1, 2, records=4)
    expected = {100: 0, 300: 0, 301: 8, 400: 8, 401: None}
    assert {stamp: await found_at(backend, led, stamp) for stamp in expected} == expected


async def test_by_time_in_a_leaderless_log_whose_slices_were_split(backend: Backend) -> None:
    key = await backend.partition("blobs", leaderless=True)
    known = batch(1, at_ms=100, producer=1, sequence=0)
    for batches in (
        [known],
        [batch(1, at_ms=400), known, batch(1, at_ms=50), known, batch(1, at_ms=300)],
        [batch(1, at_ms=200)],
        [batch(1, at_ms=500)],
    ):
        await backend.store.commit_leaderless(backend.append_id(), backend.object(), [leaderless_slice(key, *batches)])
    assert [entry.max_timestamp_ms for entry in await backend.entries(key)] == [100, 400, 50, 300, 200, 500]
    expected = {50: 0, 100: 0, 101: 1, 300: 1, 400: 1, 401: 5, 500: 5, 501: None}
    found = {stamp: await backend.store.find_entry_by_timestamp(key, stamp) for stamp in expected}
    assert {stamp: one.entry.base_offset if one.entry else None for stamp, one in found.items()} == expected
    largest = (await backend.store.find_max_timestamp_entry(key)).entry
    assert largest is not None
    assert largest.base_offset == 5


async def test_by_time_among_adopted_slices(backend: Backend) -> None:
    led = await stamped(backend, 300)
    key = IntentKey(query_id="query", topic_id=led.key.topic_id, batch_id=0)
    stamps = (100, 400, 200)
    await backend.store.register_intent(
        intent(key, *(intent_slice(0, backend.object(), 2, at_ms=stamp) for stamp in stamps))
    )
    await backend.store.adopt_intent(key, 0, epoch=led.epoch, base_offset=2)
    led.next_offset = 8
    await led.append(batch(2, at_ms=350))
    await led.append(batch(2, at_ms=450))
    expected = {100: 0, 300: 0, 301: 4, 400: 4, 401: 10, 450: 10, 451: None}
    assert {stamp: await found_at(backend, led, stamp) for stamp in expected} == expected


async def test_by_time_a_log_that_goes_on_after_trimming_everything(backend: Backend) -> None:
    led = await stamped(backend, 500, 600)
    await backend.store.advance_log_start(led.key, 4)
    assert await found_at(backend, led, 1) is None
    await led.append(batch(1, at_ms=70))
    assert {stamp: await found_at(backend, led, stamp) for stamp in (1, 70, 71, 600)} == {
        1: 4,
        70: 4,
        71: None,
        600: None,
    }


async def test_timestamps_before_1970_and_none_at_all_are_fine(backend: Backend) -> None:
    led = await backend.led()
    await led.append(batch(1, at_ms=-1))
    await led.append(batch(1, at_ms=-(2**40)))
    await led.append(batch(1, at_ms=5))
    assert await found_at(backend, led, -(2**50)) == 0
    assert await found_at(backend, led, 0) == 2


async def test_the_largest_timestamp_is_found_at_its_first_entry(backend: Backend) -> None:
    led = await stamped(backend, 100, 300, 200, 300, 50)
    lookup = await backend.store.find_max_timestamp_entry(led.key)
    assert lookup.entry is not None
    assert (lookup.entry.base_offset, lookup.entry.max_timestamp_ms) == (2, 300)
    assert lookup.partition.high_watermark == 10
    for log_start, expected in ((4, 6), (8, 8)):
        await backend.store.advance_log_start(led.key, log_start)
        lookup = await backend.store.find_max_timestamp_entry(led.key)
        assert lookup.entry is not None
        assert lookup.entry.base_offset == expected
    await backend.store.advance_log_start(led.key, 10)
    assert (await backend.store.find_max_timestamp_entry(led.key)).entry is None


async def test_the_largest_timestamp_after_key_compaction_took_it_away(backend: Backend) -> None:
    led = await stamped(backend, 100, 300, 200, 50)
    await compact(backend, led, 0, 1, records=2, max_timestamp_ms=100)
    lookup = await backend.store.find_max_timestamp_entry(led.key)
    assert lookup.entry is not None
    assert (lookup.entry.base_offset, lookup.entry.max_timestamp_ms) == (4, 200)


async def test_lookups_in_an_unknown_partition(backend: Backend) -> None:
    key = PartitionKey(TopicId(backend.uuid()), 0)
    with pytest.raises(PartitionNotFound):
        await backend.store.find_entry(key, 0)
    with pytest.raises(PartitionNotFound):
        await backend.store.find_entry_by_timestamp(key, 0)
    with pytest.raises(PartitionNotFound):
        await backend.store.find_max_timestamp_entry(key)


# Scans.


async def test_s2_32_a_scan_returns_every_entry_that_overlaps(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5, 5)

    async def scan(from_offset: int, to_offset: int | None = None) -> list[int]:
        (page,) = await backend.store.scan_entries(
            [ScanRange(key=led.key, from_offset=from_offset, to_offset=to_offset)], limit=100
        )
        assert page.more is False
        assert page.partition.high_watermark == 20
        return [entry.base_offset for entry in page.entries]

    assert await scan(0) == [0, 5, 10, 15]
    assert await scan(-5) == [0, 5, 10, 15]
    assert await scan(4) == [0, 5, 10, 15]
    assert await scan(5) == [5, 10, 15]
    assert await scan(19) == [15]
    assert await scan(20) == []
    assert await scan(0, 5) == [0]
    assert await scan(0, 6) == [0, 5]
    assert await scan(7, 8) == [5]
    assert await scan(4, 16) == [0, 5, 10, 15]
    assert await scan(7, 7) == []
    assert await scan(8, 7) == []
    assert await scan(5, 1000) == [5, 10, 15]


async def test_a_scan_pages_forward_and_says_when_more_is_there(backend: Backend) -> None:
    led = await log_of(backend, *[2] * 7)
    position, pages = 0, []
    while True:
        (page,) = await backend.store.scan_entries([ScanRange(key=led.key, from_offset=position)], limit=3)
        pages.append([entry.base_offset for entry in page.entries])
        if not page.more:
            break
        position = page.entries[-1].end_offset + 1
    assert pages == [[0, 2, 4], [6, 8, 10], [12]]
    (page,) = await backend.store.scan_entries([ScanRange(key=led.key, from_offset=0, to_offset=6)], limit=3)
    assert ([entry.base_offset for entry in page.entries], page.more) == ([0, 2, 4], False)


async def test_one_scan_reads_many_partitions_and_leaves_out_the_missing(backend: Backend) -> None:
    one = await log_of(backend, 1, 1, 1, name="one")
    two = await log_of(backend, 4, 4, name="two")
    empty = await backend.led("empty")
    missing = PartitionKey(one.key.topic_id, 5)
    ranges = [
        ScanRange(key=two.key, from_offset=0),
        ScanRange(key=missing, from_offset=0),
        ScanRange(key=empty.key, from_offset=0),
        ScanRange(key=one.key, from_offset=1),
        ScanRange(key=two.key, from_offset=5, to_offset=8),
    ]
    pages = await backend.store.scan_entries(ranges, limit=2)
    assert [page.partition.key for page in pages] == [two.key, empty.key, one.key, two.key]
    assert [[entry.base_offset for entry in page.entries] for page in pages] == [[0, 4], [], [1, 2], [4]]
    assert not any(page.more for page in pages)
    assert await backend.store.scan_entries([], limit=2) == []


async def test_a_scan_after_trimming_begins_at_what_is_left(backend: Backend) -> None:
    led = await log_of(backend, 5, 5, 5)
    await backend.store.advance_log_start(led.key, 6)
    (page,) = await backend.store.scan_entries([ScanRange(key=led.key, from_offset=0)], limit=10)
    assert [entry.base_offset for entry in page.entries] == [5, 10]
    assert page.partition.log_start_offset == 6


async def test_a_scan_of_too_many_or_no_entries_is_refused(backend: Backend) -> None:
    led = await log_of(backend, 1)
    ranges = [ScanRange(key=led.key, from_offset=0)]
    with pytest.raises(LimitExceeded):
        await backend.store.scan_entries(ranges, limit=MAX_SCAN_ENTRIES + 1)
    for limit in (0, -1):
        with pytest.raises(InvalidRequest):
            await backend.store.scan_entries(ranges, limit=limit)
    (page,) = await backend.store.scan_entries(ranges, limit=MAX_SCAN_ENTRIES)
    assert len(page.entries) == 1
