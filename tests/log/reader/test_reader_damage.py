"""Objects that are missing or damaged: what is said of them, how often, and when it is over."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from reading import Library, Shelf, at_once, batches, offsets_in

from streamhouse.core.errors import DamagedObject, StreamHouseError
from streamhouse.formats.segment_v1_reader import read_segment
from streamhouse.log.reader import damage, objects
from streamhouse.log.reader.cursor import ReadRequest, ReadResult
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.metadata.contract import Entry
from virtual_time import LoopClock

HOUR_MS = 3_600_000


class Ward:
    """A reader of a log of three entries of four offsets each, with its lines and its health."""

    def __init__(self, library: Library, shelf: Shelf, entries: list[Entry]) -> None:
        self.library = library
        self.shelf = shelf
        self.entries = entries
        self.health: Exception | None = None
        self.lines = Lines()
        damage._log.addHandler(self.lines)
        library.callback(damage._log.removeHandler, self.lines)
        self.reader = self._reader()
        self.kept: dict[str, bytes] = {}

    @classmethod
    async def made(cls, library: Library, kind: Any = "segment") -> Ward:
        shelf = await library.shelf()
        return cls(library, shelf, [await shelf.add(2, kind=kind) for _ in range(3)])

    def _reader(self) -> LogReader:
        def report(where: str, error: Exception | None) -> None:
            assert where == damage.HEALTH
            self.health = error

        reader = LogReader(
            metadata=self.library.metadata,
            store=self.library.store,
            tail=TailCache(0),
            leading=None,
            clock=LoopClock(),
            options=ReaderOptions(read_ahead_bytes=0, block_cache_bytes=0),
            report=report,
        )
        self.library.push_async_callback(reader.close)
        return reader

    async def lose(self, entry: Entry) -> None:
        self.kept[entry.object_key] = bytes(await self.library.store.get(entry.object_key))
        await self.library.store.delete([entry.object_key])

    async def flip(self, entry: Entry) -> None:
        await self.lose(entry)
        stored = bytearray(self.kept[entry.object_key])
        stored[entry.byte_offset + entry.byte_length // 2] ^= 4
        await self.library.store.put(entry.object_key, stored)

    async def restore(self, entry: Entry) -> None:
        await self.library.store.delete([entry.object_key])
        await self.library.store.put(entry.object_key, self.kept[entry.object_key])

    async def refused(self, offset: int) -> DamagedObject:
        with pytest.raises(DamagedObject) as caught:
            await self.reader.read(self.shelf.key, offset, max_bytes=1)
        return caught.value


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self, level: int = logging.ERROR) -> list[str]:
        return [record.getMessage() for record in self.records if record.levelno == level]


@pytest.mark.parametrize("kind", ["segment", "blob"])
@pytest.mark.parametrize("how", ["lose", "flip"])
def test_damage_is_told_once_and_counted_and_shown_until_it_is_repaired(kind: str, how: str) -> None:
    @at_once
    async def test() -> None:
        async with Library() as library:
            ward = await Ward.made(library, kind)
            entry = ward.entries[1]
            await getattr(ward, how)(entry)
            for _ in range(50):
                error = await ward.refused(5)
                await asyncio.sleep(0.1)
            assert error.kafka_code == 2
            assert offsets_in(await ward.reader.read(ward.shelf.key, 8, max_bytes=1)) == [8, 9]
            (line,) = ward.lines.texts()
            for said in ("orders/0, offsets 4 to 7", "bytes ", entry.object_key, "restore the object", "to offset 8"):
                assert said in line
                assert said in str(error)
                assert said in str(ward.health)
            assert ward.reader.stats.damaged_ranges == 1
            assert ward.reader.stats.damaged_reads == 50
            (record,) = ward.lines.records
            assert (record.object_key, record.partition) == (entry.object_key, "orders/0")  # type: ignore[attr-defined]

            await ward.restore(entry)
            await asyncio.sleep(1)
            assert offsets_in(await ward.reader.read(ward.shelf.key, 4, max_bytes=1)) == [4, 5]
            await asyncio.sleep(2)
            assert ward.health is None
            assert len(ward.lines.texts(logging.WARNING)) == 1
            assert "can be read again" in ward.lines.texts(logging.WARNING)[0]

    test()


@at_once
async def test_a_range_that_nobody_reads_any_more_is_checked_all_the_same() -> None:
    async with Library() as library:
        ward = await Ward.made(library)
        await ward.lose(ward.entries[0])
        await ward.refused(0)
        await ward.restore(ward.entries[0])
        assert ward.health is not None
        await asyncio.sleep(10)
        assert ward.health is None


@at_once
async def test_what_lies_below_the_log_start_or_in_a_deleted_topic_is_no_damage_any_more() -> None:
    async with Library() as library:
        ward = await Ward.made(library)
        await ward.lose(ward.entries[0])
        await ward.refused(0)
        await library.metadata.advance_log_start(ward.shelf.key, 4)
        await asyncio.sleep(10)
        assert ward.health is None
        await ward.flip(ward.entries[1])
        await ward.refused(4)
        await library.metadata.delete_topic(ward.shelf.topic.topic_id)
        await asyncio.sleep(10)
        assert ward.health is None
        assert all("no longer part of the log" in line for line in ward.lines.texts(logging.WARNING))


@at_once
async def test_r7_a_damaged_object_that_compaction_has_replaced_is_no_damage() -> None:
    async with Library() as library:
        ward = await Ward.made(library)
        assert offsets_in(await ward.reader.read(ward.shelf.key, 0, max_bytes=1)) == [0, 1]  # the entries are cached
        await ward.shelf.compact(ward.entries[:2], batches(4, epoch=ward.shelf.epoch))
        await ward.flip(ward.entries[1])
        assert offsets_in(await ward.reader.read(ward.shelf.key, 4, max_bytes=1)) == [4, 5]
        assert ward.reader.stats.resolved_again == 1
        assert (ward.lines.records, ward.health) == ([], None)


@pytest.mark.parametrize("kind", ["segment", "blob"])
def test_a_torn_download_is_no_damage(kind: str) -> None:
    @at_once
    async def test() -> None:
        async with Library() as library:
            ward = await Ward.made(library, kind)
            left = 1

            def tear(key: str, offset: int, data: memoryview) -> memoryview:
                nonlocal left
                left -= 1
                return memoryview(bytes(data[:-9]) + b"\0" * 9) if left >= 0 else data

            library.store.damage = tear
            assert offsets_in(await ward.reader.read(ward.shelf.key, 4, max_bytes=1)) == [4, 5]
            assert ward.reader.stats.corrupt_downloads == 1
            assert ward.reader.stats.damaged_reads == 0
            assert (ward.lines.records, ward.health) == ([], None)

    test()


@at_once
async def test_many_that_poll_for_a_damaged_range_do_not_download_it_each_time() -> None:
    async with Library() as library:
        ward = await Ward.made(library)
        await ward.flip(ward.entries[1])
        await ward.refused(4)
        gets = len(library.store.gets)
        for _ in range(100):
            await ward.refused(4)
        assert len(library.store.gets) == gets
        await asyncio.sleep(1)
        await ward.refused(4)
        assert len(library.store.gets) > gets


@at_once
async def test_one_who_polls_twice_a_second_reads_a_restored_object_soon() -> None:
    """What is remembered of an object is not renewed by those who were refused for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(damage, "_CHECK_EVERY_S", HOUR_MS)
        async with Library() as library:
            ward = await Ward.made(library)
            await ward.lose(ward.entries[1])
            for _ in range(10):
                await ward.refused(4)
                await asyncio.sleep(0.3)
            await ward.restore(ward.entries[1])
            for _ in range(4):
                await asyncio.sleep(0.3)
                with suppress(DamagedObject):
                    await ward.reader.read(ward.shelf.key, 4, max_bytes=1)
            assert offsets_in(await ward.reader.read(ward.shelf.key, 4, max_bytes=1)) == [4, 5]
            await asyncio.sleep(2)
            assert ward.health is None


@at_once
async def test_a_missing_blob_is_damage_of_each_of_its_partitions() -> None:
    """What is remembered of an object must not give one partition another's name and offsets."""
    async with Library() as library:
        one, other = await library.shelves("many", 2)
        entry = await one.add(2, kind="blob")
        ward = Ward(library, one, [entry])
        await ward.lose(entry)
        await ward.refused(0)
        theirs = replace(entry, base_offset=70, end_offset=73, byte_offset=0)
        gets = len(library.store.gets)
        (stretch,) = await ward.reader._objects.stretches(other.key, theirs, 70)
        with pytest.raises(DamagedObject) as caught:
            await ward.reader._objects.block(stretch)
        assert len(library.store.gets) == gets
        assert (caught.value.where, caught.value.base_offset) == (str(other.key), 70)


@at_once
async def test_damage_that_stays_is_told_again_after_five_minutes_if_reads_meet_it() -> None:
    async with Library() as library:
        ward = await Ward.made(library)
        await ward.lose(ward.entries[0])
        for _ in range(11):
            await ward.refused(0)
            await asyncio.sleep(60)
        assert len(ward.lines.texts()) == 3
        assert "(5 reads failed since the last line)" in ward.lines.texts()[1]
        await asyncio.sleep(HOUR_MS / 1000)
        assert len(ward.lines.texts()) == 3


@at_once
async def test_a_bucket_that_lost_everything_does_not_flood_the_log() -> None:
    async with Library() as library:
        shelf = await library.shelf()
        ward = Ward(library, shelf, [await shelf.add(1) for _ in range(60)])
        for entry in ward.entries:
            await ward.lose(entry)
        for entry in ward.entries:
            await ward.refused(entry.base_offset)
        assert len(ward.lines.texts()) == 20
        assert "and 59 more damaged ranges" in str(ward.health)
        assert ward.reader.stats.damaged_ranges == 60
        for entry in ward.entries:
            await ward.restore(entry)
        await asyncio.sleep(60)
        assert ward.health is None
        assert any("more lines like these were left out" in line for line in ward.lines.texts())


@at_once
async def test_the_damage_that_is_known_is_bounded() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(damage, "MAX_KNOWN_DAMAGE", 2)
        patch.setattr(objects, "MAX_KNOWN_DAMAGE", 2)
        async with Library() as library:
            ward = await Ward.made(library)
            for entry in ward.entries:
                await ward.lose(entry)
                await ward.refused(entry.base_offset)
            assert "and 1 more damaged ranges" in str(ward.health)
            assert len(ward.reader._damages) == len(ward.reader._objects._confirmed) == 2


@at_once
async def test_a_store_that_is_away_while_damage_is_checked_changes_nothing() -> None:
    async with Library() as library:
        ward = await Ward.made(library)
        await ward.lose(ward.entries[0])
        await ward.refused(0)

        async def away(key: str) -> None:
            raise StreamHouseError("away")

        library.store.before_get = away
        await asyncio.sleep(20)
        assert ward.health is not None
        library.store.before_get = None
        await ward.restore(ward.entries[0])
        await asyncio.sleep(10)
        assert ward.health is None


# Several partitions in one read.


async def ask(ward: Ward, other: Shelf, *, wait_ms: int, wait: bool) -> list[ReadResult | StreamHouseError]:
    requests = [ReadRequest(ward.shelf.key, 0, 1 << 20), ReadRequest(other.key, other.next_offset, 1 << 20)]
    return await ward.reader.read_many(requests, max_bytes=1 << 20, max_wait_ms=wait_ms, wait_despite_damage=wait)


@at_once
async def test_a_read_that_waits_paces_clients_that_ask_again_at_once() -> None:
    async with Library() as library:
        ward = await Ward.made(library)
        other = await library.shelf("other")
        await ward.lose(ward.entries[0])
        loop = asyncio.get_running_loop()
        for wait, wait_ms, took_s in ((False, HOUR_MS, 0.0), (True, HOUR_MS, 0.5), (True, 200, 0.2), (True, 0, 0.0)):
            begun_s = loop.time()
            damaged, empty = await ask(ward, other, wait_ms=wait_ms, wait=wait)
            assert loop.time() - begun_s == pytest.approx(took_s)  # virtual time
            assert isinstance(damaged, DamagedObject)
            assert isinstance(empty, ReadResult)


@at_once
async def test_a_read_that_waits_answers_as_soon_as_another_partition_has_something() -> None:
    async with Library() as library:
        ward = await Ward.made(library)
        other = await library.shelf("other")
        await ward.lose(ward.entries[0])
        asking = asyncio.create_task(ask(ward, other, wait_ms=HOUR_MS, wait=True))
        await asyncio.sleep(0.1)
        begun_s = asyncio.get_running_loop().time()
        await other.add(1)
        damaged, found = await asking
        assert asyncio.get_running_loop().time() - begun_s < 0.4  # virtual time
        assert isinstance(damaged, DamagedObject)
        assert isinstance(found, ReadResult)
        assert offsets_in(found) == [0, 1]


# Blocks fetched together.


@pytest.mark.parametrize("how", ["flip", "cut"])
def test_a_damaged_block_does_not_fail_those_that_are_fetched_with_it(how: str) -> None:
    @at_once
    async def test() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(objects, "_WHOLE_SEGMENT_BYTES", 0)
            async with Library() as library:
                shelf = await library.shelf()
                entry = await shelf.add(12, target_block_bytes=250)
                ward = Ward(library, shelf, [entry])
                stored = bytearray(await library.store.get(entry.object_key))
                blocks = read_segment(stored).index.blocks
                reader = ward.reader._objects
                stretches = list(await reader.stretches(shelf.key, entry, 0))
                await ward.lose(entry)
                if how == "flip":
                    stored[blocks[-1].file_offset + 30] ^= 1
                else:
                    del stored[blocks[-1].file_offset + 30 :]
                await library.store.put(entry.object_key, stored)
                begun = reader.fetch_ahead(stretches)
                assert len(begun) == 1
                for stretch in stretches[:-1]:
                    block = await reader.block(stretch)
                    assert block.nexts[-1] == stretch.end_offset + 1
                with pytest.raises(DamagedObject) as caught:
                    await reader.block(stretches[-1])
                assert caught.value.base_offset == blocks[-1].base_offset

    test()
