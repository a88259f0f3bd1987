"""Reads the object of an entry, in ranges, and has its bytes judged.

    segment   HEAD ─► tail: footer and index ─► runs of blocks, the first one with the head
    slice     HEAD and header of the blob (kept for its other slices) ─► windows of the slice

A segment up to the size of a run is fetched by one GET. No request is larger than a run, unless one block, one batch or
an index is. Requests are admitted by a gate that bounds their number and their bytes; none is admitted while its task
holds another. Judging runs where ``Offload`` puts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import ObjectNotFound, ReadPastEnd
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import KIB, MIB
from streamhouse.formats.segment_v1 import FOOTER_BYTES, ByteRange, Footer
from streamhouse.formats.segment_v1_index import Index
from streamhouse.formats.segment_v1_reader import TAIL_BYTES, RangedReader
from streamhouse.formats.shared_blob_v1 import NeedMore
from streamhouse.log.offload import Offload
from streamhouse.log.reader.sharing import ByteGate, ByteLru, SharedCalls
from streamhouse.maintenance.verify.batches import BatchWalk
from streamhouse.maintenance.verify.entry_pages import can_be_read
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.maintenance.verify.findings import Finding, FindingKind, about, about_bytes
from streamhouse.maintenance.verify.options import VerifyDepth, VerifyOptions, VerifySummary
from streamhouse.maintenance.verify.segment_checks import (
    BlockRun,
    block_runs,
    check_footer,
    check_run,
    check_smallest_time,
    feed,
    footer_range,
)
from streamhouse.maintenance.verify.slice_checks import BlobFacts, SliceWalk, check_range, read_facts
from streamhouse.metadata.contract import KAFKA_BATCHES, Entry
from streamhouse.objectstore.contract import ObjectStore

MAX_ENTRY_FINDINGS: Final = 100  # a segment of 4 GiB has 4,096 blocks; a hundred damaged ones say enough

_BLOB_GUESS_BYTES: Final = 64 * KIB
_BLOB_CACHE_BYTES: Final = 64 * MIB  # holds the header of the largest blob, 16 MiB of JSON, and some more
_FACTS_PER_HEADER_BYTE: Final = 2  # a parsed header takes twice its bytes
_FACTS_BYTES: Final = KIB
_DEEP_AT_A_TIME: Final = 2  # a batch may inflate to 256 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class _SegmentEnds:
    footer: Footer
    index: Index
    whole: memoryview | None
    """All bytes of the object, if it is so small that one GET has fetched them."""


class EntryReader:
    def __init__(self, *, store: ObjectStore, offload: Offload, options: VerifyOptions, summary: VerifySummary) -> None:
        self._store = store
        self._offload = offload
        self._options = options
        self._summary = summary
        self._gate = ByteGate(max_bytes=options.read_bytes, max_calls=options.reads_at_a_time)
        self._inflating = asyncio.Semaphore(_DEEP_AT_A_TIME)
        self._blobs: ByteLru[str, BlobFacts] = ByteLru(_BLOB_CACHE_BYTES)
        self._blob_calls: SharedCalls[str, BlobFacts] = SharedCalls()

    async def check(self, key: PartitionKey, entry: Entry, epochs: EpochLine, *, again: bool = False) -> list[Finding]:
        """What is wrong with the object of this entry; at most MAX_ENTRY_FINDINGS and a few.

        ``again`` reads everything from the store that was kept from an earlier call. A missing object is a finding
        here; only the caller can tell whether the entry still stands (R7). Raises StoreError when the store fails.
        """
        try:
            if entry.encoding == KAFKA_BATCHES:
                return await self._check_slice(key, entry, epochs, again=again)
            return await self._check_segment(key, entry, epochs)
        except ObjectNotFound:
            problem = "the object is missing, and the metadata still refers to it"
            return [about(FindingKind.MISSING_OBJECT, key, entry, problem)]
        except ReadPastEnd as error:
            return [about(FindingKind.OBJECT_SIZE, key, entry, error.message)]

    async def close(self) -> None:
        await self._blob_calls.close()

    # Segments.

    async def _check_segment(self, key: PartitionKey, entry: Entry, epochs: EpochLine) -> list[Finding]:
        size = (await self._store.head(entry.object_key)).size_bytes
        findings: list[Finding] = []
        if size != entry.byte_length:
            problem = f"the object has {size} bytes, its entry says {entry.byte_length}"
            findings.append(about(FindingKind.OBJECT_SIZE, key, entry, problem))
        if self._options.depth is VerifyDepth.QUICK:
            return findings
        ends = await self._open(key, entry, size)
        if isinstance(ends, Finding):
            # What is wrong with the end of an object of another size follows from its size.
            return findings or [ends]
        findings.extend(check_footer(key, entry, ends.footer))
        if size != entry.byte_length or not can_be_read(findings):
            return findings
        walk = BatchWalk(entry, epochs, sparse=ends.footer.sparse, deep=self._is_deep)
        for run in block_runs(ends.index, self._options.run_bytes):
            findings += await self._check_run(key, entry, run, ends.whole, walk)
            if len(findings) >= MAX_ENTRY_FINDINGS:
                return findings[:MAX_ENTRY_FINDINGS]
        if not findings:
            findings.extend(check_smallest_time(key, entry, ends.footer, walk))
        return findings

    async def _open(self, key: PartitionKey, entry: Entry, size: int) -> _SegmentEnds | Finding:
        if size < FOOTER_BYTES:
            place = footer_range(size)
            problem = f"{size} bytes cannot hold a segment's footer"
            kind = FindingKind.SEGMENT_FOOTER
            return about_bytes(kind, key, entry, problem, byte_offset=place.offset, byte_length=place.length)
        is_small = size <= self._options.run_bytes
        reader = RangedReader(size, tail_bytes=size if is_small else TAIL_BYTES)
        data = memoryview(b"")
        while (need := reader.need()) is not None:
            data = await self._get(entry.object_key, need)
            damage = await self._offload.run(feed, reader, data, key, entry, size)
            if damage is not None:
                return damage
        return _SegmentEnds(footer=reader.footer, index=reader.index, whole=data if is_small else None)

    async def _check_run(
        self, key: PartitionKey, entry: Entry, run: BlockRun, whole: memoryview | None, walk: BatchWalk
    ) -> Sequence[Finding]:
        async with self._gate.admit(run.memory_bytes):
            if whole is None:
                data = await self._fetch(entry.object_key, run.bytes)
            else:
                data = whole[run.bytes.offset : run.bytes.end]
            if not self._is_deep:
                return await self._offload.run(check_run, key, entry, run, data, walk)
            async with self._inflating:
                return await self._offload.run(check_run, key, entry, run, data, walk)

    # Slices of shared blobs.

    async def _check_slice(self, key: PartitionKey, entry: Entry, epochs: EpochLine, *, again: bool) -> list[Finding]:
        blob = await self._blob(entry.object_key, again=again)
        findings = list(check_range(key, entry, blob))
        if self._options.depth is VerifyDepth.QUICK or not can_be_read(findings):
            return findings
        walk = SliceWalk(key, entry, blob, epochs, window_bytes=self._options.run_bytes, deep=self._is_deep)
        while (need := walk.need()) is not None:
            findings += await self._feed(entry, walk, need)
            if len(findings) >= MAX_ENTRY_FINDINGS:
                return findings[:MAX_ENTRY_FINDINGS]
        findings.extend(walk.finish())
        return findings

    async def _feed(self, entry: Entry, walk: SliceWalk, need: ByteRange) -> Sequence[Finding]:
        async with self._gate.admit(need.length):
            data = await self._fetch(entry.object_key, need)
            if not self._is_deep:
                return await self._offload.run(walk.feed, data)
            async with self._inflating:
                return await self._offload.run(walk.feed, data)

    async def _blob(self, object_key: str, *, again: bool) -> BlobFacts:
        """The facts of a blob. Partitions that share it, and read it at the same time, share the requests."""
        if again:
            self._blobs.drop(object_key)
        found = self._blobs.get(object_key)
        if found is None:
            found = await self._blob_calls.get(object_key, lambda: self._learn(object_key))
        return found

    async def _learn(self, object_key: str) -> BlobFacts:
        size = (await self._store.head(object_key)).size_bytes
        facts: BlobFacts | NeedMore = BlobFacts(size_bytes=size)
        if self._options.depth is not VerifyDepth.QUICK:
            facts = NeedMore(total_bytes=_BLOB_GUESS_BYTES) if size else read_facts(memoryview(b""), 0)
        while isinstance(facts, NeedMore):
            # It asks for more once or twice: for the length of the header, and for the header.
            need = ByteRange(offset=0, length=min(facts.total_bytes, size))
            first_bytes = await self._get(object_key, need)
            facts = await self._offload.run(read_facts, first_bytes, size)
        self._blobs.put(object_key, facts, _FACTS_PER_HEADER_BYTE * facts.header_bytes + _FACTS_BYTES)
        return facts

    # Bytes.

    @property
    def _is_deep(self) -> bool:
        return self._options.depth is VerifyDepth.DEEP

    async def _get(self, object_key: str, wanted: ByteRange) -> memoryview:
        async with self._gate.admit(wanted.length):
            return await self._fetch(object_key, wanted)

    async def _fetch(self, object_key: str, wanted: ByteRange) -> memoryview:
        """For a caller that the gate has admitted."""
        self._summary.read_bytes += wanted.length
        return await self._store.get_range(object_key, wanted.offset, wanted.length)
