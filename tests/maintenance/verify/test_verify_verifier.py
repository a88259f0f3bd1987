"""The run: what goes on beside it is not damage, what it keeps and gives back, what it tells and where it ends."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from verify_world import START_MS, World, Written

from streamhouse.core.errors import InvalidRequest, StoreUnavailable, TopicNotFound
from streamhouse.maintenance.verify import FindingKind, VerifyDepth, VerifyOptions
from streamhouse.maintenance.verify.objects import MAX_ENTRY_FINDINGS
from streamhouse.metadata.contract import EntryKind

K = FindingKind


async def filled(world: World, entries: int = 6, name: str = "orders") -> Written:
    (log,) = await world.topic(name)
    for number in range(entries):
        if number % 2:
            await world.blob((log, log.batches(2, 1)))
        else:
            await world.segment(log, log.batches(1, 2))
    return log


async def lose_pins(world: World) -> None:
    """As after a pause of the verifying process that was longer than its pin lives."""
    await world.metadata.release_pins([pin.pin_id for pin in await world.metadata.list_pins()])


async def test_a_healthy_log_has_no_findings_at_any_depth(world: World) -> None:
    log = await filled(world)
    await world.topic("empty")
    for depth in VerifyDepth:
        told = await world.verify(depth)
        assert told.findings == []
        assert (told.summary.depth, told.summary.partitions, told.summary.entries) == (depth, 2, 6)
        assert told.summary.is_healthy
        assert {item.key: item.next_offset for item in told.progress if item.is_done}[log.key] == 18


# The pin.


async def test_r7_a_pin_is_there_before_the_first_read_and_gone_after_the_last(world: World) -> None:
    await filled(world)
    seen = []

    async def look() -> None:
        seen.append([pin.owner for pin in await world.metadata.list_pins()])

    world.store.before = look
    await world.verify(owner="verify of agent-1", partitions_at_a_time=1, entries_at_a_time=1)
    assert len(seen) > 6
    assert all(owners == ["verify of agent-1"] for owners in seen)
    assert await world.metadata.list_pins() == []


async def test_r7_an_error_of_the_store_ends_the_run_and_releases_the_pin(world: World) -> None:
    """A run that could not read everything must not look like one that has found nothing."""
    await filled(world)

    async def fail() -> None:
        raise StoreUnavailable("away")

    world.store.before = fail
    with pytest.raises(StoreUnavailable, match="away"):
        await world.verify()
    assert await world.metadata.list_pins() == []


async def test_r7_vacuum_keeps_what_a_verification_is_about_to_read(world: World) -> None:
    log = await filled(world)
    deleted = []

    async def replace_all() -> None:
        if not deleted:
            deleted.append(0)
            await world.compact(log, await world.entries(log))
            deleted[0] = await world.vacuum()

    world.store.before = replace_all
    told = await world.verify()
    assert (deleted, told.findings, told.summary.changed_entries) == ([0], [], 0)
    assert await world.vacuum() == 6, "nothing keeps them afterwards"


# What changes meanwhile.


async def test_r7_an_entry_that_compaction_replaced_is_no_finding_and_its_successor_is_verified(world: World) -> None:
    log = await filled(world)
    packed: list[Any] = []

    async def replace_all() -> None:
        if not packed:
            packed.append(None)
            packed[0] = await world.compact(log, await world.entries(log))
            await lose_pins(world)
            assert await world.vacuum() == 6

    world.store.before = replace_all
    told = await world.verify()
    assert told.findings == []
    assert told.summary.changed_entries >= 1
    assert told.summary.is_healthy
    assert packed[0].object_key in world.store.heads


async def test_r7_damage_to_the_successor_is_found(world: World) -> None:
    log = await filled(world)
    packed: list[Any] = []

    async def replace_all() -> None:
        if not packed:
            packed.append(None)
            packed[0] = await world.compact(log, await world.entries(log))
            await lose_pins(world)
            await world.vacuum()
            await world.store.delete([packed[0].object_key])

    world.store.before = replace_all
    told = await world.verify()
    assert told.kinds == [K.MISSING_OBJECT], "once, although it took the place of six"
    assert (told.findings[0].object_key, told.findings[0].end_offset) == (packed[0].object_key, 17)


async def test_r7_entries_that_retention_dropped_are_no_findings(world: World) -> None:
    log = await filled(world)
    trimmed = []

    async def trim() -> None:
        if not trimmed:
            trimmed.append(True)
            await world.metadata.advance_log_start(log.key, 10)
            await lose_pins(world)
            assert await world.vacuum() == 3

    world.store.before = trim
    told = await world.verify(page_entries=2)
    assert told.findings == []
    assert told.progress[-1].next_offset == 18


async def test_r7_a_missing_object_that_the_metadata_still_names_is_a_finding(world: World) -> None:
    log = await filled(world)
    entry = (await world.entries(log))[2]
    await world.store.delete([entry.object_key])
    told = await world.verify()
    assert told.kinds == [K.MISSING_OBJECT]
    assert told.findings[0].object_key == entry.object_key
    assert "the object is missing" in str(told.findings[0])
    assert str(told.findings[0]).startswith("missing-object: orders/0, offsets 6 to 8, topics/")


async def test_r19_a_topic_that_is_deleted_meanwhile_has_no_findings(world: World) -> None:
    log = await filled(world)
    deleted = []

    async def delete() -> None:
        if not deleted:
            deleted.append(True)
            await world.metadata.delete_topic(log.key.topic_id)
            while await world.metadata.purge_deleted_topics(limit=100):
                pass
            await lose_pins(world)
            assert await world.vacuum() == 6

    world.store.before = delete
    told = await world.verify(page_entries=2)
    assert told.findings == []
    assert told.summary.gone_partitions == 1


class Meddling:
    """The metadata store; something happens before each call of one name."""

    def __init__(self, inner: Any, name: str, before: Any) -> None:
        self._inner, self._name, self._before = inner, name, before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._name:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._before()
            return await found(*args, **kwargs)

        return call


async def test_r19_a_history_that_was_deleted_with_its_topic_is_no_finding(world: World) -> None:
    log = await filled(world)
    deleting = Meddling(world.metadata, "epoch_history", lambda: world.metadata.delete_topic(log.key.topic_id))
    assert (await world.verify(metadata=deleting)).findings == []


async def test_a_take_over_between_the_page_and_the_history_is_no_finding(world: World) -> None:
    log = await filled(world)
    taking = Meddling(world.metadata, "epoch_history", lambda: world.take_over(log))
    assert (await world.verify(metadata=taking, page_entries=2)).findings == []
    assert log.epoch > 2


async def test_a_compaction_across_the_border_of_two_pages_is_no_finding(world: World) -> None:
    log = await filled(world)
    pages = 0

    async def compact() -> None:
        nonlocal pages
        pages += 1
        if pages == 2:  # the first page had two entries: this one begins within the second
            await world.compact(log, (await world.entries(log))[:4])

    compacting = Meddling(world.metadata, "scan_entries", compact)
    told = await world.verify(metadata=compacting, page_entries=2)
    assert told.findings == []
    assert [item.next_offset for item in told.progress] == [6, 15, 18]


async def test_a_writer_cannot_keep_a_verification_going(world: World) -> None:
    log = await filled(world)

    async def write() -> None:
        for _ in range(3):
            await world.segment(log, log.batches(1))

    writing = Meddling(world.metadata, "scan_entries", write)
    told = await world.verify(metadata=writing, page_entries=2)
    assert told.findings == []
    assert told.progress[-1].is_done
    assert 21 <= told.progress[-1].next_offset < log.next_offset, "to the watermark that the first page has shown"


async def test_the_tail_is_judged_also_when_the_log_has_grown(world: World) -> None:
    log = await filled(world)
    scans = 0

    async def write() -> None:
        nonlocal scans
        scans += 1
        await world.segment(log, log.batches(1))
        if scans == 4:  # the page that looks at the tail
            await world.change_partition(log, "high_watermark", log.next_offset + 5)

    writing = Meddling(world.metadata, "scan_entries", write)
    told = await world.verify(metadata=writing, page_entries=3)
    assert scans == 4
    assert told.kinds == [K.WATERMARK]


async def test_r7_beside_a_writer_retention_compaction_and_vacuum_there_are_no_findings(world: World) -> None:
    await beside_everything(world)


async def test_r7_beside_everything_on_postgresql_there_are_no_findings(postgres_world: World) -> None:
    await beside_everything(postgres_world)


async def beside_everything(world: World) -> None:
    logs = await world.topic("orders", 3)
    for log in logs:
        await world.segment(log, log.batches(2, 2))
    ended = asyncio.Event()
    rounds = compactions = 0

    async def write() -> None:
        nonlocal rounds
        while not ended.is_set():
            rounds += 1
            await world.blob(*[(log, log.batches(1, 2)) for log in logs])
            await world.segment(logs[rounds % 3], logs[rounds % 3].batches(2, 1))
            if rounds % 7 == 0:
                await world.take_over(logs[0])

    async def tidy() -> None:
        nonlocal compactions
        while not ended.is_set():
            for log in logs:
                entries = await world.entries(log)
                if len(entries) > 6:
                    await world.metadata.advance_log_start(log.key, entries[2].base_offset)
                    await world.compact(log, entries[3:6])
                    compactions += 1
            await world.vacuum()

    async def verify() -> None:
        try:
            for turn, depth in enumerate(itertools.cycle((VerifyDepth.BYTES, VerifyDepth.QUICK, VerifyDepth.DEEP))):
                if turn >= 9 and rounds >= 5 and compactions >= 3:
                    break
                told = await world.verify(depth, page_entries=3)
                assert told.findings == [], "\n".join(map(str, told.findings))
        finally:
            ended.set()

    async with asyncio.TaskGroup() as group:
        for work in (write, tidy, verify):
            group.create_task(work())
    assert (await world.verify()).findings == []


# Reading.


async def test_bytes_that_were_damaged_on_their_way_are_read_again(world: World) -> None:
    await filled(world)
    damaged: list[str] = []

    def once(key: str, offset: int, data: memoryview) -> memoryview:
        if key in damaged:
            return data
        damaged.append(key)
        changed = bytearray(data)
        changed[len(changed) // 2] ^= 1
        return memoryview(changed)

    world.store.damage = once
    told = await world.verify()
    assert told.findings == []
    assert told.summary.repeated_reads == len(damaged) == 6


async def test_memory_is_bounded_however_large_the_objects_are(world: World) -> None:
    (log,) = await world.topic()
    for _ in range(6):
        await world.segment(log, log.batches(*[3] * 60), block_bytes=300)
    await world.blob((log, log.batches(*[3] * 200)))
    sizes = [entry.byte_length for entry in await world.entries(log)]
    world.store.gets.clear()
    told = await world.verify(run_bytes=1024, read_bytes=4096, reads_at_a_time=3)
    assert told.findings == []
    assert min(sizes) > 5_000
    assert world.store.most_bytes <= 4096 + 65_536, "one tail, which is read alone, or runs of 1 KiB"
    assert world.store.most_calls <= 3
    runs = [length for _, offset, length in world.store.gets if offset > 0 or length <= 1024]
    assert len(runs) > 40
    assert told.summary.read_bytes == sum(length for _, _, length in world.store.gets)


async def test_a_segment_that_is_damaged_all_over_gives_a_bounded_number_of_findings(world: World) -> None:
    (log,) = await world.topic()
    entry = await world.segment(log, log.batches(*[1] * 150), block_bytes=61)
    size = entry.byte_length

    def spoil(data: bytearray) -> None:
        for position in range(20, size - 3000, 40):
            data[position] ^= 1

    await world.change_object(entry.object_key, spoil)
    told = await world.verify(run_bytes=1024)
    assert told.kinds == [K.BLOCK] * MAX_ENTRY_FINDINGS


async def test_partitions_that_share_a_blob_share_its_requests(world: World) -> None:
    logs = await world.topic("orders", 20)
    await world.blob(*[(log, log.batches(1)) for log in logs])
    world.store.gets.clear()
    told = await world.verify()
    assert told.findings == []
    assert len(world.store.heads) == 1
    assert len(world.store.gets) == 20 + 1, "each slice, and the header"


async def test_small_windows_cut_slices_within_batches(world: World) -> None:
    """Each batch is larger than a window, or cut by its end."""
    (log,) = await world.topic()
    await world.blob((log, log.batches(150, 1, 1, 80, 1, 200)))
    for run_bytes in (1024, 1500, 2048):
        assert (await world.verify(run_bytes=run_bytes)).findings == []


async def test_r18_emptied_batches_of_key_compaction_are_healthy(world: World) -> None:
    log = await filled(world)
    sources = (await world.entries(log))[:4]
    await world.compact(log, sources, keep=lambda offset: offset in (3, 7))
    await filled_more(world, log)
    told = await world.verify()
    assert told.findings == []
    assert (await world.entries(log))[0].record_count == 2


async def filled_more(world: World, log: Written) -> None:
    await world.blob((log, [log.batch(2, first_ms=START_MS - 500)]))


# What is asked and told.


async def test_only_the_asked_topics_are_verified(world: World) -> None:
    log = await filled(world, name="orders")
    await filled(world, name="users")
    await world.store.delete([(await world.entries(log))[0].object_key])
    assert (await world.verify(topics=["users"])).summary.partitions == 1
    assert (await world.verify(topics=["users", "orders", "users"])).kinds == [K.MISSING_OBJECT]
    with pytest.raises(TopicNotFound):
        await world.verify(topics=["nothing"])
    assert await world.metadata.list_pins() == []


async def test_progress_is_told_after_each_page(world: World) -> None:
    log = await filled(world, 5)
    told = await world.verify(page_entries=2)
    assert [(item.next_offset, item.is_done) for item in told.progress] == [
        (6, False),
        (9, False),
        (12, False),
        (15, True),
    ]
    assert {(item.topic, item.key, item.high_watermark) for item in told.progress} == {("orders", log.key, 15)}
    assert told.summary.entries == 5, "each once, although pages overlap by one"


async def test_kinds_of_entries_are_all_read(world: World) -> None:
    log = await filled(world)
    await world.compact(log, (await world.entries(log))[:2])
    assert {entry.kind for entry in await world.entries(log)} == set(EntryKind)
    assert (await world.verify()).findings == []


def test_options_without_room_are_refused() -> None:
    for wrong in ({"page_entries": 1}, {"page_entries": 10_001}, {"reads_at_a_time": 0}, {"run_bytes": 100}):
        with pytest.raises(InvalidRequest):
            VerifyOptions(**wrong)
