"""Lookups by timestamp: the first record at or after a time, and the newest by time. Always fresh (R16).

The metadata store finds the entry, a segment's index the block, a batch's header the batch; only that batch is decoded.
All three use the largest time that a batch *declares*. A producer may declare a larger time than its records have, and
the log start may lie behind the record with that time. Then the search goes on with what follows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from streamhouse.core.errors import CorruptData, DamagedObject
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import KIB, MAX_INFLATED_BATCH_BYTES
from streamhouse.log.offload import Offload
from streamhouse.log.reader.blocks import Block
from streamhouse.log.reader.damage import Damages
from streamhouse.log.reader.entries import EntryFinder
from streamhouse.log.reader.objects import ObjectReader
from streamhouse.log.reader.protocols import BufferedBatch, LedPartitions
from streamhouse.metadata.contract import Entry, MetadataStore
from streamhouse.wire.batch import read_header
from streamhouse.wire.buffers import BytesLike, byte_view
from streamhouse.wire.records import inflate_body, iter_raw_records

_MAX_REPLACED: Final = 10  # objects that vanish one after another during one search: compaction is not that fast
_OFFLOAD_FROM_BYTES: Final = 64 * KIB


class TimedOffset(NamedTuple):
    offset: int
    timestamp_ms: int


class TimeSearch:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        entries: EntryFinder,
        objects: ObjectReader,
        damages: Damages,
        leading: LedPartitions | None,
        offload: Offload,
    ) -> None:
        self._metadata = metadata
        self._entries = entries
        self._objects = objects
        self._damages = damages
        self._leading = leading
        self._offload = offload

    async def first_at(self, key: PartitionKey, timestamp_ms: int) -> TimedOffset | None:
        """The first record with this time or a later one."""
        # Read before the metadata store: what leaves the buffer from now on is in the store's answer.
        buffered = [batch.data for batch in self._buffered(key) if batch.header.max_timestamp >= timestamp_ms]
        suspect: set[str] = set()
        while True:
            try:
                lookup = await self._metadata.find_entry_by_timestamp(key, timestamp_ms)
                start = lookup.partition.log_start_offset
                if lookup.entry is not None:
                    async for entry in self._from(key, lookup.entry):
                        found = await self._first_in_entry(key, entry, timestamp_ms, start)
                        if found is not None:
                            return found
                break
            except DamagedObject as error:
                await self._resolve_again(key, suspect, error)
        for batch in buffered:
            found = await self._in_batch(batch, timestamp_ms, start)
            if found is not None:
                return found
        return None

    async def newest(self, key: PartitionKey) -> TimedOffset | None:
        """The first record among those with the largest time; None for a log without records."""
        buffered = sorted(self._buffered(key), key=lambda batch: (-batch.header.max_timestamp, batch.base_offset))
        best: TimedOffset | None = None
        suspect: set[str] = set()
        while True:
            try:
                best = await self._newest_committed(key)
                break
            except DamagedObject as error:
                await self._resolve_again(key, suspect, error)
        for batch in buffered:
            if best is not None and batch.header.max_timestamp <= best.timestamp_ms:
                break
            best = _later(best, await self._in_batch(batch.data, None, 0))
        return best

    async def _resolve_again(self, key: PartitionKey, suspect: set[str], error: DamagedObject) -> None:
        """R7: compaction may have replaced the object. Raises when a second look names the same one."""
        if error.object_key in suspect or len(suspect) >= _MAX_REPLACED:
            raise await self._damages.declare(key, error) from error
        suspect.add(error.object_key)
        self._objects.forget_index(error.object_key)

    async def _newest_committed(self, key: PartitionKey) -> TimedOffset | None:
        lookup = await self._metadata.find_max_timestamp_entry(key)
        if lookup.entry is None:
            return None
        start = lookup.partition.log_start_offset
        best = await self._newest_in_entry(key, lookup.entry, start, None)
        if best is not None and best.timestamp_ms >= lookup.entry.max_timestamp_ms:
            return best
        # The record with that time is below the log start, or never existed: any entry may have the next best.
        async for entry in self._from(key, lookup.entry, from_offset=start):
            if best is None or entry.max_timestamp_ms > best.timestamp_ms:
                best = _later(best, await self._newest_in_entry(key, entry, start, best))
        return best

    async def _first_in_entry(
        self, key: PartitionKey, entry: Entry, timestamp_ms: int, start: int
    ) -> TimedOffset | None:
        if entry.max_timestamp_ms < timestamp_ms:
            return None
        for stretch in await self._objects.stretches(key, entry, start):
            if stretch.max_timestamp_ms < timestamp_ms:
                continue
            block = await self._objects.block(stretch)
            for at in _from_offset(block, start):
                if block.times_ms[at] >= timestamp_ms:
                    found = await self._in_batch(block.batch(at), timestamp_ms, start, entry=entry)
                    if found is not None:
                        return found
        return None

    async def _newest_in_entry(
        self, key: PartitionKey, entry: Entry, start: int, best: TimedOffset | None
    ) -> TimedOffset | None:
        for stretch in await self._objects.stretches(key, entry, start):
            if best is not None and stretch.max_timestamp_ms <= best.timestamp_ms:
                continue
            block = await self._objects.block(stretch)
            for at in _from_offset(block, start):
                if best is None or block.times_ms[at] > best.timestamp_ms:
                    best = _later(best, await self._in_batch(block.batch(at), None, start, entry=entry))
        return best

    async def _from(self, key: PartitionKey, first: Entry, *, from_offset: int | None = None) -> AsyncIterator[Entry]:
        """``first`` and all entries after it; or all from an offset on."""
        offset = from_offset
        if offset is None:
            yield first
            offset = first.end_offset + 1
        while True:
            page = await self._entries.page(key, offset)
            for entry in page.entries:
                yield entry
                offset = entry.end_offset + 1
            if not page.more:
                return

    def _buffered(self, key: PartitionKey) -> list[BufferedBatch]:
        partition = self._leading.partition(key) if self._leading is not None else None
        return [] if partition is None else list(partition.buffered_from(0))

    async def _in_batch(
        self, batch: BytesLike, timestamp_ms: int | None, start: int, *, entry: Entry | None = None
    ) -> TimedOffset | None:
        try:
            if len(batch) < _OFFLOAD_FROM_BYTES:
                return search_batch(batch, timestamp_ms, start)
            return await self._offload.run(search_batch, batch, timestamp_ms, start)
        except CorruptData as error:
            where = "the buffer" if entry is None else entry.object_key
            raise type(error)(f"{error.message} (in {where})", hint=error.hint) from error


def search_batch(batch: BytesLike, timestamp_ms: int | None, start: int) -> TimedOffset | None:
    """The first record at or after ``timestamp_ms`` (with None: the first with the largest time), from ``start`` on.

    Raises CorruptData.
    """
    header = read_header(batch)
    body = inflate_body(byte_view(batch), 0, header, max_bytes=MAX_INFLATED_BATCH_BYTES)
    best: TimedOffset | None = None
    for record in iter_raw_records(body, header, 0):
        offset = header.base_offset + record.offset_delta
        if offset < start:
            continue
        if timestamp_ms is None:
            best = _later(best, TimedOffset(offset, record.timestamp_ms))
        elif record.timestamp_ms >= timestamp_ms:
            return TimedOffset(offset, record.timestamp_ms)
    return best


def _later(best: TimedOffset | None, other: TimedOffset | None) -> TimedOffset | None:
    """The one with the larger time; the first one if they are equal."""
    if best is None or (other is not None and other.timestamp_ms > best.timestamp_ms):
        return other
    return best


def _from_offset(block: Block, start: int) -> range:
    return range(bisect_right(block.nexts, start), len(block.nexts))
