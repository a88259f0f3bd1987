"""Finds the blocks of entries: what to fetch of which object. A block is fetched once for all readers, checked, cached.

    entry ──► segment: footer and index (cached) ──► the block that holds the offset ─┐
          └─► shared blob: the entry's own slice ────────────────────────────────────┴─► one ranged GET, one Block

Every byte returned was checked against a CRC that the footer leads to, or against its batch's own CRC. Damaged bytes
are fetched once more, without any cache: the download may have been damaged. If they are damaged again, or the object
is missing, that is a DamagedObject. It is only a suspicion: the entry may be out of date, and only the metadata store
can tell (R7). Once the caller has confirmed it, the same bytes are not fetched again for a second, however many readers
ask for them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeVar

from streamhouse.core.errors import (
    CorruptData,
    CorruptSegment,
    DamagedObject,
    ObjectNotFound,
    ReadPastEnd,
    StreamHouseError,
    UnsupportedVersion,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_KNOWN_DAMAGE, MIB
from streamhouse.formats.segment_v1 import BlockCodec, BlockInfo, ByteRange, Footer, check_head
from streamhouse.formats.segment_v1_index import Index, range_of
from streamhouse.formats.segment_v1_reader import TAIL_BYTES, RangedReader, decode_block
from streamhouse.log.offload import Offload
from streamhouse.log.reader.blocks import Block, segment_block, slice_block
from streamhouse.log.reader.options import ReaderOptions, ReaderStats
from streamhouse.log.reader.sharing import ByteGate, ByteLru, SharedCalls
from streamhouse.metadata.contract import KAFKA_BATCHES, SEGMENT_V1, Entry
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.topic_requests import caused_by

T = TypeVar("T")

_WHOLE_SEGMENT_BYTES: Final = 2 * MIB
"""A segment up to this size is fetched whole, by one GET for footer, index and blocks. Most flushes are smaller."""
_RUN_BYTES: Final = 4 * MIB
"""Adjacent blocks that are fetched ahead share GETs up to this size."""
_PIECE_BYTES: Final = 64 * MIB
"""A slice larger than this is fetched in pieces."""
_INDEX_BYTES_PER_BLOCK: Final = 400
_TRIES: Final = 2
_DAMAGE_REMEMBERED_S: Final = 1.0


class BlockId(NamedTuple):
    object_key: str
    byte_offset: int
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The place and the offsets of one block."""

    key: PartitionKey
    entry: Entry
    bytes: ByteRange
    """The place of the bytes in the object."""
    base_offset: int
    end_offset: int
    memory_bytes: int
    max_timestamp_ms: int
    info: BlockInfo | None = None
    """None for a slice of a shared blob."""
    sparse: bool = False

    @property
    def ident(self) -> BlockId:
        return BlockId(self.entry.object_key, self.bytes.offset, self.base_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenSegment:
    footer: Footer
    index: Index


class ObjectReader:
    def __init__(self, *, store: ObjectStore, offload: Offload, options: ReaderOptions, stats: ReaderStats) -> None:
        self._store = store
        self._offload = offload
        self._stats = stats
        self._gate = ByteGate(max_bytes=options.max_download_bytes, max_calls=options.max_downloads)
        self._blocks: ByteLru[BlockId, Block] = ByteLru(options.block_cache_bytes)
        self._segments: ByteLru[str, _OpenSegment] = ByteLru(options.index_cache_bytes)
        self._block_calls: SharedCalls[BlockId, Block] = SharedCalls()
        self._segment_calls: SharedCalls[str, _OpenSegment] = SharedCalls()
        self._confirmed: dict[str, tuple[float, DamagedObject]] = {}
        """Tells until when the confirmed damage of each object is believed without another download, with its error."""

    @property
    def cached_bytes(self) -> int:
        return self._blocks.size_bytes

    @property
    def indexed_bytes(self) -> int:
        return self._segments.size_bytes

    async def stretches(self, key: PartitionKey, entry: Entry, offset: int) -> Sequence[Stretch]:
        """The entry's stretches from the one with ``offset``, or the next after it, on; in order.

        There may be none: key compaction may have emptied the rest of the entry (R18).
        Raises DamagedObject, StoreError.
        """
        if entry.encoding == KAFKA_BATCHES:
            return [_slice_stretch(key, entry)]
        if entry.encoding != SEGMENT_V1:
            raise UnsupportedVersion(f"{_where(key, entry)}: its encoding {entry.encoding!r} is unknown")
        segment = self._segments.get(entry.object_key)
        if segment is None:
            self._refuse_confirmed(key, entry, _tail(entry))
            segment = await self._segment_calls.get(entry.object_key, lambda: self._open(key, entry))
        blocks = segment.index.blocks
        first = bisect_left(blocks, offset, key=_end_offset)
        return _BlockStretches(key, entry, blocks, first, sparse=segment.footer.sparse)

    async def block(self, stretch: Stretch) -> Block:
        """Raises DamagedObject, StoreError."""
        found = self._blocks.get(stretch.ident)
        if found is not None:
            self._stats.block_hits += 1
            return found
        self._stats.block_misses += 1
        self._refuse_confirmed(stretch.key, stretch.entry, stretch.bytes, stretch)
        return await self._block_calls.get(stretch.ident, lambda: self._fetch(stretch))

    def read_through(self, stretch: Stretch) -> None:
        """A reader has reached its end: evict it before blocks that were fetched ahead."""
        self._blocks.demote(stretch.ident)

    def fetch_ahead(self, stretches: Iterable[Stretch]) -> list[asyncio.Task[None]]:
        """Start to fetch those that are neither cached nor being fetched. The tasks never fail."""
        begun: list[asyncio.Task[None]] = []
        for run in _runs(each for each in stretches if not self._is_here(each)):
            self._stats.ahead_bytes += sum(each.bytes.length for each in run)
            begun.append(self._block_calls.start([each.ident for each in run], partial(self._fetch_run, run)))
        return begun

    def forget_index(self, object_key: str) -> None:
        """The next read opens the segment again: a damaged cache must not count against an object."""
        if self._recently_confirmed(object_key) is None:
            self._segments.drop(object_key)

    def confirm(self, damage: DamagedObject) -> None:
        """The metadata store still names the object: refuse the same bytes for a second without a download."""
        if self._recently_confirmed(damage.object_key) is not None:
            return  # it may have been refused for this reason, which proves nothing new
        self._confirmed.pop(damage.object_key, None)
        self._confirmed[damage.object_key] = (_now_s() + _DAMAGE_REMEMBERED_S, damage)
        if len(self._confirmed) > MAX_KNOWN_DAMAGE:
            del self._confirmed[next(iter(self._confirmed))]

    async def verify(self, key: PartitionKey, entry: Entry, offset: int) -> None:
        """Download the block with ``offset`` again, without any cache. Raises DamagedObject, StoreError."""
        if entry.encoding == KAFKA_BATCHES:
            await self._fetch(_slice_stretch(key, entry))
        else:
            segment = await self._open(key, entry)
            blocks = segment.index.blocks
            first = bisect_left(blocks, offset, key=_end_offset)
            if first < len(blocks):
                await self._fetch(_BlockStretches(key, entry, blocks, first, sparse=segment.footer.sparse)[0])
        self._confirmed.pop(entry.object_key, None)

    async def close(self) -> None:
        await self._block_calls.close()
        await self._segment_calls.close()

    def _is_here(self, stretch: Stretch) -> bool:
        return stretch.ident in self._blocks or stretch.ident in self._block_calls

    async def _fetch(self, stretch: Stretch) -> Block:
        async def once() -> Block:
            async with self._gate.admit(stretch.memory_bytes):
                return await self._decode(stretch, await self._get(stretch.key, stretch.entry, stretch.bytes))

        block = await self._twice(stretch.key, stretch.entry, stretch.bytes, once, stretch)
        self._keep(stretch, block)
        return block

    async def _fetch_run(self, run: Sequence[Stretch]) -> Sequence[Block | Exception]:
        """Fetch adjacent blocks by one GET. A damaged one is fetched again by itself, and fails by itself."""
        if len(run) == 1:
            return [await self._fetch(run[0])]
        blocks: list[Block | None] = []
        span = range_of([each.info for each in run if each.info is not None])
        async with self._gate.admit(sum(each.memory_bytes for each in run)):
            try:
                stored = await self._get(run[0].key, run[0].entry, span)
            except ObjectNotFound as error:
                raise _missing(run[0].key, run[0].entry) from error
            except ReadPastEnd:  # cut off somewhere: the first blocks may still be there
                self._stats.corrupt_downloads += 1
                stored = memoryview(b"")
            for stretch in run:
                at = stretch.bytes.offset - span.offset
                blocks.append(await self._decode_part(stretch, stored[at : at + stretch.bytes.length], len(stored)))
        for stretch, block in zip(run, blocks, strict=True):
            if block is not None:
                self._keep(stretch, block)
        return [block or await self._fetch_or_error(stretch) for stretch, block in zip(run, blocks, strict=True)]

    async def _fetch_or_error(self, stretch: Stretch) -> Block | Exception:
        try:
            return await self._fetch(stretch)
        except StreamHouseError as error:
            return error

    async def _open(self, key: PartitionKey, entry: Entry) -> _OpenSegment:
        tail = _tail(entry)
        whole = tail.length == entry.byte_length

        async def once() -> _OpenSegment:
            reader = RangedReader(entry.byte_length, tail_bytes=tail.length)
            async with self._gate.admit(tail.length):
                data = memoryview(b"")
                while (need := reader.need()) is not None:
                    data = await self._get(key, entry, need)
                    reader.feed(data)
                if whole:
                    check_head(data)
                _check_footer(reader.footer, key, entry)
                segment = _OpenSegment(footer=reader.footer, index=reader.index)
                if whole:
                    await self._keep_all(key, entry, segment, data)
            return segment

        segment = await self._twice(key, entry, tail, once)
        self._segments.put(entry.object_key, segment, _INDEX_BYTES_PER_BLOCK * (len(segment.index.blocks) + 1))
        return segment

    async def _keep_all(self, key: PartitionKey, entry: Entry, segment: _OpenSegment, data: memoryview) -> None:
        """Keep the blocks that came with the footer. A damaged one is not kept; its reader fetches it again."""
        for stretch in _BlockStretches(key, entry, segment.index.blocks, 0, sparse=segment.footer.sparse):
            block = await self._decode_part(stretch, data[stretch.bytes.offset : stretch.bytes.end], len(data))
            if block is not None:
                self._keep(stretch, block)

    async def _decode_part(self, stretch: Stretch, stored: memoryview, whole_bytes: int) -> Block | None:
        """A block out of a download of ``whole_bytes``; None if damaged."""
        try:
            block = await self._decode(stretch, stored)
        except CorruptData:
            self._stats.corrupt_downloads += 1
            return None
        is_view = stretch.info is not None and stretch.info.codec is BlockCodec.RAW
        return block.cut_out(whole_bytes) if is_view else block

    async def _decode(self, stretch: Stretch, stored: memoryview) -> Block:
        if stretch.info is None:
            return slice_block(stored, stretch.entry)
        if stretch.info.codec is BlockCodec.RAW:
            data = decode_block(stored, stretch.info)
        else:
            data = await self._offload.run(decode_block, stored, stretch.info)
        return segment_block(data, stretch.info, sparse=stretch.sparse)

    async def _get(self, key: PartitionKey, entry: Entry, wanted: ByteRange) -> memoryview:
        """Bytes of an entry's object; the range counts from the object's start."""
        self._stats.downloads += 1
        self._stats.downloaded_bytes += wanted.length
        with caused_by({key.topic_id: wanted.length}):
            if wanted.length <= _PIECE_BYTES:
                return await self._store.get_range(entry.object_key, wanted.offset, wanted.length)
            data = bytearray()
            for at in range(wanted.offset, wanted.end, _PIECE_BYTES):
                data += await self._store.get_range(entry.object_key, at, min(_PIECE_BYTES, wanted.end - at))
        return memoryview(data)

    async def _twice(
        self,
        key: PartitionKey,
        entry: Entry,
        wanted: ByteRange,
        once: Callable[[], Awaitable[T]],
        stretch: Stretch | None = None,
    ) -> T:
        for tries_left in reversed(range(_TRIES)):
            try:
                return await once()
            except ObjectNotFound as error:
                raise _missing(key, entry) from error
            except (CorruptData, ReadPastEnd, UnsupportedVersion) as error:
                # Also a version: where no CRC covers it, a flipped bit makes a newer one.
                self._stats.corrupt_downloads += 1
                if not tries_left:
                    problem = f"{error.message}; {error.hint}" if error.hint else error.message
                    raise _damaged(key, entry, wanted, problem, stretch) from error
        raise AssertionError("unreachable")

    def _refuse_confirmed(
        self, key: PartitionKey, entry: Entry, wanted: ByteRange, stretch: Stretch | None = None
    ) -> None:
        """Raises DamagedObject."""
        damage = self._recently_confirmed(entry.object_key)
        if damage is None:
            return
        if damage.missing:
            raise _missing(key, entry)
        if damage.byte_offset <= wanted.offset and wanted.end <= damage.byte_offset + damage.byte_length:
            raise _damaged(key, entry, wanted, damage.problem, stretch)

    def _recently_confirmed(self, object_key: str) -> DamagedObject | None:
        found = self._confirmed.get(object_key) if self._confirmed else None
        return None if found is None or _now_s() >= found[0] else found[1]

    def _keep(self, stretch: Stretch, block: Block) -> None:
        self._blocks.put(stretch.ident, block, block.memory_bytes)


class _BlockStretches(Sequence[Stretch]):
    """The blocks of a segment from one on. Each Stretch is made when it is used: there may be thousands."""

    def __init__(
        self, key: PartitionKey, entry: Entry, blocks: Sequence[BlockInfo], first: int, *, sparse: bool
    ) -> None:
        self._key = key
        self._entry = entry
        self._blocks = blocks
        self._first = first
        self._sparse = sparse

    def __len__(self) -> int:
        return len(self._blocks) - self._first

    def __getitem__(self, at: int) -> Stretch:  # type: ignore[override]  # it is never sliced
        if not 0 <= at < len(self):
            raise IndexError(at)
        info = self._blocks[self._first + at]
        return Stretch(
            key=self._key,
            entry=self._entry,
            bytes=ByteRange(offset=info.file_offset, length=info.stored_length),
            base_offset=info.base_offset,
            end_offset=info.end_offset,
            memory_bytes=info.raw_length,
            max_timestamp_ms=info.max_timestamp_ms,
            info=info,
            sparse=self._sparse,
        )


def _slice_stretch(key: PartitionKey, entry: Entry) -> Stretch:
    return Stretch(
        key=key,
        entry=entry,
        bytes=ByteRange(offset=entry.byte_offset, length=entry.byte_length),
        base_offset=entry.base_offset,
        end_offset=entry.end_offset,
        memory_bytes=entry.byte_length,
        max_timestamp_ms=entry.max_timestamp_ms,
    )


def _runs(stretches: Iterable[Stretch]) -> list[list[Stretch]]:
    """Adjacent blocks of one object together, up to the size of a GET; slices of blobs by themselves."""
    runs: list[list[Stretch]] = []
    for stretch in stretches:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and stretch.info is not None
            and last.entry.object_key == stretch.entry.object_key
            and last.bytes.end == stretch.bytes.offset
            and stretch.bytes.end - runs[-1][0].bytes.offset <= _RUN_BYTES
        ):
            runs[-1].append(stretch)
        else:
            runs.append([stretch])
    return runs


def _check_footer(footer: Footer, key: PartitionKey, entry: Entry) -> None:
    """The object must be the one that its entry describes."""
    found = (footer.key, footer.base_offset, footer.end_offset, footer.record_count)
    stated = (key, entry.base_offset, entry.end_offset, entry.record_count)
    within = entry.base_offset <= footer.base_offset and footer.end_offset <= entry.end_offset
    # Key compaction may have emptied an end of the range altogether (R18).
    agrees = footer.key == key and footer.record_count == entry.record_count and within and footer.sparse
    if found != stated and not agrees:
        raise CorruptSegment(
            f"segment: holds offsets {footer.base_offset} to {footer.end_offset} of {footer.key} in"
            f" {footer.record_count} records, its entry says otherwise ({entry.record_count} records)",
            hint="the object is not the one its metadata speaks of",
        )


def _tail(entry: Entry) -> ByteRange:
    """The range to download to open a segment: all of a small one, else the footer and the index."""
    whole = entry.byte_length <= _WHOLE_SEGMENT_BYTES
    tail_bytes = entry.byte_length if whole else min(TAIL_BYTES, entry.byte_length)
    return ByteRange(offset=entry.byte_length - tail_bytes, length=tail_bytes)


def _missing(key: PartitionKey, entry: Entry) -> DamagedObject:
    return DamagedObject(
        where=str(key),
        base_offset=entry.base_offset,
        end_offset=entry.end_offset,
        object_key=entry.object_key,
        byte_offset=entry.byte_offset,
        byte_length=entry.byte_length,
        problem="the object is missing, and the metadata still refers to it",
        missing=True,
    )


def _damaged(
    key: PartitionKey, entry: Entry, wanted: ByteRange, problem: str, stretch: Stretch | None
) -> DamagedObject:
    """``stretch``: the part of the entry that cannot be read; None for all of it."""
    return DamagedObject(
        where=str(key),
        base_offset=entry.base_offset if stretch is None else stretch.base_offset,
        end_offset=entry.end_offset if stretch is None else stretch.end_offset,
        object_key=entry.object_key,
        byte_offset=wanted.offset,
        byte_length=wanted.length,
        problem=problem,
    )


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _where(key: PartitionKey, entry: Entry) -> str:
    return f"partition {key}, offsets {entry.base_offset} to {entry.end_offset}: {entry.object_key}"


def _end_offset(info: BlockInfo) -> int:
    return info.end_offset
